// Command samtest runs the functions as the SAM CLI does, in Docker, against a
// Redis and a DynamoDB Local on this machine. Run it at the top of the
// repository:
//
//	go run ./internal/samtest
//
// It validates and builds template.yaml, sends every event of events/ through
// sam local invoke, or on the second store start-lambda, and compares the answer
// with the expected one, sends those of the HTTP API through sam local start-api
// with curl, borrows a lock there from PUT to DELETE, also by the clients in
// clients/, and makes twelve withdrawals at once through sam local start-lambda.
// It builds and invokes examples/own-function, too.
// The functions, tables and variables are those of the template.
//
// It installs the SAM CLI and, where no Docker engine answers, an engine, which
// it starts with a data root, a socket and a process of its own and stops in
// the end. What can be kept is in the user's cache; nothing else is left.
//
// Where Docker cannot run it says why and ends with status 0, or 1 where the
// environment variable CI is set. It ends with status 1 when anything differs.
//
// # A deployed stack
//
//	go run ./internal/samtest -stack NAME
//
// does the same with the functions, the API and the tables of a stack in AWS: it
// asks CloudFormation for their names, invokes the functions, and signs its
// requests to the API. It replaces the accounts 7 and 9 of the stack, and the
// functions take the locks of the events, and some in shared/, which all callers
// must have in LockCallers; nothing else is written. It fails before that where
// account 8 exists, which the events expect not to.
//
// A cache is out of its reach: with LockStore=elasticache what needs a lock that
// another holds is shown as not tried. So is a cold start where an environment
// was there already, which Lambda tells in the log of an invocation.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const usage = `Runs every event of events/ and compares the answers, under sam local or, with
-stack, in AWS. There it replaces the accounts 7 and 9 of the stack and takes the
locks of the events, of which all callers must have shared/ in LockCallers. Run it
at the top of the repository.

With -stack:
%s

`

// bound ends a run that hangs.
const bound = 15 * time.Minute

func main() {
	run, err := command(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2) // it was said why
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	bounded, cancel := context.WithTimeout(ctx, bound)
	err = run(bounded, &screen{out: os.Stdout}, os.Getenv)
	cancel()
	interrupted := ctx.Err() != nil
	stop()
	status, text := ending(err, interrupted, os.Getenv("CI") != "")
	if text != "" {
		fmt.Fprintln(os.Stderr, "samtest:", text)
	}
	os.Exit(status)
}

// command is the run that the arguments ask for. What is wrong with them is
// written to out.
func command(args []string, out io.Writer) (run func(context.Context, *screen, func(string) string) error, err error) {
	run = runLocally
	flags := flag.NewFlagSet("samtest", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprintf(out, usage, needs)
		flags.PrintDefaults()
	}
	flags.Func("stack", "run the functions of this deployed CloudFormation `stack`, not sam local", func(name string) error {
		if name == "" {
			return errors.New("want the name of a stack, as in make test-aws STACK=lambdalock")
		}
		run = func(ctx context.Context, out *screen, getenv func(string) string) error {
			return runDeployed(ctx, out, getenv, name)
		}
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		err = fmt.Errorf("samtest: %q is no argument here; see -help", flags.Arg(0))
		fmt.Fprintln(out, err)
	}
	return run, err
}

// ending is the exit status and the last words of a run.
func ending(err error, interrupted, ci bool) (status int, text string) {
	noEngine, ok := errors.AsType[*noEngineError](err)
	switch {
	case err == nil:
		return 0, ""
	case interrupted:
		return 130, "interrupted; everything that was started is stopped"
	case ok && !ci:
		return 0, "nothing was tested: " + noEngine.Error()
	default:
		return 1, err.Error()
	}
}

// screen is where the run tells what it does.
type screen struct {
	mu  sync.Mutex
	out io.Writer
}

func (s *screen) line(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format+"\n", args...)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// readAll reads what every run needs of the repository.
func readAll() (template, []fixture, error) {
	t, err := readTemplate("template.yaml")
	if err != nil {
		return t, nil, fmt.Errorf("run this at the top of the repository: %w", err)
	}
	fixtures, err := readFixtures("events", t)
	return t, fixtures, err
}

// runLocally runs the fixtures under sam local.
func runLocally(ctx context.Context, out *screen, getenv func(string) string) (err error) {
	began := time.Now()
	t, fixtures, err := readAll()
	if err != nil {
		return err
	}
	cache, err := cacheFolder(getenv)
	if err != nil {
		return err
	}
	built, err := filepath.Abs(filepath.Join("build", "sam"))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lambdalock-sam")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	engine, err := openEngine(ctx, out, cache, dir)
	if err != nil {
		return err
	}
	defer engine.stop()
	defer func() { err = errors.Join(err, engine.removeContainers(built)) }()
	if err := installAll(ctx, out); err != nil {
		return err
	}
	image, err := baseImage(ctx, out, engine, cache, dir)
	if err != nil {
		return err
	}
	s := &sam{
		program: filepath.Join(cache, "sam-"+samVersion, "bin", "sam"),
		engine:  engine, image: image, built: built, dir: dir, out: out, shown: map[string]bool{},
	}
	if err := s.validate(ctx); err != nil {
		return err
	}
	if err := s.build(ctx); err != nil {
		return err
	}
	clerk, err := buildDesk(ctx, dir)
	if err != nil {
		return err
	}
	trial := trial{template: t, fixtures: fixtures, clerk: clerk, out: out}
	var reports []*report
	for i, start := range []func() (*store, error){
		func() (*store, error) { return startRedis(ctx, engine, dir) },
		func() (*store, error) { return startDynamo(ctx, t, cache, dir) },
	} {
		store, err := start()
		if err != nil {
			return err
		}
		functions := local{s, store.variables(t, hostName)}
		invoke := step(trial.invoke)
		if i > 0 { // that each event can have a container of its own has been seen
			invoke = functions.warm(invoke)
		}
		r, err := trial.on(ctx, store, functions, invoke, trial.call, trial.crowd, trial.measure)
		if err == nil {
			err = s.example(ctx, t, store)
		}
		store.server.stop()
		if err := errors.Join(err, store.close()); err != nil {
			return err
		}
		reports = append(reports, r)
	}
	out.line("\n%s", table(fixtures, t, reports))
	out.line("  all in %s", seconds(time.Since(began)))
	return verdict(reports)
}

// cacheFolder is not below os.UserCacheDir, which is another folder than the
// install scripts' on macOS.
func cacheFolder(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "lambdalock"), nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".cache", "lambdalock"), err
}

// installAll installs everything but Docker.
func installAll(ctx context.Context, out *screen) error {
	for _, script := range []string{"install-redis.sh", "install-dynamodb.sh"} {
		if err := runScript(ctx, out, filepath.Join("internal", "testservers", script)); err != nil {
			return err
		}
	}
	return install(ctx, out, "sam")
}

func install(ctx context.Context, out *screen, what string) error {
	return runScript(ctx, out, filepath.Join("internal", "samtest", "install.sh"), what)
}

func runScript(ctx context.Context, out *screen, script string, args ...string) error {
	cmd := exec.CommandContext(ctx, "sh", append([]string{script}, args...)...)
	cmd.Stdout, cmd.Stderr = out.out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTime
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	return nil
}
