package lambdatest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"
)

// Config says what an environment runs. Binary is required.
type Config struct {
	// Binary is the path of the bootstrap, a program for this machine.
	Binary string
	// Env has variables of the function, each "NAME=value". They win over those of
	// the platform, which the process gets in any case: AWS_LAMBDA_..., AWS_REGION
	// (us-east-1), credentials that no real service takes. The process inherits
	// nothing else.
	Env []string
	// Name is the function's name; "" is "function".
	Name string
	// Timeout is that of one invocation; 0 is 3 seconds, as on Lambda.
	Timeout time.Duration
	// MaxConcurrency is how many invocations run at once in one process, as on
	// Lambda Managed Instances; 0 is 1.
	MaxConcurrency int
	// Log gets every line that the process writes, a Write for each; one above 64 KiB comes in pieces.
	// Environments that share a Log write at the same time. nil: nobody gets them.
	Log io.Writer
}

// Limits of this package.
const (
	initTimeout     = 30 * time.Second       // the platform allows 10 s, but its machine is not shared with a compiler
	shutdownGrace   = 500 * time.Millisecond // between SIGTERM and SIGKILL
	maxResponseSize = 6<<20 + 100            // bytes; larger answers are refused as the platform does
	maxLogLines     = 10_000
	maxLogLine      = 64 << 10
)

// InitError says that a process did not get as far as asking for its first
// invocation.
type InitError struct {
	Name     string
	Err      error
	LastLine string // what the process wrote last, which is mostly the reason
}

func (e *InitError) Error() string {
	return fmt.Sprintf("lambdatest: %s: %v; its last line: %q", e.Name, e.Err, e.LastLine)
}

func (e *InitError) Unwrap() error { return e.Err }

var errClosed = errors.New("lambdatest: the environment is closed")

// Environment is one execution environment. It is safe for concurrent use.
type Environment struct {
	config Config
	slots  chan struct{} // one per invocation that may run
	logs   *logBuffer

	closing sync.Mutex // of the one Close that takes all slots

	mu      chan struct{} // a mutex, for which a Send waits no longer than its context: guards the fields below, and starts of processes
	process *process
	closed  bool
}

func newEnvironment(config Config) *Environment {
	return &Environment{
		config: config, slots: make(chan struct{}, config.MaxConcurrency), logs: newLogBuffer(config.Log),
		mu: make(chan struct{}, 1),
	}
}

// Event is one invocation.
type Event struct {
	Payload []byte
	// ID is the request id; "" is a new one. When Lambda repeats an asynchronous
	// invocation, the repeat has the id of the first try.
	ID string
	// Deadline is the deadline that the function is told, by the wall clock; zero is
	// the present time plus the timeout. The invocation ends at the timeout anyway.
	Deadline time.Time
}

// Result is what the caller of an invocation sees.
type Result struct {
	RequestID    string
	Payload      []byte // the answer, or the error's JSON
	ErrorType    string // "" when the function succeeded
	ErrorMessage string
	Duration     time.Duration // from hand-over to the answer
}

// Error types that the platform itself reports.
const (
	ErrorTimeout  = "Sandbox.Timedout"
	ErrorExit     = "Runtime.ExitError"
	ErrorTooLarge = "Function.ResponseSizeTooLarge"
)

// Start starts a process and waits until it asks for its first invocation. The
// context bounds the start only.
func Start(ctx context.Context, config Config) (*Environment, error) {
	if config.Binary == "" {
		return nil, errors.New("lambdatest: Config.Binary is empty")
	}
	if config.Timeout < 0 || config.MaxConcurrency < 0 {
		return nil, errors.New("lambdatest: Config.Timeout and Config.MaxConcurrency must not be negative")
	}
	if config.Name == "" {
		config.Name = "function"
	}
	if config.Timeout == 0 {
		config.Timeout = 3 * time.Second
	}
	config.MaxConcurrency = max(config.MaxConcurrency, 1)
	e := newEnvironment(config)
	if _, err := e.ready(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// StartAll starts n environments at the same time, as the platform does for n
// requests at once, and waits until all of them are ready. If one of them cannot
// start, StartAll closes the others and returns that error.
func StartAll(ctx context.Context, n int, config Config) (Envs, error) {
	envs, errs := make(Envs, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { envs[i], errs[i] = Start(ctx, config) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil { // mostly all of them say the same
			return nil, errors.Join(err, envs.Close())
		}
	}
	return envs, nil
}

// Envs are environments of one function. There is no balancing between them: a
// test sends each event to the environment that it wants.
type Envs []*Environment

// Close closes all environments.
func (e Envs) Close() error {
	var errs []error
	for _, env := range e {
		if env != nil {
			errs = append(errs, env.Close())
		}
	}
	return errors.Join(errs...)
}

// Invoke runs one invocation with a new request id.
func (e *Environment) Invoke(ctx context.Context, payload []byte) (Result, error) {
	return e.Send(ctx, Event{Payload: payload})
}

// Send runs one invocation. A function's failure, its timeout and the end of its
// process are results with an ErrorType; the error says that the invocation was
// never handed over, or that the context ended while it was running. In the
// second case the invocation runs on, as it does when a client hangs up.
//
// When Send returns an answer, Logs and Config.Log have every line that the process wrote
// before the answer.
func (e *Environment) Send(ctx context.Context, event Event) (Result, error) {
	if event.ID == "" {
		event.ID = NewRequestID()
	}
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
	inv := newInvocation(event, e.config.Timeout)
	var p *process
	for {
		var err error
		p, err = e.ready(ctx)
		if err == nil {
			err = p.handOver(ctx, inv)
		}
		if errors.Is(err, errProcessEnded) {
			continue // it ended before it took the invocation, so another may have it
		}
		if err != nil {
			<-e.slots
			return Result{}, err
		}
		go func() {
			p.supervise(inv, e.config)
			<-e.slots
		}()
		break
	}
	select {
	case <-inv.done:
		p.lines.drain()
		return inv.result, nil
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

// ready returns a process that has polled, and starts one if none is running.
func (e *Environment) ready(ctx context.Context) (*process, error) {
	select {
	case e.mu <- struct{}{}:
		defer func() { <-e.mu }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if e.closed {
		return nil, errClosed
	}
	if e.process != nil && !e.process.hasEnded() {
		return e.process, nil
	}
	if e.process != nil {
		e.process.close()
		e.process = nil
	}
	p, err := startProcess(e.config, e.logs)
	if err != nil {
		return nil, fmt.Errorf("lambdatest: %w", err)
	}
	if err := p.waitReady(ctx); err != nil {
		p.kill()
		p.close()
		return nil, &InitError{e.config.Name, err, e.logs.last()}
	}
	e.process = p
	return p, nil
}

var errNoProcess = errors.New("lambdatest: no process is running")

func (e *Environment) current() (*process, error) {
	e.mu <- struct{}{}
	defer func() { <-e.mu }()
	if e.process == nil || e.process.hasEnded() {
		return nil, errNoProcess
	}
	return e.process, nil
}

// Kill ends the process with SIGKILL and returns when it is gone. Its
// invocations end with ErrorExit. The next invocation starts a new process.
func (e *Environment) Kill() error {
	p, err := e.current()
	if err != nil {
		return err
	}
	p.kill()
	return nil
}

// Shutdown ends the process as the platform does when it no longer needs the
// environment: with SIGTERM and 500 ms of grace if the process registered an
// extension, with SIGKILL at once if not. It returns when the process is gone.
func (e *Environment) Shutdown() error {
	p, err := e.current()
	if err != nil {
		return err
	}
	p.shutdown()
	return nil
}

// Freeze stops the process with SIGSTOP, also in the middle of an invocation: it
// runs nothing until Thaw. The function's timeout still kills it, unless MaxConcurrency is above 1. On Linux, Freeze returns
// when all threads have stopped, and Logs and Config.Log have every line that it has written; elsewhere
// threads may run on for a moment.
//
// A process that is stopped in this way sees that time went by: both its wall
// clock and its monotonic clock run on. On Lambda the monotonic clock of a frozen
// environment may stand still, so a function that passes a test with Freeze has
// not shown that it can do without the wall clock.
func (e *Environment) Freeze() error {
	p, err := e.current()
	if err != nil {
		return err
	}
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for range 1000 {
		if stopped(p.pid()) {
			p.lines.drain()
			return nil
		}
		select {
		case <-p.ended:
			return errNoProcess
		case <-time.After(time.Millisecond):
		}
	}
	return errors.New("lambdatest: the process still runs a second after SIGSTOP")
}

// Thaw continues a process after Freeze.
func (e *Environment) Thaw() error {
	p, err := e.current()
	if err != nil {
		return err
	}
	return p.signal(syscall.SIGCONT)
}

// PID is the process's id, or 0 when none is running.
func (e *Environment) PID() int {
	p, err := e.current()
	if err != nil {
		return 0
	}
	return p.pid()
}

// InitDuration is the time from the start of the present process to its first
// poll, on this machine's monotonic clock.
func (e *Environment) InitDuration() time.Duration {
	e.mu <- struct{}{}
	defer func() { <-e.mu }()
	if e.process == nil {
		return 0
	}
	return e.process.api.polledAt.Sub(e.process.api.started)
}

// Logs returns the last lines that the environment's processes wrote, oldest
// first, at most 10,000.
func (e *Environment) Logs() []string { return e.logs.all() }

// WaitLog waits for a line that match accepts, also among those already
// written, and returns it.
func (e *Environment) WaitLog(ctx context.Context, match func(line string) bool) (string, error) {
	return e.logs.wait(ctx, match)
}

// Close ends the process with SIGKILL, and returns when the process and
// everything that served it is gone. A second Close returns nil.
func (e *Environment) Close() error {
	e.mu <- struct{}{}
	p := e.process
	e.process, e.closed = nil, true
	<-e.mu
	if p != nil {
		p.kill()
		p.close()
	}
	e.closing.Lock()
	defer e.closing.Unlock()
	for range cap(e.slots) {
		e.slots <- struct{}{} // every invocation has been answered
	}
	for range cap(e.slots) {
		<-e.slots
	}
	return nil
}
