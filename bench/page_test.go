package bench

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

var keep = flag.String("keep", "", "write the figures as a page to this file")

// tables are the figures of this run so far: the rows of each part.
var tables = map[string][][]string{}

// present is the part that runs.
var present string

// A part is a table of the page. waitTimes has the rows of every part in which crowds wait.
const waitTimes = "wait times"

var parts = []struct {
	name string
	test func(*testing.T)
}{
	{"waiting for Redis", testWaitingRedis},
	{"waiting for DynamoDB", testWaitingDynamoDB},
	{"waiting for ZooKeeper", testWaitingZooKeeper},
	{"waiting for PostgreSQL", testWaitingPostgres},
	{"waiting for MariaDB and SQLite", testWaitingSQL},
	{"redis", testRedis},
	{"redis with 127 waiters, time in the server", testCrowdedRedis},
	{"dynamodb", testDynamoDB},
	{"start of a function", testStart},
}

func TestBudgets(t *testing.T) {
	if verifyrecord.WithRaceDetector {
		t.Skip("times under the race detector say nothing")
	}
	tables[waitTimes] = [][]string{{"store", "lock", "hand-over", "wait p50", "wait p99", "longest wait"}}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			present = p.name
			tables[present] = [][]string{{"figure", "is", "budget", "", ""}}
			p.test(t)
		})
	}
	if *keep == "" {
		return
	}
	text, err := page(testservers.Versions(t))
	fatal(t, err)
	fatal(t, os.WriteFile(*keep, []byte(text), 0o644))
}

// row keeps one row of the present table, and prints it.
func row(what, value, limit, verdict, note string) {
	tables[present] = append(tables[present], []string{strings.TrimSpace(what), value, limit, verdict, note})
	fmt.Println(strings.TrimRight(fmt.Sprintf("%-37s %7s %6s %-4s %s", what, value, limit, verdict, note), " "))
}

//go:embed page.md.tmpl
var form string

// page is docs/benchmarks.md.
func page(servers []string) (string, error) {
	t := template.New("").Funcs(template.FuncMap{"table": func(name string) (string, error) {
		rows := tables[name]
		if len(rows) == 0 {
			return "", fmt.Errorf("this run has no table %q", name)
		}
		var lines []string
		for _, row := range slices.Insert(slices.Clone(rows), 1, slices.Repeat([]string{"---"}, len(rows[0]))) {
			lines = append(lines, "| "+strings.Join(row, " | ")+" |")
		}
		return strings.Join(lines, "\n"), nil
	}})
	if _, err := t.Parse(form); err != nil {
		return "", err
	}
	locks, err := libraries()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, map[string]string{
		"Date": time.Now().UTC().Format("2 January 2006"), "Machine": machine(), "Go": runtime.Version(), "Servers": strings.Join(servers, ", "), "Libraries": strings.Join(locks, ", "),
	})
	return b.String(), err
}

// machine says what the figures were measured on.
func machine() string {
	name := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				name = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d cores of %s, shared with other machines, %s", runtime.NumCPU(), name, runtime.GOOS)
}

// libraries are those that the figures compare, and the clients that they and the stores use.
func libraries() (versions []string, err error) {
	text, err := os.ReadFile("go.mod")
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && slices.Contains([]string{"cirello.io/dynamolock/v2", "github.com/bsm/redislock", "github.com/go-zookeeper/zk", "github.com/lib/pq", "github.com/redis/go-redis/v9"}, fields[0]) {
			versions = append(versions, strings.Join(fields, " "))
		}
	}
	return versions, err
}

// The page shows every table once.
func TestPage(t *testing.T) {
	names := []string{waitTimes}
	for _, p := range parts {
		names = append(names, p.name)
	}
	for _, name := range names {
		tables[name] = [][]string{{"the table " + name}}
	}
	defer clear(tables)
	text, err := page(nil)
	fatal(t, err)
	for _, name := range names {
		if n := strings.Count(text, "\n\n| the table "+name+" |\n"); n != 1 {
			t.Errorf("the page shows the table %q %d times; want once", name, n)
		}
	}
}
