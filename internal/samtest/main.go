// Command samtest runs the functions as the SAM CLI does, in Docker, against a
// Redis and a DynamoDB Local on this machine. Run it at the top of the
// repository:
//
//	go run ./internal/samtest
//
// It validates and builds template.yaml, sends every event of events/ through
// sam local invoke and compares the answer with the expected one, sends those
// of the HTTP API through sam local start-api with curl, and makes twelve
// withdrawals at once through sam local start-lambda. The functions, tables and
// variables are those of the template.
//
// It installs the SAM CLI and, where no Docker engine answers, an engine, which
// it starts with a data root, a socket and a process of its own and stops in
// the end. What can be kept is in the user's cache; nothing else is left.
//
// Where Docker cannot run it says why and ends with status 0, or 1 where the
// environment variable CI is set. It ends with status 1 when anything differs.
package main

import (
	"context"
	"errors"
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

// bound ends a run that hangs.
const bound = 8 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	bounded, cancel := context.WithTimeout(ctx, bound)
	err := run(bounded, &screen{out: os.Stdout}, os.Getenv)
	cancel()
	interrupted := ctx.Err() != nil
	stop()
	status, text := ending(err, interrupted, os.Getenv("CI") != "")
	if text != "" {
		fmt.Fprintln(os.Stderr, "samtest:", text)
	}
	os.Exit(status)
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

func run(ctx context.Context, out *screen, getenv func(string) string) (err error) {
	began := time.Now()
	t, err := readTemplate("template.yaml")
	if err != nil {
		return fmt.Errorf("run this at the top of the repository: %w", err)
	}
	fixtures, err := readFixtures("events", t)
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
	trial := trial{sam: s, template: t, fixtures: fixtures, clerk: clerk, out: out}
	var reports []*report
	for _, start := range []func() (*store, error){
		func() (*store, error) { return startRedis(ctx, engine, dir) },
		func() (*store, error) { return startDynamo(ctx, t, cache, dir) },
	} {
		store, err := start()
		if err != nil {
			return err
		}
		r, err := trial.on(ctx, store)
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
