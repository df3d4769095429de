package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
)

// binary is lockctl as it is built for users. The tests run it as a user does.
var binary string

func TestMain(m *testing.M) {
	// Most tests wait for other processes and for the time of a lease, not for a processor.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	testservers.HeedSignals()
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_PROFILE": ""} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "lockctl")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "lockctl")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the functions, whose compiled packages it shares
		if out, err := build.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%v: %s", err, out))
		}
		watchdog.Start()
		return m.Run()
	}())
}

// patience is how long a step may take that takes no time on an idle machine.
const patience = time.Minute

// process is a lockctl.
type process struct {
	*exec.Cmd
	out, err bytes.Buffer
	done     chan struct{}
}

// program is one that is or becomes lockctl, with a store.
func program(storeURL, name string, args ...string) *process {
	p := &process{Cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.Env = append(os.Environ(), "LOCK_URL="+storeURL)
	p.Stdout, p.Stderr = &p.out, &p.err
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return p
}

func lockctl(storeURL string, args ...string) *process { return program(storeURL, binary, args...) }

// start starts lockctl with a store: a URL or the address of a Redis.
func start(t *testing.T, store string, args ...string) *process {
	t.Helper()
	if !strings.Contains(store, "://") {
		store = "redis://" + store
	}
	return lockctl(store, args...).start(t)
}

// begun starts lockctl run with a script, and waits until the script has written a line to the file, its $1.
func begun(t *testing.T, store, script string, args ...string) (p *process, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "file")
	p = start(t, store, append(append([]string{"run"}, args...), "--", "sh", "-c", script, "sh", file)...)
	lines(t, file, 1)
	return p, file
}

func (p *process) start(t *testing.T) *process {
	t.Helper()
	require.NoError(t, p.Start())
	go func() {
		_ = p.Wait() // the test reads the status
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.Process.Signal(syscall.SIGCONT)
		_ = p.Process.Kill()
		<-p.done
	})
	return p
}

// status waits for the end, and returns the exit status as a shell does.
func (p *process) status(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("lockctl does not end: %s", p.err.String())
	}
	state := p.ProcessState.Sys().(syscall.WaitStatus)
	if state.Signaled() {
		return 128 + int(state.Signal())
	}
	return state.ExitStatus()
}

// result is how a lockctl has ended.
type result struct {
	status   int
	out, err string
}

func (p *process) result(t *testing.T) result {
	t.Helper()
	return result{p.status(t), p.out.String(), p.err.String()}
}

// inProcess runs a command line in this process, which takes less time and sees data races. Its output is what the process would write.
func inProcess(t *testing.T, out io.Writer, storeURL string, args ...string) (status int, stderr string) {
	t.Helper()
	var err bytes.Buffer
	cmd := command()
	cmd.SetArgs(slices.Insert(slices.Clone(args), 1, "--store", storeURL))
	cmd.SetOut(out)
	cmd.SetErr(&err)
	return execute(t.Context(), cmd), err.String()
}

// ends runs a command line to its end. That of lockctl run needs a process of its own.
func ends(t *testing.T, storeURL string, args ...string) (r result) {
	t.Helper()
	if args[0] == "run" || args[0] == "schema" {
		return lockctl(storeURL, args...).start(t).result(t)
	}
	var out bytes.Buffer
	r.status, r.err = inProcess(t, &out, storeURL, args...)
	r.out = out.String()
	return r
}

// says compares the status of a command line, and what it prints, with a regular expression.
func says(t *testing.T, storeURL string, status int, text, line string) {
	t.Helper()
	r := ends(t, storeURL, strings.Fields(line)...)
	assert.Equal(t, status, r.status, "%s %q: %s", storeURL, line, r.err)
	assert.Regexp(t, text, r.out+r.err, line)
	assert.NotContains(t, r.err, "hunter", "a password")
}

// lines waits until a file has n lines, and returns them.
func lines(t *testing.T, file string, n int) (all []string) {
	t.Helper()
	until(t, fmt.Sprintf("%d lines in %s", n, filepath.Base(file)), func() bool {
		text, _ := os.ReadFile(file) // the process writes it when it begins
		all = strings.Fields(string(text))
		return len(all) >= n
	})
	return all
}

// until waits until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); <-time.After(10 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "waiting: %s", what)
	}
}

// alive says that a process works: it is there and no zombie.
func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	_, state, _ := strings.Cut(string(stat), ") ")
	if _, noProc := os.Stat("/proc/self"); err != nil && noProc != nil { // macOS
		out, _ := exec.Command("ps", "-o", "stat=", "-p", pid).Output() // an error says that it is gone
		state = string(out)
	}
	return state != "" && state[0] != 'Z' && state[0] != 'X'
}

// redisCLI sends a command to a Redis.
func redisCLI(t *testing.T, addr string, command ...string) {
	t.Helper()
	require.NoError(t, exec.Command("redis-cli", append([]string{"-u", "redis://" + addr}, command...)...).Run())
}

// inspect looks at a key of a Redis.
func inspect(t *testing.T, addr, key string) lockstore.Status {
	t.Helper()
	status, err := at(t, "redis://"+addr).store.Inspect(t.Context(), key)
	require.NoError(t, err)
	return status
}

func untilHeld(t *testing.T, addr, key string) {
	t.Helper()
	until(t, key+" is held", func() bool { return inspect(t, addr, key).State == lockstore.Held })
}

// tree is a process and all that it has started, parents first.
func tree(t *testing.T, pid int) []int {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	require.NoError(t, err)
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) == 2 && f[1] == strconv.Itoa(all[i]) {
				child, err := strconv.Atoi(f[0])
				require.NoError(t, err)
				all = append(all, child)
			}
		}
	}
	return all
}

// guardOf is the guard process of a lockctl.
func guardOf(t *testing.T, p *process) int {
	t.Helper()
	all := tree(t, p.Process.Pid)
	require.Greater(t, len(all), 1, "lockctl has no guard process")
	return all[1]
}
