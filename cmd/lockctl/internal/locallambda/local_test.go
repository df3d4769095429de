package locallambda

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
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

// counted is the number in the file of a counter.
func counted(s settings) string {
	text, _ := os.ReadFile(strings.TrimPrefix(s.env[1], "COUNTER=")) // it is there
	return string(text)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// The commands of README.md, of make run and of a module that is not ours do what the pages say.
func TestCommandsOfThePages(t *testing.T) {
	makeRun := exec.CommandContext(t.Context(), "make", "--dry-run", "run")
	makeRun.Dir = repository
	recipe, err := makeRun.Output()
	require.NoError(t, err)
	page := func(name string) string {
		text, err := os.ReadFile(filepath.Join(repository, name))
		require.NoError(t, err)
		return string(text)
	}
	for name, c := range map[string]struct {
		text, dir string
		flags     []string
		succeeded string
	}{
		"README.md":                       {strings.ReplaceAll(page("README.md"), "\\\n", " "), "examples/invoice", []string{"-c", "3", "-n", "20"}, "20 of 20"},
		"examples/own-function/README.md": {page("examples/own-function/README.md"), "examples/own-function", []string{"-c", "3", "-n", "20"}, "20 of 20"},
		"examples/reindex/README.md":      {page("examples/reindex/README.md"), "examples/reindex", []string{"-c", "3", "-n", "20"}, "20 of 20"},
		"make run":                        {strings.ReplaceAll(string(recipe), "\\\n", " "), ".", nil, "200 of 200"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := "FOLDER=" + t.TempDir()
			commands := regexp.MustCompile(`(?m)^(?:    .*/)?build/lockctl (local .*)$`).FindAllStringSubmatch(c.text, -1)
			require.NotEmpty(t, commands)
			for _, line := range commands {
				words, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+regexp.MustCompile(`FOLDER=[^ ']*`).ReplaceAllString(line[1], folder)).Output()
				require.NoError(t, err)
				var out bytes.Buffer
				picture := filepath.Join(t.TempDir(), "made", "timeline.svg")
				args := append(strings.Split(strings.TrimSpace(string(words)), "\n")[1:], c.flags...)
				for i, arg := range args { // a file of the folder in which the page runs it
					if file := filepath.Join(repository, c.dir, arg); exists(file) {
						args[i] = file
					}
				}
				cmd := command(picture)
				cmd.SetArgs(args)
				cmd.SetOut(&out)
				require.NoError(t, cmd.ExecuteContext(testContext(t)), out.String())
				text := out.String()
				assert.Regexp(t, `succeeded .* `+c.succeeded+`\n`, text)
				assert.Regexp(t, `overlapping sections .* 0\n`, text)
				if name == "make run" {
					assert.Regexp(t, `(?s)^200 events for invoice, 8 Lambda environments at once, on an embedded Redis at\nredis://127\.0\.0\.1:.*built invoice in .*\n  invoices stored +1?\d\d +200\n`, text)
					assert.NotContains(t, text, "no critical sections overlapped")
					svg, err := os.ReadFile(picture)
					require.NoError(t, err)
					assert.GreaterOrEqual(t, bytes.Count(svg, []byte("<title>env ")), 2*200)
					assert.Contains(t, string(svg), "invoices stored: 200")
					for line := range strings.Lines(text) {
						assert.True(t, len(line) <= 81 || strings.Contains(line, picture), line)
					}
				}
			}
		})
	}
}

// TestPrograms: what is wrong with a program is in the verdict, named by what the program logs and by what lockctl did.
func TestPrograms(t *testing.T) {
	slots := make(chan struct{}, 4) // each is several processes and a Redis, and all together starve one another
	for name, c := range map[string]struct {
		mode   string
		freeze int
		change func(*settings)
		says   []string // the verdict; none: there is nothing to say
		most   int      // at once; 0 is not looked at
	}{
		"a right one":              {most: 1},
		"a right one, on DynamoDB": {most: 1, change: func(s *settings) { s.store = testservers.Table(t, testservers.DynamoDB(t), "locks", "key") }},
		"a right one, of a queue":  {mode: "queue", most: 1, change: func(s *settings) { s.event, s.env = eventFile(t, message("fine")), append(s.env, "LOCK_WAIT=10ms") }},
		"a right one, frozen":      {freeze: 1},
		"its events coalesce":      {change: func(s *settings) { s.coalesce, s.events = true, 24 }},
		"those of a queue":         {mode: "queue", change: func(s *settings) { s.coalesce, s.events, s.event = true, 24, eventFile(t, message("fine")) }},
		"three at a time":          {mode: "waits", freeze: 1, change: threeAtATime, most: 3},
		"it ignores its context":   {mode: "ignores its context", freeze: 1, says: []string{"with the lock, 1 late: ", "\n  event ", `(key "counter", fence `, " ms after the grant of event "}},
		"it has fences":            {mode: "ignores its context", freeze: 1, change: func(s *settings) { s.fenced = true }},
		"it answers success":       {mode: "answers success", freeze: 1, says: []string{`was answered with success, but the last run for the key "counter" has the outcome lost`}},
		"an event without a lock":  {mode: "guards every other event", says: []string{"4 of 8 events were answered with success without a line of the guard in the log, the first is event 2"}},
		"a read-write lock":        {mode: "writers among readers"},
		"writers in another store": {mode: "writers elsewhere", says: []string{" critical sections overlapped others of the same key, more than their lock allows"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
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
			if c.most == 1 {
				assert.Equal(t, "8", counted(s), "each event has counted once")
			}
			if s.coalesce {
				assert.Greater(t, len(p.covered), s.events/2)
				assert.Less(t, len(p.sections), s.events/2)
				assert.Zero(t, p.busy+p.unasked)
			} else if c.mode == "queue" {
				assert.Positive(t, p.busy)
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

// message is an event of a queue.
func message(body string) string {
	return `{"Records": [{"messageId": "m-{{n}}", "body": "` + body + `", "eventSource": "aws:sqs"}]}`
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
	p, err := d.phase(ctx, function{name: "counter", path: s.function})
	require.NoError(t, err)
	return p
}

// TestInterrupted: a Ctrl-C in the middle ends the run at once, and goleak sees
// whatever would be left.
func TestInterrupted(t *testing.T) {
	for name, change := range map[string]func(*settings){
		"while events are sent": func(s *settings) { s.events = mostEvents },
		"while one is frozen": func(s *settings) { // after 2 answers
			s.environments, s.events, s.freeze, s.timeout = 1, 4, 1, mostTime
			s.env = append(s.env, "LOCK_TTL=10m")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(testContext(t))
			s := counter(t, "")
			change(&s)
			go func() {
				defer cancel()
				for ctx.Err() == nil && counted(s) != "2" {
					_ = pause.For(ctx, time.Millisecond)
				}
				_ = pause.For(ctx, time.Second) // most often one is frozen by then
			}()
			require.ErrorIs(t, run(ctx, s, t.Output()), context.Canceled)
			assert.NoFileExists(t, s.picture)
		})
	}
}

func TestRunsThatFail(t *testing.T) {
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "go.mod"), []byte("module x\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(broken, "main.go"), []byte("package main\nfunc main() { x }\n"), 0o600))
	for name, c := range map[string]struct {
		event  string
		change func(*settings)
		says   []string // the error
		prints string   // a regular expression
	}{
		"an error": {
			event:  `{"do": "named"}`,
			says:   []string{"with the lock, 4 of 4 events failed for good, the first with NamedError: named: as asked"},
			prints: "\n  failed: NamedError                           4\n",
		},
		"a timeout": {
			event: `{"do": "hang"}`, change: func(s *settings) { s.timeout, s.events = time.Second, 1 },
			says: []string{"the first with Sandbox.Timedout: ", "\n  log: hanging 0"},
		},
		"a message that can never be done": { // it is told at once, and not sent again
			event: message("poison"),
			change: func(s *settings) {
				event := s.event
				*s = counter(t, "queue")
				s.event = event
			},
			says:   []string{`with the lock, 4 of 4 events failed for good, the first with BatchItemFailure: item "m-1": the key function failed: it is poison`, "change --event or the function"},
			prints: `\nwith the lock: event \d+ failed for good with BatchItemFailure: item "m-\d": (?s:.*)\nwith the lock: 4 events in (?s:.*)\n  busy, tried again +0\n`,
		},
		"no report lines": {
			event:  `{"do": "echo", "n": {{n}}}`,
			says:   []string{"no report line was found", "guard.LogReports"},
			prints: "\n  overlapping sections                         -\n",
		},
		"no start": {
			event: `{}`, change: func(s *settings) { s.env = []string{"FAIL_INIT=1"} },
			says: []string{"function does not start: 2"},
		},
		"a store that neither lockctl nor the function has": {
			event: `{}`, change: func(s *settings) {
				*s = counter(t, "")
				s.store = "etcd://host"
			},
			says: []string{`counter does not start: LOCK_URL: lockstore: no store for the scheme "etcd"; linked here: dynamodb, `},
		},
		"a package that does not compile": {
			event: `{}`, change: func(s *settings) { s.function = broken },
			says: []string{"undefined: x"},
		},
		"no folder for the picture": { // nothing else is lost
			event: `{"do": "named"}`, change: func(s *settings) { s.picture = filepath.Join(s.event, "timeline.svg") },
			says:   []string{"with the lock, 4 of 4 events failed for good", "the picture: mkdir "},
			prints: `\n  failed: NamedError +4\n`,
		},
		"--before": {
			event: `{"do": "echo"}`, change: func(s *settings) { s.before = "echo is missing >&2; exit 3" },
			says: []string{`--before: "echo is missing >&2; exit 3": exit status 3: is missing`},
		},
		"--after, with a row": {
			event: `{"do": "echo"}`, change: func(s *settings) { s.after = "echo 'sum: 3'; echo 4 is right >&2; exit 5" },
			says:   []string{`with the lock, --after: "echo 'sum: 3'; echo 4 is right >&2; exit 5": exit status 5: 4 is right`},
			prints: `\n  sum +3\n`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
			assert.Regexp(t, c.prints, text.String())
			assert.NotContains(t, text.String(), "try again")
		})
	}
}

// A hook may leave a process. One that keeps the hook's output open is killed, and the error says what to do. One that a hook leaves that
// fails is killed, too.
func TestHookThatLeavesAProcess(t *testing.T) {
	t.Parallel()
	d := &driver{}
	for command, want := range map[string]string{
		"sleep 600 & echo said >&2":                         "it leaves a process that keeps its output open; redirect what that writes, as in: server >/dev/null 2>&1 &: said",
		"sleep 600 & echo said >&2; exit 3":                 "exit status 3: said",
		"sleep 600 >/dev/null 2>&1 & echo said >&2; exit 3": "exit status 3: said",
	} {
		fifo := filepath.Join(t.TempDir(), "fifo")
		require.NoError(t, syscall.Mkfifo(fifo, 0o600))
		left, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0) // its end comes when no process has it
		require.NoError(t, err)
		defer left.Close()
		_, err = d.hook(testContext(t), "--before", "exec 3> "+fifo+"; "+command)
		require.ErrorContains(t, err, want)
		_, err = io.ReadAll(left)
		require.NoError(t, err)
	}
	text, err := d.hook(testContext(t), "--before", "sleep 600 >/dev/null 2>&1 & echo $!")
	require.NoError(t, err)
	process, err := strconv.Atoi(strings.TrimSpace(text))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(process, syscall.SIGKILL), "it is there")
}

func TestVariablesOfHooks(t *testing.T) {
	t.Parallel()
	s := echo(t, `{"do": "echo"}`)
	s.env = []string{"PLACE={{redis}}/x", "LOCK_WAIT=1500ms"}
	file := filepath.Join(t.TempDir(), "run")
	s.before = `printf %s "$LOCKCTL_RUN" > ` + file
	s.after = `echo "run: $LOCKCTL_RUN"; echo no row; echo "env: $LOCK_URL $PLACE $LOCK_WAIT"; echo "good: $LOCKCTL_SUCCEEDED"`
	p := phaseOf(t, s)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Len(t, p.rows, 3)
	assert.Equal(t, row{"run", string(text)}, p.rows[0])
	assert.Regexp(t, `^redis://127\.0\.0\.1:\d+ redis://127\.0\.0\.1:\d+/x 1500ms$`, p.rows[1].value)
	assert.Equal(t, row{"good", "4"}, p.rows[2])
}
