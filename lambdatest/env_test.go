package lambdatest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/watchdog"
)

// function is the path of the built testdata/function.
var function string

func TestMain(m *testing.M) {
	if binary := os.Getenv(orphanVariable); binary != "" {
		orphan(binary)
	}
	os.Exit(run(m))
}

// orphanVariable makes this test binary a parent that is going to be killed.
const orphanVariable = "LAMBDATEST_ORPHAN"

// orphan starts an environment, freezes its process, so that it cannot end
// itself, and waits.
func orphan(binary string) {
	env, err := Start(context.Background(), Config{Binary: binary})
	if err == nil {
		err = env.Freeze()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(env.PID())
	select {}
}

func TestProcessEndsWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can tie a process to its parent")
	}
	binary, err := os.Executable()
	require.NoError(t, err)
	parent := exec.CommandContext(testContext(t), binary)
	parent.Env = append(os.Environ(), orphanVariable+"="+function)
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	var pid int
	_, err = fmt.Fscanln(out, &pid)
	require.NoError(t, err)
	require.Positive(t, pid)
	require.NoError(t, syscall.Kill(pid, 0), "it is there")
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait() // it was killed
	goneSoon(t, pid)
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lambdatest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	function = filepath.Join(dir, "bootstrap")
	if err := Build(ctx, "./testdata/function", function); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	watchdog.Start()
	return m.Run()
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, config Config) *Environment {
	t.Helper()
	config.Binary = function
	env, err := Start(testContext(t), config)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, env.Close()) })
	return env
}

// goneSoon checks that no process has this id any more.
func goneSoon(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		if syscall.Kill(pid, 0) == syscall.ESRCH {
			return true
		}
		// An orphan that nobody waits for, as in some containers.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(stat), ") Z ")
	}, 5*time.Second, 5*time.Millisecond)
}

func do(what string, n int) []byte {
	return fmt.Appendf(nil, `{"do":%q,"n":%d}`, what, n)
}

type answer struct {
	RequestID string        `json:"requestId"`
	PID       int           `json:"pid"`
	Remaining time.Duration `json:"remaining"`
	Deadline  time.Time     `json:"deadline"`
	Env       []string      `json:"env"`
}

func decode(t *testing.T, r Result) answer {
	t.Helper()
	require.Empty(t, r.ErrorType, r.ErrorMessage)
	var a answer
	require.NoError(t, json.Unmarshal(r.Payload, &a))
	return a
}

func TestInvoke(t *testing.T) {
	env := start(t, Config{Timeout: 5 * time.Second})
	r, err := env.Invoke(testContext(t), do("echo", 0))
	require.NoError(t, err)
	a := decode(t, r)
	assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, r.RequestID)
	assert.Equal(t, r.RequestID, a.RequestID)
	assert.Equal(t, env.PID(), a.PID)
	assert.Positive(t, r.Duration)
	assert.Positive(t, env.InitDuration())

	again, err := env.Invoke(testContext(t), do("echo", 0))
	require.NoError(t, err)
	assert.Equal(t, a.PID, decode(t, again).PID, "the environment is used again")
	assert.NotEqual(t, r.RequestID, again.RequestID)
}

// The deadline that a function is told is its timeout after the hand-over, in whole milliseconds. Without a timeout it
// has 3 seconds (AWS::Lambda::Function, Timeout).
func TestTheDeadlineIsTheTimeout(t *testing.T) {
	for _, c := range []struct {
		config  Config
		timeout time.Duration
	}{{Config{}, 3 * time.Second}, {Config{Timeout: 15 * time.Minute}, 15 * time.Minute}, {Config{Timeout: 5 * time.Second, MaxConcurrency: 2}, 5 * time.Second}} {
		env := start(t, c.config)
		for range 2 { // the first invocation of a process, and the next
			sent := time.Now()
			r, err := env.Invoke(testContext(t), do("echo", 0))
			answered := time.Now()
			require.NoError(t, err)
			given := decode(t, r).Deadline.Add(-c.timeout)
			assert.False(t, given.Before(sent.Truncate(time.Millisecond)), "%v: %v before the event was sent", c.timeout, sent.Sub(given))
			assert.False(t, given.After(answered), "%v: %v after the answer", c.timeout, given.Sub(answered))
		}
	}
}

func TestFixedRequestIDAndDeadline(t *testing.T) {
	env := start(t, Config{Timeout: 5 * time.Second})
	for range 2 { // as Lambda's retry of an async invocation
		r, err := env.Send(testContext(t), Event{Payload: do("echo", 0), ID: "the-same-id"})
		require.NoError(t, err)
		assert.Equal(t, "the-same-id", decode(t, r).RequestID)
	}
	far, err := env.Send(testContext(t), Event{Payload: do("echo", 0), Deadline: time.Now().Add(9_999_999_990 * time.Millisecond)})
	require.NoError(t, err)
	assert.Greater(t, decode(t, far).Remaining, 2000*time.Hour)
	past, err := env.Send(testContext(t), Event{Payload: do("echo", 0), Deadline: time.Now().Add(-time.Hour)})
	require.NoError(t, err)
	assert.Negative(t, decode(t, past).Remaining)
}

func TestErrorTypesOnTheWire(t *testing.T) {
	for name, want := range map[string]struct{ errorType, message string }{
		"named":   {"NamedError", "named: as asked"},
		"wrapped": {"wrapError", "wrapped: named: as asked"},
		"plain":   {"errorString", "plain"},
		"panic":   {"string", "as asked"},
	} {
		t.Run(name, func(t *testing.T) {
			env := start(t, Config{})
			pid := env.PID()
			r, err := env.Invoke(testContext(t), do(name, 0))
			require.NoError(t, err)
			assert.Equal(t, want.errorType, r.ErrorType)
			assert.Equal(t, want.message, r.ErrorMessage)
			assert.Contains(t, string(r.Payload), fmt.Sprintf(`"errorType":%q`, want.errorType))

			next, err := env.Invoke(testContext(t), do("echo", 0))
			require.NoError(t, err)
			assert.Empty(t, next.ErrorType)
			assert.Equal(t, name == "panic", env.PID() != pid, "only a panic ends the process")
		})
	}
}

// However a process ends, its invocation has a result, and the next one starts another process.
func TestEndsOfAProcess(t *testing.T) {
	for name, c := range map[string]struct {
		do            string
		env           []string
		frozen        bool
		want, message string
		least         time.Duration // what it takes
	}{
		"it exits":                             {do: "exit", want: ErrorExit, message: "Runtime exited with error: exit status 7"},
		"its time is over":                     {do: "hang", want: ErrorTimeout, message: "Task timed out after 0.30 seconds", least: 300 * time.Millisecond},
		"its time is over, and it is frozen":   {do: "echo", frozen: true, want: ErrorTimeout, message: "Task timed out after 0.30 seconds"},
		"its time is over, with its extension": {do: "hang", env: []string{"WITH_SIGTERM=1"}, want: ErrorTimeout, message: "Task timed out after 0.30 seconds", least: 800 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			env := start(t, Config{Timeout: 300 * time.Millisecond, Env: c.env})
			pid := env.PID()
			if c.frozen {
				require.NoError(t, env.Freeze())
			}
			r, err := env.Invoke(testContext(t), do(c.do, 0))
			require.NoError(t, err)
			assert.Equal(t, c.want, r.ErrorType)
			assert.Equal(t, "RequestId: "+r.RequestID+" Error: "+c.message, r.ErrorMessage)
			assert.GreaterOrEqual(t, r.Duration, c.least, "the process has its grace")
			assert.Equal(t, c.env != nil, slices.Contains(env.Logs(), "got SIGTERM"))
			goneSoon(t, pid)
			next, err := env.Invoke(testContext(t), do("echo", 0))
			require.NoError(t, err)
			assert.NotEqual(t, pid, decode(t, next).PID)
		})
	}
}

func TestShutdown(t *testing.T) {
	for name, env := range map[string][]string{"with an extension": {"WITH_SIGTERM=1"}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			e := start(t, Config{Env: env})
			pid, began := e.PID(), time.Now()
			require.NoError(t, e.Shutdown())
			if env != nil {
				assert.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond)
				assert.Contains(t, e.Logs(), "got SIGTERM")
			}
			goneSoon(t, pid)
			assert.Error(t, e.Shutdown())
		})
	}
}

func TestConcurrency(t *testing.T) {
	const n = 8
	env := start(t, Config{MaxConcurrency: n, Timeout: 20 * time.Second})
	var all sync.WaitGroup
	results := make([]Result, n)
	for i := range n {
		all.Go(func() {
			r, err := env.Invoke(testContext(t), do("meet", n))
			assert.NoError(t, err)
			results[i] = r
		})
	}
	all.Wait()
	for _, r := range results {
		assert.Equal(t, env.PID(), decode(t, r).PID, "all in one process, at the same time")
	}
}

func TestOneAtATime(t *testing.T) {
	env := start(t, Config{Timeout: 20 * time.Second})
	ctx, cancel := context.WithTimeout(testContext(t), 500*time.Millisecond)
	defer cancel()
	// Two that wait for each other never meet in one environment.
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			_, err := env.Invoke(ctx, do("meet", 2))
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	both.Wait()
}

func TestTimeoutWithConcurrencyIsOnlyReported(t *testing.T) {
	env := start(t, Config{MaxConcurrency: 2, Timeout: 200 * time.Millisecond})
	pid := env.PID()
	r, err := env.Send(testContext(t), Event{Payload: do("late", 5), Deadline: time.Now().Add(500 * time.Millisecond)})
	require.NoError(t, err)
	assert.Equal(t, ErrorTimeout, r.ErrorType)
	_, err = env.WaitLog(testContext(t), func(line string) bool { return line == "late 5" })
	require.NoError(t, err)
	assert.Equal(t, pid, env.PID())
}

// slowWriter takes a while for each line, so whoever does not wait for it is early.
type slowWriter struct {
	mu   sync.Mutex
	text string
}

func (w *slowWriter) Write(b []byte) (int, error) {
	<-time.After(10 * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text += string(b)
	return len(b), nil
}

// What a process writes before its answer has been read when the answer is there.
func TestLogsOfAnAnswer(t *testing.T) {
	var out slowWriter
	env := start(t, Config{Log: &out})
	for n := range 10 {
		_, err := env.Invoke(testContext(t), do("log", 0))
		require.NoError(t, err)
		require.Equal(t, slices.Repeat([]string{"to stdout", "to stderr"}, n+1), env.Logs())
		out.mu.Lock()
		require.Equal(t, strings.Repeat("to stdout\nto stderr\n", n+1), out.text)
		out.mu.Unlock()
	}
}

func TestLineReader(t *testing.T) {
	logs := newLogBuffer(nil)
	r, w, err := newLineReader(logs)
	require.NoError(t, err)
	const most = 64 << 10 // as the package says
	long := strings.Repeat("x", most+3)
	for _, part := range []string{"a\nb", "c\n", "\n", long, "\nend"} {
		_, err := w.WriteString(part)
		require.NoError(t, err)
		r.drain()
	}
	assert.Equal(t, []string{"a", "bc", "", long[:most], "xxx"}, logs.all())
	r.close() // also if a child of the process keeps the pipe open
	assert.Equal(t, "end", logs.last())
	r.drain()
	require.NoError(t, w.Close())
}

func TestLogBufferIsBounded(t *testing.T) {
	const kept = 10_000 // as the package says
	logs := newLogBuffer(nil)
	for i := range 5 * kept {
		logs.add(fmt.Appendf(nil, "%d", i))
	}
	assert.Len(t, logs.all(), kept)
	assert.Equal(t, fmt.Sprint(5*kept-1), logs.last())
	assert.LessOrEqual(t, len(logs.lines), 2*kept)
	got, err := logs.wait(testContext(t), func(line string) bool { return line == logs.lines[0] })
	require.NoError(t, err)
	assert.Equal(t, logs.lines[0], got)
}

func TestEnvironmentIsThePlatformsAlone(t *testing.T) {
	t.Setenv("LEAKED_FROM_THE_TEST", "1")
	env := start(t, Config{Name: "withdraw", Env: []string{"LOCK_URL=redis://example", "TZ=Europe/Berlin"}, MaxConcurrency: 3})
	r, err := env.Invoke(testContext(t), do("env", 0))
	require.NoError(t, err)
	got := decode(t, r).Env
	assert.Contains(t, got, "AWS_LAMBDA_FUNCTION_NAME=withdraw")
	assert.Contains(t, got, "AWS_LAMBDA_MAX_CONCURRENCY=3")
	assert.Contains(t, got, "LOCK_URL=redis://example")
	assert.Contains(t, got, "TZ=Europe/Berlin", "Config.Env wins over the platform's own")
	assert.NotContains(t, strings.Join(got, "\n"), "LEAKED")
	// Defined runtime environment variables (Lambda, Working with environment variables); those of a region and of keys
	// are this package's own.
	for name, want := range map[string]string{
		"_HANDLER": "bootstrap", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128", "AWS_LAMBDA_INITIALIZATION_TYPE": "lambda-managed-instances", "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/withdraw",
		"AWS_LAMBDA_LOG_STREAM_NAME": "local", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "LAMBDA_TASK_ROOT": "/var/task",
	} {
		assert.Contains(t, got, name+"="+want)
	}
}

// "exceeded maximum allowed payload size (6291556 bytes)" is what Lambda says.
func TestLargeAnswerIsRefused(t *testing.T) {
	env := start(t, Config{Timeout: time.Minute})
	r, err := env.Invoke(testContext(t), do("large", 6_291_556))
	require.NoError(t, err)
	assert.Empty(t, r.ErrorType, r.ErrorMessage)
	assert.Len(t, r.Payload, 6_291_556)
	r, err = env.Invoke(testContext(t), do("large", 6_291_557))
	require.NoError(t, err)
	assert.Equal(t, ErrorTooLarge, r.ErrorType)
	assert.Contains(t, r.ErrorMessage, "6291556 bytes")
}

func TestSameRequestIDTwiceAtOnceIsRefused(t *testing.T) {
	env := start(t, Config{MaxConcurrency: 2, Timeout: 20 * time.Second})
	var first sync.WaitGroup
	first.Go(func() {
		_, err := env.Send(testContext(t), Event{Payload: do("hang", 1), ID: "one"})
		assert.NoError(t, err)
	})
	_, err := env.WaitLog(testContext(t), func(line string) bool { return line == "hanging 1" })
	require.NoError(t, err)
	_, err = env.Send(testContext(t), Event{Payload: do("echo", 0), ID: "one"})
	require.ErrorContains(t, err, `request id "one" is running in this environment already`)
	require.NoError(t, env.Kill())
	first.Wait()
}

func TestStartFails(t *testing.T) {
	ended, cancel := context.WithCancel(testContext(t))
	cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		config Config
		want   string
	}{
		"no binary":            {testContext(t), Config{}, "Config.Binary is empty"},
		"binary not there":     {testContext(t), Config{Binary: filepath.Join(t.TempDir(), "bootstrap")}, "no such file or directory"},
		"process ends in init": {testContext(t), Config{Binary: function, Env: []string{"FAIL_INIT=1"}}, "no store is configured"},
		"context ends":         {ended, Config{Binary: function}, context.Canceled.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Start(c.ctx, c.config)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestClose(t *testing.T) {
	env := start(t, Config{Timeout: 20 * time.Second})
	pid := env.PID()
	var running sync.WaitGroup
	running.Go(func() {
		r, err := env.Invoke(testContext(t), do("hang", 1))
		assert.NoError(t, err)
		assert.Equal(t, ErrorExit, r.ErrorType)
	})
	_, err := env.WaitLog(testContext(t), func(line string) bool { return line == "hanging 1" })
	require.NoError(t, err)
	require.NoError(t, env.Close())
	running.Wait()
	goneSoon(t, pid)
	require.NoError(t, env.Close())
	_, err = env.Invoke(testContext(t), do("echo", 0))
	require.ErrorIs(t, err, errClosed)
}

// Each Close waits for all slots: two at once must not have a part of them each.
func TestCloseTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it notices a deadlock
		for range 100 {
			env := newEnvironment(Config{MaxConcurrency: 1000})
			var all sync.WaitGroup
			for range 2 {
				all.Go(func() { assert.NoError(t, env.Close()) })
			}
			all.Wait()
		}
	})
}

// A process that does not get ready holds up nobody whose context ends.
func TestSendWhileAProcessStarts(t *testing.T) {
	dir := t.TempDir()
	binary, script := filepath.Join(dir, "bootstrap"), filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho starting\nexec sleep 60\n"), 0o755))
	require.NoError(t, os.Symlink(function, binary))
	env, err := Start(testContext(t), Config{Binary: binary, MaxConcurrency: 2})
	require.NoError(t, err)
	defer env.Close()
	require.NoError(t, env.Kill())
	require.NoError(t, os.Remove(binary))
	require.NoError(t, os.Symlink(script, binary))

	first, cancel := context.WithCancel(testContext(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := env.Invoke(first, do("echo", 0))
		ended <- err
	}()
	_, err = env.WaitLog(testContext(t), func(line string) bool { return line == "starting" })
	require.NoError(t, err)
	second, cancelSecond := context.WithTimeout(testContext(t), 20*time.Millisecond)
	defer cancelSecond()
	_, err = env.Invoke(second, do("echo", 0))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, ended, "the process starts still")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestBuildSaysWhatIsWrong(t *testing.T) {
	err := Build(testContext(t), "./testdata/absent", filepath.Join(t.TempDir(), "bootstrap"))
	require.ErrorContains(t, err, "build ./testdata/absent")
	require.ErrorContains(t, err, "no such file or directory")
	err = Build(testContext(t), "example.com/absent", filepath.Join(t.TempDir(), "bootstrap"))
	require.ErrorContains(t, err, "build example.com/absent")
}
