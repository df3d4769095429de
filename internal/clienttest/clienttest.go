// Package clienttest tries the programs of clients/ on a lock service, wherever
// that is: each as a real process that guards a job of jobs/, with a wire between
// the two that can lose answers. What a trial needs of the service is its URL, and
// that everybody may use the keys below "shared/".
//
// Trials keep out of each other's way, so they may all run at once.
package clienttest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Service is a lock service that the examples are tried on.
type Service struct {
	URL string

	// TTL is that of the programs' leases, whole seconds, at least 10: more where a
	// request takes long.
	TTL time.Duration

	// Late is how long after its TTL the lock of a dead holder may still be held:
	// what the store tolerates, and what a slow machine takes.
	Late time.Duration
}

// Trial is one program in one situation.
type Trial struct {
	Name string // the program's file and the situation

	root    string
	service Service
	program program
	run     func(*scene)
}

// Trials returns them all. root is the top folder of the repository.
func Trials(root string, service Service) []Trial {
	var all []Trial
	for _, p := range programs {
		for _, s := range situations {
			if s.only == "" || strings.Contains(s.only, p.file) {
				all = append(all, Trial{p.file + " " + s.name, root, service, p, s.run})
			}
		}
	}
	return all
}

// Missing says why the program cannot run on this machine, or is nil.
func (t Trial) Missing(ctx context.Context) error { return t.program.missing(ctx) }

// Run runs the trial, for two TTLs mostly and nine at most. It ends all that it has
// started.
func (t Trial) Run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 9*t.service.TTL)
	defer cancel()
	root, err := filepath.Abs(t.root)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lambdalock-example")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	wire, err := newWire(t.service.URL)
	if err != nil {
		return err
	}
	defer wire.close()
	s := &scene{
		ctx: ctx, dir: dir, root: root, service: t.service, program: t.program, wire: wire,
		// Spelt in a URL each of these is escaped, and none twice.
		key: "shared/examples/" + rand.Text() + "/ü b%2F",
	}
	defer func() {
		for _, p := range s.started {
			p.kill()
		}
		switch f := recover().(type) {
		case nil:
		case failure:
			err = f.error
		default:
			panic(f)
		}
	}()
	t.run(s)
	return nil
}

// failure ends a trial.
type failure struct{ error }

// scene is what a trial has at hand. Its methods end the trial when something is
// not as it should be.
type scene struct {
	ctx       context.Context
	dir, root string
	service   Service
	program   program
	wire      *wire
	key       string
	started   []*process
}

func (s *scene) must(err error) {
	if err != nil {
		text := ""
		for i, p := range s.started {
			text += fmt.Sprintf("\nprocess %d: %s", i+1, p.tail())
		}
		panic(failure{fmt.Errorf("%w\nwire: %s%s", err, s.wire.tail(), text)})
	}
}

func (s *scene) want(ok bool, format string, args ...any) {
	if !ok {
		s.must(fmt.Errorf(format, args...))
	}
}

// start runs the program around the job, with further variables.
func (s *scene) start(env ...string) *process {
	cmd := s.program.command(s.root, s.key)
	cmd.Env = append(environment(), "LOCKS_URL="+s.wire.url, fmt.Sprintf("LOCKS_TTL=%.0f", s.service.TTL.Seconds()), "LOCKS_WAIT=0",
		"JOB_DIR="+s.dir, "JOB_STATUS=0", "PYTHONPATH="+filepath.Join(s.root, "clients"), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Env = append(cmd.Env, env...)
	p, err := startProcess(cmd)
	s.must(err)
	s.started = append(s.started, p)
	return p
}

// begun waits until the job runs, and returns the fence that it has.
func (s *scene) begun(p *process) int64 {
	lines, err := p.out.wait(s.ctx, p.ended, func(lines []string) bool { return last(lines, "begin ") != "" })
	s.want(err == nil, "the job does not begin: %v", err)
	fence, err := strconv.ParseInt(last(lines, "begin "), 10, 64)
	s.must(err)
	return fence
}

// exits waits until the process has ended with this status.
func (s *scene) exits(p *process, status int) {
	select {
	case <-p.ended:
	case <-s.ctx.Done():
		s.must(fmt.Errorf("it does not end: %w", s.ctx.Err()))
	}
	got := p.cmd.ProcessState.ExitCode()
	s.want(got == status, "it ended with status %d; want %d", got, status)
}

// lastTick is when the job last knew that the lock was its own.
func (s *scene) lastTick(p *process) time.Time {
	text := last(p.out.list(), "tick ")
	if text == "" {
		return time.Time{}
	}
	seconds, err := strconv.ParseFloat(text, 64)
	s.must(err)
	return time.UnixMicro(int64(seconds * 1e6))
}

// openGate lets the jobs end.
func (s *scene) openGate() { s.must(os.WriteFile(filepath.Join(s.dir, "gate"), nil, 0o600)) }

// free checks that the lock can be had at once, with a larger fence.
func (s *scene) free(fence int64) {
	a := s.put()
	s.want(a.status == 200, "the lock is not free: %d %s", a.status, a.text)
	s.want(a.Fence > fence, "the fence %d follows %d", a.Fence, fence)
	s.giveBack(a)
}

func (s *scene) busy() {
	a := s.put()
	s.want(a.status == 409, "the lock is not held: %d", a.status)
}

// takeOver gets the lock when its lease has ended. since is when the holder could
// renew it no more.
func (s *scene) takeOver(since time.Time, fence int64) answer {
	for {
		a := s.put()
		after := time.Since(since)
		if a.status == 200 {
			s.want(a.Fence > fence, "the fence %d follows %d", a.Fence, fence)
			return a
		}
		s.want(a.status == 409, "asked for a lock whose holder is gone: %d %s", a.status, a.text)
		s.want(after < s.service.TTL+s.service.Late, "the lock is still held after %v", after)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-s.ctx.Done():
			s.must(s.ctx.Err())
		}
	}
}

// put asks the service itself for the lock, not through the wire.
func (s *scene) put() answer { return s.ask("PUT", `{"ttl": 60}`, "Idempotency-Key", rand.Text()) }

// giveBack ends a lease that put got.
func (s *scene) giveBack(a answer) {
	got := s.ask("DELETE", "", "Lock-Token", a.Token)
	s.want(got.status == 204, "a lease cannot be given back: %d %s", got.status, got.text)
}

// state looks at the lock.
func (s *scene) state() answer { return s.ask("GET", "", "Accept", "application/json") }

func (s *scene) ask(method, body, header, value string) answer {
	a, err := do(s.ctx, method, s.service.URL+"/locks/"+spelt(s.key), http.Header{header: {value}}, []byte(body))
	s.must(err)
	return a
}

// until waits until the wire has seen enough.
func (s *scene) until(what string, enough func([]exchange) bool) []exchange {
	all, err := s.wire.seen.wait(s.ctx, nil, enough)
	s.want(err == nil, "waiting for %s: %v", what, err)
	return all
}
