package run

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
)

// guarded is a command under its guard process.
type guarded struct {
	process *os.Process
	orders  *os.File
	reports chan report // closed after the guard process has ended
	started bool        // the guard process was told to start the command
	ended   bool        // the guard process was told to end without a start
}

// startGuarded starts the guard process. It starts the command when guarded.start says so.
func startGuarded(command []string, env []string, killAfter time.Duration) (*guarded, error) {
	self, err := ownFile()
	if err != nil {
		return nil, err
	}
	itsOrders, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer itsOrders.Close()
	reports, itsReports, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer itsReports.Close()
	args := []string{guardCommand, fmt.Sprint(int64(killAfter))}
	for _, pipe := range []*os.File{itsOrders, itsReports} {
		args = append(args, fmt.Sprint(pipe.Fd()))
		// It keeps its number: cmd.ExtraFiles would take 3 and 4, which may be files for the command.
		if _, err := unix.FcntlInt(pipe.Fd(), unix.F_SETFD, 0); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(self, append(args, command...)...)
	cmd.Args[0] = guardName
	cmd.Env = append(withoutSecrets(os.Environ()), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// A process group of its own: what ends lockctl's group must not end the guard process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	adopt() // in a container the first process may be one that reaps nobody, so lockctl reaps the orphans of a guard process
	g := &guarded{orders: orders, reports: make(chan report, 16)}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	g.process = cmd.Process
	go func() {
		defer close(g.reports)
		defer reports.Close()
		for read := json.NewDecoder(reports); ; {
			var r report
			if read.Decode(&r) != nil {
				break
			}
			g.reports <- r
		}
		_ = cmd.Wait() // its exit status says nothing
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			g.reports <- report{Number: int(status.Signal())}
		}
	}()
	return g, nil
}

// withoutSecrets is an environment without what lets lockctl into the store: the command is
// there for other work, and what it starts or logs should not have a password of the locks.
func withoutSecrets(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == stores.Variable || name == stores.AuthVariable
	})
}

// send writes an order. It also continues the guard process, if somebody has stopped it.
func (g *guarded) send(o order) {
	_ = json.NewEncoder(g.orders).Encode(o) // its reports say that it has ended
	_ = g.process.Signal(syscall.SIGCONT)
}

func (g *guarded) start(until moment) {
	g.started = !g.ended
	g.extend(until)
}

func (g *guarded) extend(until moment) {
	if g.started {
		g.send(order{Until: until})
	}
}

// end ends the command: SIGTERM, then SIGKILL. A command that was not started is not started any more.
func (g *guarded) end() {
	if !g.started {
		g.ended = true
		_ = g.orders.Close() // the guard process ends
		return
	}
	g.send(order{End: true})
}
