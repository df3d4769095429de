package lambdatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

var errProcessEnded = errors.New("the process ended")

// process is one run of the binary and the Runtime API that it talks to.
type process struct {
	cmd    *exec.Cmd
	lines  *lineReader
	api    *api
	server *http.Server
	served chan struct{} // closed when the server's loop has returned

	ended  chan struct{} // closed when the process is reaped
	endErr error         // set before ended is closed
}

func startProcess(config Config, logs *logBuffer) (*process, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the Runtime API cannot listen: %w", err)
	}
	p := &process{
		api:    newAPI(config),
		served: make(chan struct{}),
		ended:  make(chan struct{}),
	}
	p.server = &http.Server{Handler: p.api.handler()}
	go func() {
		defer close(p.served)
		_ = p.server.Serve(listener) // always ErrServerClosed here: only close ends it
	}()

	p.cmd = exec.Command(config.Binary)
	p.cmd.Env = append(environment(config, listener.Addr().String()), config.Env...)
	// One pipe for both: the platform's log keeps their order too.
	lines, forProcess, err := newLineReader(logs)
	if err != nil {
		close(p.ended)
		p.close()
		return nil, fmt.Errorf("the binary's output cannot be read: %w", err)
	}
	p.lines = lines
	p.cmd.Stdout, p.cmd.Stderr = forProcess, forProcess
	p.cmd.SysProcAttr = sysProcAttr()
	p.api.started = time.Now()
	err = p.cmd.Start()
	_ = forProcess.Close() // the process has its own
	if err != nil {
		lines.close()
		close(p.ended)
		p.close()
		if errors.Is(err, syscall.ENOEXEC) {
			err = fmt.Errorf("%w: it is built for another machine than this one, which is %s/%s", err, runtime.GOOS, runtime.GOARCH)
		}
		return nil, fmt.Errorf("the binary cannot be started: %w", err)
	}
	go func() {
		p.endErr = p.cmd.Wait()
		lines.close()
		p.api.end()
		close(p.ended)
	}()
	return p, nil
}

// environment is what the platform sets for a function on provided.al2023.
func environment(config Config, api string) []string {
	env := []string{
		"AWS_LAMBDA_RUNTIME_API=" + api,
		"AWS_LAMBDA_FUNCTION_NAME=" + config.Name,
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE=128",
		"AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/" + config.Name,
		"AWS_LAMBDA_LOG_STREAM_NAME=local",
		"AWS_REGION=us-east-1",
		"AWS_DEFAULT_REGION=us-east-1",
		"AWS_ACCESS_KEY_ID=local",
		"AWS_SECRET_ACCESS_KEY=local",
		"LAMBDA_TASK_ROOT=/var/task",
		"_HANDLER=bootstrap",
		"TZ=:UTC",
		"LANG=en_US.UTF-8",
		"PATH=/usr/local/bin:/usr/bin:/bin",
	}
	if config.MaxConcurrency > 1 {
		return append(env, fmt.Sprintf("AWS_LAMBDA_MAX_CONCURRENCY=%d", config.MaxConcurrency), "AWS_LAMBDA_INITIALIZATION_TYPE=lambda-managed-instances")
	}
	return append(env, "AWS_LAMBDA_INITIALIZATION_TYPE=on-demand")
}

func (p *process) waitReady(ctx context.Context) error {
	timer := time.NewTimer(initTimeout)
	defer timer.Stop()
	select {
	case <-p.api.polled:
		return nil
	case <-p.ended:
		return fmt.Errorf("the process ended before it asked for an invocation: %w", exitError(p.endErr))
	case <-timer.C:
		return fmt.Errorf("the process did not ask for an invocation within %v", initTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// handOver waits until the process takes the invocation.
func (p *process) handOver(ctx context.Context, inv *invocation) error {
	if err := p.api.reserve(inv); err != nil {
		return err
	}
	select {
	case p.api.queue <- inv:
		<-inv.taken
		return nil
	case <-p.ended:
		p.api.forget(inv)
		return errProcessEnded
	case <-ctx.Done():
		p.api.forget(inv)
		return ctx.Err()
	}
}

// supervise waits for the answer to an invocation that was handed over, and
// enforces the timeout. It returns when the slot is free again.
func (p *process) supervise(inv *invocation, config Config) {
	timer := time.NewTimer(time.Until(inv.killAt))
	defer timer.Stop()
	select {
	case <-inv.done:
		return
	case <-p.ended:
		if inv.claim() {
			inv.finish(Result{
				ErrorType:    ErrorExit,
				ErrorMessage: fmt.Sprintf("RequestId: %s Error: Runtime exited with error: %v", inv.event.ID, exitError(p.endErr)),
			})
		}
		return
	case <-timer.C:
	}
	message := fmt.Sprintf("RequestId: %s Error: Task timed out after %.2f seconds", inv.event.ID, config.Timeout.Seconds())
	if !inv.claim() {
		return
	}
	result := Result{ErrorType: ErrorTimeout, ErrorMessage: message}
	if config.MaxConcurrency > 1 {
		inv.finish(result)
		select {
		case <-inv.abandoned:
		case <-p.ended:
		}
		return
	}
	p.shutdown()
	inv.finish(result)
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error means that it has ended already
	<-p.ended
}

func (p *process) shutdown() {
	if p.api.registered() && p.cmd.Process.Signal(syscall.SIGTERM) == nil {
		timer := time.NewTimer(shutdownGrace)
		defer timer.Stop()
		select {
		case <-p.ended:
		case <-timer.C:
		}
	}
	p.kill()
}

// close ends the Runtime API of a process that has ended.
func (p *process) close() {
	p.api.end()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if p.server.Shutdown(ctx) != nil {
		_ = p.server.Close()
	}
	<-p.served
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("lambdatest: %v: %w", sig, err)
	}
	return nil
}

// exitError is never nil, so that a message can end with it.
func exitError(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}
