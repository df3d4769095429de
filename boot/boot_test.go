package boot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// The test binary is also the function that the tests run as a process.
func TestMain(m *testing.M) {
	switch os.Getenv("BOOT_TEST") {
	case "":
		watchdog.Start()
		os.Exit(m.Run())
	case "function":
		function()
	case "lines":
		lines()
	}
}

// lines works under a lease that has to be renewed, and says on its file 3 how that ended.
func lines() {
	g := MustGuardFromEnv(memstore.Opener)
	result, began := os.NewFile(3, "result"), time.Now()
	err := g.Do(context.Background(), "k", func(ctx context.Context, lock guard.Lock) error {
		<-time.After(2 * time.Second)
		return context.Cause(ctx)
	})
	status, _ := g.Inspect(context.Background(), "k")
	fmt.Fprintln(result, err, status.State, time.Since(began) < 8*time.Second)
}

// TestNobodyReadsTheLog: log lines that cannot be written change no run.
func TestNobodyReadsTheLog(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for name, pipe := range map[string]func(t *testing.T) *os.File{
		"F81 a full pipe": func(t *testing.T) *os.File {
			r, w, err := os.Pipe()
			require.NoError(t, err)
			t.Cleanup(func() { _ = r.Close() })
			require.NoError(t, w.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			_, err = w.Write(make([]byte, 16<<20)) // more than a pipe takes
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return w
		},
		"F81 a pipe whose reader has gone": func(t *testing.T) *os.File {
			r, w, err := os.Pipe()
			require.NoError(t, err)
			require.NoError(t, r.Close())
			return w
		},
		"F81 a file that cannot be written": func(t *testing.T) *os.File {
			f, err := os.Open(os.DevNull)
			require.NoError(t, err)
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, said, err := os.Pipe()
			require.NoError(t, err)
			out := pipe(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, self)
			cmd.Env = append(os.Environ(), "BOOT_TEST=lines", "LOCK_URL=memory://", "LOCK_TTL=1s", "LOCK_LOG=start", "LOCK_METRICS=App")
			cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, []*os.File{said}
			require.NoError(t, cmd.Start())
			require.NoError(t, errors.Join(out.Close(), said.Close()))
			text, err := io.ReadAll(result)
			require.NoError(t, err)
			require.NoError(t, cmd.Wait())
			require.Equal(t, "<nil> free true\n", string(text))
		})
	}
}

type event struct {
	Do  string
	Key string
}

type NotEnoughMoney struct{}

func (*NotEnoughMoney) Error() string { return "not enough money" }

func function() {
	do := "" // what the event asks for
	store := storetest.NewFaulty(memstore.New(nil), func(c storetest.Call) storetest.Fault { return faultOf(do, c) })
	g := MustGuardFromEnv(opens(store.Store))
	Start(g, guard.Wrap(g, func(_ context.Context, e event) (string, error) {
		do = e.Do
		if e.Do == "no-key" {
			return "", errors.New("no account in the event")
		}
		return e.Key, nil
	}, func(ctx context.Context, lock guard.Lock, e event) (event, error) {
		switch e.Do {
		case "fail":
			return event{}, &NotEnoughMoney{}
		case "panic":
			panic("boom")
		case "until-cancelled":
			<-ctx.Done()
			return event{Do: context.Cause(ctx).Error()}, nil
		case "lose":
			return e, nil
		}
		return event{Do: "did " + e.Do, Key: lock.Key}, nil
	}))
}

// opens is the opener of this store.
func opens(s *lockstore.Store) lockstore.SchemeOpener {
	return lockstore.SchemeOpener{Schemes: []string{"memory"}, Open: func(context.Context, lockstore.Config) (*lockstore.Store, error) { return s, nil }}
}

// faultOf is how the store fails if the event asks for it.
func faultOf(do string, c storetest.Call) storetest.Fault {
	switch {
	case c.Kind == driver.Release && do == "lose":
		return storetest.Fault{Cut: lockstore.ErrLost}
	case c.Kind == driver.Acquire:
		return storetest.Fault{Drop: map[string]error{
			"busy":    &lockstore.Refused{Key: c.Key, State: lockstore.Held, Holder: lockstore.HolderInfo{Name: "another"}},
			"corrupt": lockstore.ErrCorrupt,
			"down":    lockstore.ErrUnavailable,
			"unknown": errors.New("connection reset"),
		}[do]}
	}
	return storetest.Fault{}
}

func startFunction(t *testing.T, timeout time.Duration, env ...string) *lambdatest.Environment {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	f, err := lambdatest.Start(ctx, lambdatest.Config{Binary: self, Name: "withdraw", Timeout: timeout,
		Env: append([]string{"BOOT_TEST=function", "LOCK_URL=memory://"}, env...)})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return f
}

func invoke(t *testing.T, f *lambdatest.Environment, e event) lambdatest.Result {
	t.Helper()
	payload, err := json.Marshal(e)
	require.NoError(t, err)
	r, err := f.Invoke(t.Context(), payload)
	require.NoError(t, err)
	return r
}

// A Step Functions Retry matches on errorType, which is the name of the
// outermost type of the error.
func TestErrorTypesOnTheWire(t *testing.T) {
	f := startFunction(t, 2*time.Second)
	for do, want := range map[string]string{
		"work": "", "busy": "LockBusy", "lose": "LockLost", "corrupt": "LockCorrupt", "no-key": "LockBadRequest",
		"down": "LockStoreUnavailable", "unknown": "LockStoreUnavailable", "fail": "NotEnoughMoney",
	} {
		t.Run(do, func(t *testing.T) {
			r := invoke(t, f, event{Do: do, Key: "account/7"})
			require.Equal(t, want, r.ErrorType, "%s", r.ErrorMessage)
		})
	}
	t.Run("F65 deadline", func(t *testing.T) {
		r, err := f.Send(t.Context(), lambdatest.Event{Payload: []byte(`{"Do":"work","Key":"k"}`), Deadline: time.Now().Add(200 * time.Millisecond)})
		require.NoError(t, err)
		require.Equal(t, "LockNoTime", r.ErrorType)
	})
	t.Run("F04 panic", func(t *testing.T) {
		r := invoke(t, f, event{Do: "panic", Key: "account/7"})
		require.Equal(t, "boom", r.ErrorMessage)
		require.Contains(t, string(r.Payload), "boot_test.go", "the panic's own stack")
	})
}

// logLine waits for a line of an invocation that has the message and the text.
func logLine(t *testing.T, f *lambdatest.Environment, message, text string) map[string]any {
	t.Helper()
	found, err := f.WaitLog(t.Context(), func(line string) bool {
		return strings.Contains(line, `"message":"`+message+`"`) && strings.Contains(line, text)
	})
	require.NoError(t, err)
	var line map[string]any
	require.NoError(t, json.Unmarshal([]byte(found), &line))
	return line
}

func TestLinesOfAnInvocation(t *testing.T) {
	f := startFunction(t, 30*time.Second, "LOCK_LOG=start", "LOCK_METRICS=App")
	for _, cold := range []bool{true, false} {
		r := invoke(t, f, event{Do: "work", Key: "account/7"})
		start, end := logLine(t, f, "lock granted", r.RequestID), logLine(t, f, "lock", r.RequestID)
		for _, line := range []map[string]any{start, end} {
			assert.Equal(t, cold, line["cold_start"])
			assert.Equal(t, "$LATEST", line["version"])
			assert.NotEmpty(t, line["trace"])
			assert.Equal(t, "account/7", line["key"])
		}
		assert.Equal(t, end["fence"], start["fence"])
		assert.Equal(t, "ok", end["outcome"])
		assert.Contains(t, end, "timestamp")
		assert.NotContains(t, start, "_aws", "it is no run of its own, so it is no metric")
	}
	t.Run("F03 a run that is killed has written its first line", func(t *testing.T) {
		var result lambdatest.Result
		var running sync.WaitGroup
		running.Go(func() {
			var err error
			result, err = f.Invoke(t.Context(), []byte(`{"Do":"until-cancelled","Key":"killed"}`))
			assert.NoError(t, err)
		})
		line := logLine(t, f, "lock granted", `"killed"`)
		require.NoError(t, f.Kill())
		running.Wait()
		assert.Equal(t, result.RequestID, line["requestId"])
	})
}

func TestTheFirstLineNamesTheStore(t *testing.T) {
	var out bytes.Buffer
	_, err := newGuard(&out, func(name string) string {
		return map[string]string{"LOCK_URL": "MEMORY://user:hunter2@locks:1/hunter2?p=hunter2", "LOCK_METRICS": "App"}[name]
	}, "LOCK_URL", nil, opens(memstore.New(nil)))
	require.NoError(t, err)
	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line), "one line, and of JSON")
	assert.Equal(t, "lock store", line["message"])
	assert.Equal(t, "memory", line["store"])
	assert.Equal(t, "locks:1", line["host"])
	assert.NotContains(t, out.String(), "hunter2")
	assert.NotContains(t, line, "_aws", "it is no run, so it is no metric")
}

// F69
func TestSIGTERM(t *testing.T) {
	f := startFunction(t, time.Second, "LOCK_SIGTERM=true", "LOCK_DEADLINE_MARGIN=10ms")
	// The function's deadline is told as far away, so that the platform's
	// timeout comes as a surprise, and SIGTERM with it.
	r, err := f.Send(t.Context(), lambdatest.Event{Payload: []byte(`{"Do":"until-cancelled","Key":"k"}`), Deadline: time.Now().Add(time.Minute)})
	require.NoError(t, err)
	require.Equal(t, lambdatest.ErrorTimeout, r.ErrorType)
	logLine(t, f, "lock", `"outcome":"ok"`) // the lease was released within the grace
}

func TestMissingSettings(t *testing.T) {
	for _, c := range []struct {
		name, env string   // the variables beside LOCK_URL, unless it is among them
		want      []string // parts of the one sentence; none: it works
	}{
		{"nothing set", "LOCK_URL=", []string{"LOCK_URL", "not set", "dynamodb://"}},
		{"F44 an unknown scheme names what is linked", "LOCK_URL=redis://user:hunter2@host", []string{"LOCK_URL", `"redis"`, "memory"}},
		{"a URL that cannot be read", "LOCK_URL=redis://hunter2:%zz", []string{"LOCK_URL", "%25"}},
		{"a duration that is none", "LOCK_TTL=30", []string{"LOCK_TTL", `"30"`, "30s"}},
		{"F48 a duration out of bounds", "LOCK_TTL=5ms", []string{"LOCK_TTL is 5ms; want 1s to 24h0m0s"}},
		{"F48 a TTL over its bound is not MaxHold's fault", "LOCK_TTL=30h", []string{"LOCK_TTL is 30h; want 1s to 24h0m0s"}},
		{"F48 a negative one, as it was written", "LOCK_WAIT=-90s", []string{"LOCK_WAIT is -90s; want 0"}},
		{"F48 MaxHold", "LOCK_MAX_HOLD=1500h", []string{"LOCK_MAX_HOLD is 1500h; want 1s to 24h0m0s"}},
		{"F49 DeadlineMargin and the default MaxHold", "LOCK_DEADLINE_MARGIN=20m", []string{"LOCK_DEADLINE_MARGIN is 20m but LOCK_MAX_HOLD is 15m0s; want LOCK_DEADLINE_MARGIN at most LOCK_MAX_HOLD less 100ms"}},
		{"F49 durations that contradict", "LOCK_TTL=1m,LOCK_MAX_HOLD=30s", []string{"LOCK_TTL is 1m but LOCK_MAX_HOLD is 30s; want LOCK_TTL at most LOCK_MAX_HOLD"}},
		{"a namespace that CloudWatch would drop", "LOCK_METRICS=locks|nightly", []string{"LOCK_METRICS", `"locks|nightly"`, "letters"}},
		{"a line that nobody writes", "LOCK_LOG=end", []string{"LOCK_LOG", `"end"`, "start"}},
		{"a namespace of AWS's own", "LOCK_METRICS=AWS/Lambda", []string{"LOCK_METRICS", "AWS/"}},
		{"a namespace that begins with a colon", "LOCK_METRICS=:x", []string{`LOCK_METRICS is ":x"`, "a colon"}},
		{"a namespace of spaces", "LOCK_METRICS= ", []string{`LOCK_METRICS is " "`, "all spaces"}},
		{"a namespace that is too long", "LOCK_METRICS=" + strings.Repeat("n", 256), []string{"LOCK_METRICS", "255"}},
		{"F48 no holder", "LOCK_MAX_HOLDERS=0", []string{`LOCK_MAX_HOLDERS is "0"; want a whole number, 1 to 32`}},
		{"F48 too many holders", "LOCK_MAX_HOLDERS=33", []string{`LOCK_MAX_HOLDERS is "33"; want a whole number, 1 to 32`}},
		{"a number that is none", "LOCK_MAX_HOLDERS=3s", []string{`LOCK_MAX_HOLDERS is "3s"; want a whole number, 1 to 32`}},
		{"all set", "LOCK_METRICS=My App/locks,LOCK_TTL=30s,LOCK_MAX_HOLD=1m,LOCK_WAIT=2s,LOCK_DEADLINE_MARGIN=1s", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := map[string]string{"LOCK_URL": "memory://"}
			for set := range strings.SplitSeq(c.env, ",") {
				name, value, _ := strings.Cut(set, "=")
				env[name] = value
			}
			_, err := newGuard(io.Discard, func(name string) string { return env[name] }, "LOCK_URL", nil, memstore.Opener)
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			for _, part := range c.want {
				require.ErrorContains(t, err, part)
			}
			require.NotContains(t, err.Error(), "hunter2")
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "MaxHold", "the words are the user's")
		})
	}
}

func TestFurtherOptions(t *testing.T) {
	env := map[string]string{"LOCK_URL": "memory://", "LOCK_WAIT": "3s"}
	var got guard.Options
	_, err := newGuard(io.Discard, func(name string) string { return env[name] }, "LOCK_URL", func(o *guard.Options) { got, o.TTL = *o, -1 }, memstore.Opener)
	require.Equal(t, 3*time.Second, got.Wait)
	require.NotNil(t, got.Observe, "what boot has set")
	require.ErrorContains(t, err, "is -1ns", "what the program has changed")
}

func TestUnknownNames(t *testing.T) {
	asked := &names{all: map[string]bool{"LOCK_URL": true, "LOCK_TTL": true, "LOCK_WAIT": true, "ACCOUNTS_URL": true}}
	for _, fine := range [][]string{
		nil,
		{"LOCK_URL=redis://host", "LOCK_WAIT=2s", "LOCKS_URL=x", "LOCK=x", "lock_wiat=2s", "ACCOUNTS_ULR=x", "=LOCK_WIAT", "PATH=LOCK_WIAT=2s"},
	} {
		require.NoError(t, asked.unknown(fine))
	}
	for _, name := range []string{"LOCK_WIAT", "LOCK_WAITS", "LOCK_"} {
		err := asked.unknown([]string{"LOCK_URL=redis://host", name + "=hunter2", "PATH=/bin"})
		require.EqualError(t, err, `the environment variable "`+name+`" is unknown; want one of LOCK_TTL, LOCK_URL, LOCK_WAIT`)
	}
	require.ErrorContains(t, asked.unknown([]string{"LOCK_B=", "LOCK_A="}), `"LOCK_A"`, "also an empty one, and the same each time")
	asked.note("LOCK_CALLERS")
	require.NoError(t, asked.unknown([]string{"LOCK_CALLERS={}"}), "a function asks for one of its own")
}

func TestStartOptions(t *testing.T) {
	for text, want := range map[string]int{"": 0, "false": 0, "true": 1} {
		options, err := startOptions(nil, func(string) string { return text }) // F51: Shutdown of a nil guard does nothing
		require.NoError(t, err)
		require.Len(t, options, want)
	}
	_, err := startOptions(nil, func(string) string { return "perhaps" })
	require.ErrorContains(t, err, "LOCK_SIGTERM")
}

func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := lambdacontext.FunctionName
		defer func() { lambdacontext.FunctionName = name }()
		lambdacontext.FunctionName = "index"
		var out bytes.Buffer
		env := map[string]string{"LOCK_URL": "memory://", "LOCK_COALESCE": "true", "LOCK_WAIT": "1m", "LOCK_METRICS": "App"}
		fails := func(says string) {
			t.Helper()
			_, err := newGuard(&out, func(name string) string { return env[name] }, "LOCK_URL", nil, memstore.Opener)
			require.EqualError(t, err, says)
		}
		g, err := newGuard(&out, func(name string) string { return env[name] }, "LOCK_URL", nil, memstore.Opener)
		require.NoError(t, err)
		event := func(request string) error {
			ctx := lambdacontext.NewContext(t.Context(), &lambdacontext.LambdaContext{AwsRequestID: request})
			return g.Do(ctx, "k", func(context.Context, guard.Lock) error {
				<-time.After(time.Second)
				return nil
			})
		}
		done := make(chan error, 3)
		for _, request := range []string{"r-1", "r-2", "r-2"} { // Lambda sends r-2 again, so its first try may be dead
			go func() { done <- event(request) }()
			synctest.Wait()
		}
		err = event("r-3")
		require.IsType(t, &guard.LockCovered{}, err)
		require.EqualError(t, err, `lock "k": another run of index waits behind index (r-1) since `+time.Now().UTC().Format(time.RFC3339)+`, and has not begun; it does what this event asks for`)
		for range 3 {
			require.NoError(t, <-done)
		}
		var covered map[string]any
		for line := range bytes.Lines(out.Bytes()) {
			if bytes.Contains(line, []byte(`"covered"`)) {
				require.NoError(t, json.Unmarshal(line, &covered))
			}
		}
		require.Equal(t, []any{"r-3", "k", "held", "INFO", 1.0}, []any{covered["requestId"], covered["key"], covered["state"], covered["level"], covered["runs"]})
		require.Contains(t, fmt.Sprint(covered["_aws"]), "outcome", "its metric is that of the outcome")

		env["LOCK_WAIT"] = ""
		fails(`LOCK_COALESCE is true but LOCK_WAIT is 0; want a LOCK_WAIT, only who waits is covered`)
		env["LOCK_COALESCE"] = "perhaps"
		fails(`LOCK_COALESCE is "perhaps"; want true or false`)
		env["LOCK_COALESCE"], env["LOCK_WAIT"], lambdacontext.FunctionName = "1", "1m", ""
		fails(`LOCK_COALESCE is true, and AWS_LAMBDA_FUNCTION_NAME is empty; want the function's name there, as Lambda sets it`)
		env["LOCK_COALESCE"] = "false"
		_, err = newGuard(&out, func(name string) string { return env[name] }, "LOCK_URL", nil, memstore.Opener)
		require.NoError(t, err)
	})
}

// Lambda's request id is no event's id where a source sends the event again with another one: the place of a try that died would cover the next.
func TestEventsWithoutAnID(t *testing.T) {
	options := guard.Options{EventID: eventID}
	plain, err := guard.New(memstore.New(nil), options)
	require.NoError(t, err)
	options.Coalesce, options.Wait = "index", time.Minute
	coalesces, err := guard.New(memstore.New(nil), options)
	require.NoError(t, err)
	type event = map[string]any
	handler := func(g *guard.Guard) guard.Wrapped[event, string] {
		return guard.Wrap(g, func(context.Context, event) (string, error) { return "k", nil }, func(_ context.Context, _ guard.Lock, in event) (string, error) {
			return fmt.Sprint(len(in)), nil
		})
	}
	lc := lambdacontext.NewContext(t.Context(), &lambdacontext.LambdaContext{AwsRequestID: "r-1"})
	const none = `guard: Coalesce is "index", and the event of this run has no id; want one of WithEventID or Options.EventID`
	for text, want := range map[string]string{
		`{"Records": [{"eventSource": "aws:sqs", "messageId": "m-1"}]}`:     none,
		`{"Records": [{"eventSource": "aws:kinesis"}]}`:                     none,
		`{"eventSource": "aws:kafka", "records": {}}`:                       none,
		`{"version": "2.0", "requestContext": {"http": {"method": "GET"}}}`: none,
		`{"Records": [{"eventSource": "aws:s3"}]}`:                          "",
		`{"detail-type": "Scheduled Event", "source": "aws.events"}`:        "",
		`{"Records": []}`: "",
		`{"customer": 7}`: "",
		`[]`:              "json: cannot unmarshal array into Go value of type map[string]interface {}",
	} {
		handle := lambda.NewHandler(entry(coalesces, handler(coalesces)))
		out, err := handle.Invoke(lc, []byte(text))
		if want != "" {
			require.ErrorContains(t, err, want, text)
			continue
		}
		require.NoError(t, err, text)
		require.NotEmpty(t, out)
	}
	for text, want := range map[string]string{`[{"eventSource": "aws:sqs"}]`: none, `[{"customer": 7}]`: ""} {
		_, err := lambda.NewHandler(entry(coalesces, guard.Wrap(coalesces, func(context.Context, []event) (string, error) { return "k", nil },
			func(context.Context, guard.Lock, []event) (string, error) { return "", nil }))).Invoke(lc, []byte(text))
		if want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, "a pipe sends its records again")
		}
	}
	_, err = lambda.NewHandler(entry(plain, handler(plain))).Invoke(lc, []byte(`{"Records": [{"eventSource": "aws:sqs"}]}`))
	require.NoError(t, err)
	out, err := lambda.NewHandler(entry(coalesces, guard.WrapUnlocked(func(ctx context.Context, _ event) (string, error) {
		err := coalesces.Do(guard.WithEventID(ctx, "m-1"), "k", func(context.Context, guard.Lock) error { return nil })
		return "ran", err
	}))).Invoke(lc, []byte(`{"Records": [{"eventSource": "aws:sqs"}]}`))
	require.NoError(t, err, "an adapter of batches knows the ids")
	require.Equal(t, `"ran"`, string(out))
}

func TestExitIsOneSentence(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"a variable is missing":         {nil, "LOCK_URL is not set"},
		"a variable's name is mistyped": {[]string{"LOCK_URL=memory://", "LOCK_WIAT=2s"}, `"LOCK_WIAT" is unknown; want one of LOCK_COALESCE, `},
		"a variable is no duration":     {[]string{"LOCK_URL=memory://", "LOCK_WAIT=soon"}, `LOCK_WAIT is "soon"`},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(self)
			cmd.Env = append([]string{"BOOT_TEST=function", "GOCOVERDIR=" + t.TempDir()}, c.env...)
			var out, errOut bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errOut
			err = cmd.Run()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode())
			require.NotContains(t, out.String(), c.want, "it is an error and no log line")
			require.Equal(t, 1, strings.Count(errOut.String(), "\n"), errOut.String())
			require.Contains(t, errOut.String(), c.want)
		})
	}
}

func TestStartTakesNoHandlerWithoutALock(t *testing.T) {
	err := lambdatest.Build(t.Context(), "./testdata/doesnotcompile", os.DevNull)
	require.ErrorContains(t, err, "of handle does not match guard.Wrapped")
	require.Equal(t, 1, strings.Count(err.Error(), "main.go:"), "%v", err)
}
