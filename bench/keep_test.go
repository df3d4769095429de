package bench

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

var keep = flag.String("keep", "", "write the figures to this file")

// kept are the figures of this run so far.
var kept Results

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if *keep != "" {
		kept.Date, kept.Go = time.Now().UTC().Truncate(time.Second), runtime.Version()
		kept.Machine = machine()
		var err error
		if kept.Peers, err = peers(); err == nil {
			err = kept.Write(*keep)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// part runs a test whose figures are a table of their own.
func part(t *testing.T, name string, columns []string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		kept.Tables = append(kept.Tables, Table{Name: name, Columns: columns})
		test(t)
	})
}

// tell keeps one row of the present table, and prints it.
func tell(cells ...string) {
	row(cells...)
	fmt.Println(strings.Join(cells, "  "))
}

// row keeps one row of the present table.
func row(cells ...string) {
	if len(kept.Tables) > 0 {
		last := &kept.Tables[len(kept.Tables)-1]
		last.Rows = append(last.Rows, cells)
	}
}

func TestVersions(t *testing.T) {
	kept.Servers = testservers.Versions(t)
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

// peers are the libraries that the figures compare, and the clients that those of Redis and PostgreSQL use.
func peers() (versions []string, err error) {
	text, err := os.ReadFile("go.mod")
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && slices.Contains([]string{"cirello.io/dynamolock/v2", "github.com/bsm/redislock", "github.com/go-redsync/redsync/v4", "github.com/go-zookeeper/zk", "github.com/lib/pq", "github.com/redis/go-redis/v9"}, fields[0]) {
			versions = append(versions, strings.Join(fields, " "))
		}
	}
	return versions, err
}
