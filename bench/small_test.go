package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// smallClient is the environment variable that makes a process of this test one client: the name of its
// lock, the server's address, and how often it works.
const smallClient = "BENCH_SMALL_CLIENT"

// testWaitingSmall is the wait for a busy key by 16 processes that have 0.07 of a core each, as functions
// with 128 MB of memory have.
func testWaitingSmall(t *testing.T) {
	const n, times = 16, 10
	addr := testservers.Redis(t)
	limitCore(t, 0) // it skips before anything is measured
	processes := func(name string) *entrant {
		return &entrant{processes: func(times int) (time.Duration, []time.Duration) { return smallCrowd(t, n, times, name, addr) }}
	}
	us, them := processes("redisstore"), processes("bsm/redislock")
	judge(t, func() [][]time.Duration { return race(t, times, us, them) },
		figure{"0.07 of a core: a hand-over : bsm/redislock's", 0, "x", compare(0, 1)},
		us.fair(0),
	)
}

// smallCrowd is crowd with a process for each client.
func smallCrowd(t *testing.T, n, times int, name, addr string) (handOver time.Duration, waits []time.Duration) {
	type client struct {
		start func()
		lines *bufio.Scanner
		end   func() error
	}
	var all []client
	for range n {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSmallClient$", "-test.v")
		cmd.Env = append(os.Environ(), smallClient+"="+fmt.Sprintf("%s %s %d", name, addr, times))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		awaitLine(t, lines, "ready")
		limitCore(t, cmd.Process.Pid)
		all = append(all, client{func() { _ = in.Close() }, lines, cmd.Wait})
	}
	began := time.Now()
	for _, c := range all {
		c.start()
	}
	for _, c := range all {
		var own []time.Duration
		if err := json.Unmarshal([]byte(awaitLine(t, c.lines, "[")), &own); err != nil {
			t.Fatal(err)
		}
		waits = append(waits, own...)
	}
	took := time.Since(began)
	for _, c := range all {
		if err := c.end(); err != nil {
			t.Fatal(err)
		}
	}
	return took / time.Duration(len(waits)), waits
}

// awaitLine returns the first line that begins with a text.
func awaitLine(t *testing.T, lines *bufio.Scanner, begin string) string {
	for lines.Scan() {
		if text := lines.Text(); len(text) >= len(begin) && text[:len(begin)] == begin {
			return text
		}
	}
	t.Fatalf("a client ended without %q: %v", begin, lines.Err())
	return ""
}

// limitCore gives a process 0.07 of a core, 7 of every 100 ms. It skips the test where a control group
// cannot be made.
func limitCore(t *testing.T, pid int) {
	root := "/sys/fs/cgroup/cpu" // of version 1
	limits := map[string]string{"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "7000"}
	if _, err := os.Stat(root); err != nil {
		root, limits = "/sys/fs/cgroup", map[string]string{"cpu.max": "7000 100000"}
	}
	group := filepath.Join(root, fmt.Sprintf("lambdalock-bench-%d-%d", os.Getpid(), pid))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("no process can be limited to a part of a core here: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(group) })
	for file, limit := range limits {
		if err := os.WriteFile(filepath.Join(group, file), []byte(limit), 0o644); err != nil {
			t.Skipf("no process can be limited to a part of a core here: %v", err)
		}
	}
	if pid == 0 {
		return
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		t.Skipf("no process can be limited to a part of a core here: %v", err)
	}
}

// TestSmallClient is one client of testWaitingSmall.
func TestSmallClient(t *testing.T) {
	var name, addr string
	var times int
	if _, err := fmt.Sscan(os.Getenv(smallClient), &name, &addr, &times); err != nil {
		t.Skip("testWaitingSmall runs it, as a process of its own")
	}
	client := redisClient(t, addr)
	do := map[string]func(redis.UniversalClient) locker{
		"redisstore":    func(c redis.UniversalClient) locker { return guarded(t, redisStore(t, c)) },
		"bsm/redislock": redislockOf,
	}[name](client)
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1)) // the parent closes it
	_, waits := crowd(t, times, lasting(time.Millisecond), do)
	text, err := json.Marshal(waits)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(string(text))
}
