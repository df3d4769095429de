package locallambda

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lambdatest"
)

func TestMain(m *testing.M) {
	// Tests wait for the pauses of clients and for leases, so several run at once. Each has up to eight processes: with more
	// tests at once a busy machine answers no request in time.
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	watchdog.Start()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(), goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(built.dir)
		os.Exit(code)
	}))
}

const repository = "../../../.."

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// built builds packages of the repository, each once.
var built struct {
	sync.Mutex
	dir    string
	binary map[string]string
}

func build(t *testing.T, folder string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "lockctl-test")
		require.NoError(t, err)
		built.dir, built.binary = dir, map[string]string{}
	}
	if built.binary[folder] == "" {
		binary := filepath.Join(built.dir, filepath.Base(folder), "bootstrap")
		require.NoError(t, lambdatest.Build(testContext(t), filepath.Join(repository, folder), binary))
		built.binary[folder] = binary
	}
	return built.binary[folder]
}

func none(string) string { return "" }

// eventFile is a file for --event.
func eventFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "event.json")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// sample are the settings of make run, with less of everything. Without the lock it
// loses updates.
func sample(t *testing.T) settings {
	event, err := os.ReadFile(filepath.Join(repository, "events", "withdraw.json"))
	require.NoError(t, err)
	changed := strings.NewReplacer("accounts/7/", "accounts/demo-{{run}}/", `"id": "7"`, `"id": "demo-{{run}}"`, "w-1", "w-{{n}}").Replace(string(event))
	tool := build(t, "functions/internal/functest/accountstool")
	return settings{
		function:     build(t, "functions/withdraw"),
		environments: 6,
		events:       36,
		event:        eventFile(t, changed),
		env:          []string{"ACCOUNTS_URL={{redis}}"},
		timeout:      15 * time.Second,
		think:        100 * time.Millisecond,
		before:       tool + " open demo-$LOCKCTL_RUN 36000",
		after:        tool + " report demo-$LOCKCTL_RUN 36000 500",
		picture:      filepath.Join(t.TempDir(), "made", "timeline.svg"),
		getenv:       none,
	}
}

// echo are the settings of a function that takes no lock and does what its event says.
func echo(t *testing.T, event string) settings {
	return settings{
		function:     build(t, "lambdatest/testdata/function"),
		environments: 2,
		events:       4,
		event:        eventFile(t, event),
		timeout:      5 * time.Second,
		picture:      filepath.Join(t.TempDir(), "timeline.svg"),
		getenv:       none,
	}
}

// TestRun is the command as make run calls it.
func TestRun(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := sample(t)
	s.compare = filepath.Join(repository, "functions", "internal", "functest", "without")
	require.NoError(t, run(testContext(t), s, &b))
	text := b.String()
	assert.Contains(t, text, "36 events for withdraw, 6 Lambda environments at once, on an embedded Redis at\nredis://127.0.0.1:")
	assert.Contains(t, text, "built without in ")
	assert.Contains(t, text, "36 of 36            36 of 36")
	assert.Regexp(t, `\n  balance it should have +180\.00 +180\.00\n  lost updates +[1-9]\d* +0\n`, text)
	assert.NotContains(t, text, "no critical sections overlapped")
	for line := range strings.Lines(text) {
		if !strings.Contains(line, s.picture) {
			assert.LessOrEqual(t, len(line), 81, line)
		}
	}
	svg, err := os.ReadFile(s.picture)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, bytes.Count(svg, []byte("<title>env ")), 2*36)
	assert.Contains(t, string(svg), "lost updates: 0")
}

// TestPrograms: what is wrong with a program is in the verdict, named by what the program logs and by what lockctl did.
func TestPrograms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode   string
		freeze int
		change func(*settings)
		says   []string // the verdict; none: there is nothing to say
		most   int      // at once; 0 is not looked at
	}{
		"a right one":              {most: 1},
		"a right one, frozen":      {freeze: 1},
		"three at a time":          {mode: "waits", freeze: 1, change: threeAtATime, most: 3},
		"it ignores its context":   {mode: "ignores its context", freeze: 1, says: []string{"with the lock, 1 late: ", "\n  event ", `(key "counter", fence `, " ms after the grant of event "}},
		"it has fences":            {mode: "ignores its context", freeze: 1, change: func(s *settings) { s.fenced = true }},
		"it answers success":       {mode: "answers success", freeze: 1, says: []string{`was answered with success, but the last run for the key "counter" has the outcome lost`}},
		"an event without a lock":  {mode: "guards every other event", says: []string{"4 of 8 events were answered with success without a line of the guard in the log, the first is event 2"}},
		"a read-write lock":        {mode: "writers among readers"},
		"writers in another store": {mode: "writers elsewhere", says: []string{" critical sections ran beside more of the same key than their lock allows"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := counter(t, c.mode)
			s.environments, s.events, s.freeze, s.timeout = 3, 8, c.freeze, 30*time.Second
			if c.change != nil {
				c.change(&s)
			}
			p := phaseOf(t, s)
			assert.Equal(t, []int{s.freeze, s.kill}, []int{p.done(freeze), p.done(kill)})
			assert.Equal(t, s.events, p.succeeded)
			err := p.verdict()
			if len(c.says) == 0 {
				assert.NoError(t, err)
			}
			for _, says := range c.says {
				assert.ErrorContains(t, err, says)
			}
			if name == "a right one, frozen" || s.kill > 0 {
				assert.Positive(t, p.sentAgain, "its event comes again")
			}
			if c.most > 0 {
				assert.Equal(t, c.most, p.most)
			}
			if strings.HasPrefix(c.mode, "writers") {
				assert.Greater(t, p.most, 1, "readers are at work together")
			}
		})
	}
}

// threeAtATime: eight environments, three at a time, also when holders are frozen and killed.
func threeAtATime(s *settings) {
	s.environments, s.events, s.kill = 8, 32, 1
	s.env = append(s.env, "LOCK_MAX_HOLDERS=3")
}

// counter are the settings of a function with a lock, whose mode is what is wrong with it.
func counter(t *testing.T, mode string) settings {
	t.Helper()
	file := filepath.Join(t.TempDir(), "counter")
	require.NoError(t, os.WriteFile(file, []byte("0"), 0o600))
	s := echo(t, `{"n": {{n}}}`)
	s.function = build(t, "cmd/lockctl/internal/locallambda/testdata/counter")
	s.env = []string{"MODE=" + mode, "COUNTER=" + file, "LOCK_WAIT=10s"}
	return s
}

// phaseOf runs the phase with the lock.
func phaseOf(t *testing.T, s settings) phase {
	t.Helper()
	ctx := testContext(t)
	require.NoError(t, s.validate())
	event, err := readEvent(s.event)
	require.NoError(t, err)
	target, err := openTarget(ctx, s.storeURL(), s.needsRedis(), s.getenv)
	require.NoError(t, err)
	t.Cleanup(target.close)
	d := driver{settings: s, target: target, event: event, out: t.Output()}
	p, err := d.phase(ctx, "with the lock", "withdraw", s.function)
	require.NoError(t, err)
	return p
}

// TestStoreThatNobodyHas: lockctl hands a store that it does not know to the function.
func TestStoreThatNobodyHas(t *testing.T) {
	t.Parallel()
	s := sample(t)
	s.store, s.before, s.after = "etcd://host", "", ""
	err := run(testContext(t), s, io.Discard)
	require.ErrorContains(t, err, `withdraw does not start: LOCK_URL: lockstore: no store for the scheme "etcd"; linked here: dynamodb, `)
}

// TestDynamoDB: functions get what they need for a store with variables of its own. That the test would see a
// lock that does nothing, TestRun shows.
func TestDynamoDB(t *testing.T) {
	endpoint := testservers.DynamoDB(t)
	s := sample(t)
	s.store, s.env = testservers.Table(t, endpoint, "locks", "key"), []string{"ACCOUNTS_URL=dynamodb://locks-accounts?endpoint=" + endpoint}
	p := phaseOf(t, s)
	assert.NoError(t, p.verdict())
	assert.Equal(t, s.events, p.succeeded)
	assert.Equal(t, row{"lost updates", "0"}, p.rows[2])
	for i := 1; i < len(p.sections); i++ {
		assert.Greater(t, p.sections[i].fence, p.sections[i-1].fence, "fences grow from grant to grant")
	}
}

// TestInterrupted: a Ctrl-C in the middle ends the run at once, and goleak sees
// whatever would be left.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*settings){
		"while events are sent": func(s *settings) { s.events = mostEvents },
		"while one is frozen": func(s *settings) { // after 2 answers
			s.environments, s.events, s.freeze, s.timeout = 1, 4, 1, mostTime
			s.env = append(s.env, "LOCK_TTL=10m")
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(testContext(t))
			s := counter(t, "")
			change(&s)
			go func() {
				defer cancel()
				_, file, _ := strings.Cut(s.env[1], "=")
				for ctx.Err() == nil {
					if n, err := os.ReadFile(file); err == nil && string(n) == "2" {
						break
					}
					_ = pause.For(ctx, time.Millisecond)
				}
				_ = pause.For(ctx, time.Second) // most often one is frozen by then
			}()
			require.ErrorIs(t, run(ctx, s, t.Output()), context.Canceled)
			assert.NoFileExists(t, s.picture)
		})
	}
}

// batches are the settings of a function that a queue feeds, with the bodies of a batch.
func batches(t *testing.T, bodies ...string) settings {
	s := sample(t)
	s.function = build(t, "functions/settle")
	s.events, s.after, s.env = 12, "", append(s.env, "LOCK_WAIT=10ms")
	var records []string
	for i, body := range bodies {
		records = append(records, fmt.Sprintf(`{"messageId": "{{n}}-%d", "body": %q, "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:queue"}`, i, body))
	}
	s.event = eventFile(t, `{"Records": [`+strings.Join(records, ",")+`]}`)
	return s
}

// A batch whose lock is busy is sent again. One with a message that can never be done is not:
// it is told at once, with the cause.
func TestBatches(t *testing.T) {
	good := `{"account": "demo-{{run}}", "id": "s-{{n}}", "amount": 500}`
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		p := phaseOf(t, batches(t, good))
		require.NoError(t, p.verdict())
		assert.Positive(t, p.busy)
	})
	t.Run("poison", func(t *testing.T) {
		t.Parallel()
		var b bytes.Buffer
		s := batches(t, `{"account": "demo-{{run}}", "id": "p-{{n}}", "amount": -5}`)
		err := run(testContext(t), s, &b)
		require.ErrorContains(t, err, "with the lock, 12 of 12 events failed for good, the first with BatchItemFailure: item \"1-0\": the key function failed: ")
		require.ErrorContains(t, err, `amount: is "-5"`)
		require.ErrorContains(t, err, "change --event or the function")
		assert.Regexp(t, `\nwith the lock: event \d+ failed for good with BatchItemFailure: item "\d+-0": the key function failed: (?s:.*)\nwith the lock: 12 events in `, b.String(), "the first one is told at once")
		assert.Contains(t, b.String(), "\n  busy, tried again                            0\n")
	})
}

func TestFunctionThatFails(t *testing.T) {
	t.Parallel()
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "go.mod"), []byte("module x\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(broken, "main.go"), []byte("package main\nfunc main() { x }\n"), 0o600))
	for name, c := range map[string]struct {
		event  string
		change func(*settings)
		says   []string // the error
		prints string
	}{
		"an error": {
			event:  `{"do": "named"}`,
			says:   []string{"with the lock, 4 of 4 events failed for good, the first with NamedError: named: as asked"},
			prints: "\n  failed: NamedError                           4\n",
		},
		"an exit": {event: `{"do": "exit"}`, says: []string{"the first with Runtime.ExitError: RequestId: "}},
		"a timeout": {
			event: `{"do": "hang"}`, change: func(s *settings) { s.timeout, s.events = time.Second, 1 },
			says: []string{"the first with Sandbox.Timedout: ", "\n  log: hanging 0"},
		},
		"no report lines": {
			event:  `{"do": "echo", "n": {{n}}}`,
			says:   []string{"no report line was found", "guard.LogReports"},
			prints: "\n  overlapping sections                         -\n",
		},
		"no report lines of the build without the lock": {
			event: `{"do": "echo", "n": {{n}}}`, change: func(s *settings) { s.compare = s.function },
			prints: "The build of --compare logged no critical sections, so nothing is known of its overlaps. Let it log one line for each",
		},
		"no start": {
			event: `{}`, change: func(s *settings) { s.env = []string{"FAIL_INIT=1"} },
			says: []string{"function does not start: 2"},
		},
		"a package that does not compile": {
			event: `{}`, change: func(s *settings) { s.function = broken },
			says: []string{"undefined: x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := echo(t, c.event)
			if c.change != nil {
				c.change(&s)
			}
			var text bytes.Buffer
			err := run(testContext(t), s, &text)
			require.Error(t, err)
			for _, says := range c.says {
				require.ErrorContains(t, err, says)
			}
			assert.Equal(t, exit.No, exit.Status(err))
			if c.prints != "" {
				assert.Contains(t, text.String(), c.prints)
			}
			assert.NotContains(t, text.String(), "try again")
		})
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	s := echo(t, `{"do": "echo"}`)
	s.env = []string{"PLACE={{redis}}/x", "LOCK_WAIT=1500ms"}
	s.after = `echo "run: $LOCKCTL_RUN"; echo no row; echo "env: $LOCK_URL $PLACE $LOCK_WAIT"; echo "good: $LOCKCTL_SUCCEEDED"`
	dir := t.TempDir()
	s.before = `printf %s "$LOCKCTL_RUN" > ` + dir + "/run"
	p := phaseOf(t, s)
	text, err := os.ReadFile(filepath.Join(dir, "run"))
	require.NoError(t, err)
	require.Len(t, p.rows, 3)
	assert.Equal(t, row{"run", string(text)}, p.rows[0])
	assert.Regexp(t, `^redis://127\.0\.0\.1:\d+ redis://127\.0\.0\.1:\d+/x 1500ms$`, p.rows[1].value)
	assert.Equal(t, row{"good", "4"}, p.rows[2])

	for name, c := range map[string]struct {
		change func(*settings)
		want   string
	}{
		"before":            {func(s *settings) { s.before = "echo is missing >&2; exit 3" }, `--before: "echo is missing >&2; exit 3": exit status 3: is missing`},
		"after, with a row": {func(s *settings) { s.after = "echo 'sum: 3'; echo 4 is right >&2; exit 5" }, `with the lock, --after: "echo 'sum: 3'; echo 4 is right >&2; exit 5": exit status 5: 4 is right`},
	} {
		t.Run(name, func(t *testing.T) {
			s := echo(t, `{"do": "echo"}`)
			c.change(&s)
			err := run(testContext(t), s, io.Discard)
			require.ErrorContains(t, err, c.want)
			assert.Equal(t, exit.No, exit.Status(err))
		})
	}
}

// The commands of README.md, and of a module that is not ours, do what the pages say.
func TestCommandsOfTheExamples(t *testing.T) {
	for page, dir := range map[string]string{"README.md": "examples/invoice", "examples/own-function/README.md": "examples/own-function"} {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(repository, page))
			require.NoError(t, err)
			t.Chdir(filepath.Join(repository, dir))
			commands := 0
			for line := range strings.Lines(string(text)) {
				_, arguments, found := strings.Cut(line, "build/lockctl local ")
				if !found || !strings.HasPrefix(line, "    ") {
					continue
				}
				commands++
				var out bytes.Buffer
				cmd := command(filepath.Join(t.TempDir(), "timeline.svg"))
				cmd.SetArgs(append([]string{"-c", "3", "-n", "20"}, strings.Fields(strings.ReplaceAll(arguments, "'", ""))...))
				cmd.SetOut(&out)
				require.NoError(t, cmd.ExecuteContext(testContext(t)), out.String())
				assert.Regexp(t, `succeeded .* 20 of 20\n`, out.String())
				assert.Regexp(t, `overlapping sections .* 0\n`, out.String())
			}
			assert.Positive(t, commands)
		})
	}
}
