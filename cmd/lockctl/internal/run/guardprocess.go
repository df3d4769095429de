package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

// The guard process is the parent of the command. It has no network and no lease. It knows
// until when the lease can be trusted, and ends the command's process group before that:
// also when lockctl is stopped or killed. lockctl writes orders to one pipe, and reads reports
// from another one, both as JSON. All other files that lockctl has inherited are for the command.

type order struct {
	Until  moment         // the end of trust, if it is not zero; the first one starts the command
	Signal syscall.Signal // for the command's process group; SIGTERM, SIGINT and SIGHUP once, and SIGKILL comes after them
	End    bool           // end the process group: SIGTERM, then SIGKILL. So it is if there are no more orders: lockctl was killed
}

type report struct {
	Word   string // one of the constants below; "" when the guard process has ended
	Number int    // of started: the process id and group; of ended and failed: a status, as a shell says it; of "": the signal that has ended the guard process
	Text   string // of failed
	// Of ended. The lease could be trusted until then, and the command was not told to end because that was almost over.
	Trusted bool
	Gone    bool // of ended: nobody of the process group is left
}

const (
	wordReady   = "ready"   // it waits for the first order
	wordStarted = "started" // the command
	wordEnded   = "ended"   // the command
	wordFailed  = "failed"  // the command could not be started
	wordLate    = "late"    // the lease could be trusted no longer; the command was not started
)

const (
	// lookEvery is how often the guard process looks at the clocks. A timer alone would
	// not notice that the machine has slept.
	lookEvery = 50 * time.Millisecond
	// lastSignal is the last one of Linux; macOS has fewer.
	lastSignal = 64
	// together is how far apart the signals of one stop may come: who stops a service or a session signals
	// each of its processes.
	together = 250 * time.Millisecond
	// goneTime is how long a killed process group may take to be gone.
	goneTime = 2 * time.Second
)

// asksToEnd are the signals by which an operator ends a command. A command that is deaf to
// them must not keep its lock for ever.
var asksToEnd = []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

const guardCommand = "guard-process"

// guardName is the name of the guard process for ps. Who stops lockctl by its name (killall lockctl) means lockctl
// alone.
const guardName = "command-guard"

func GuardCommand() *cobra.Command {
	return &cobra.Command{
		Use:                guardCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			usage := exit.WrongUsage("guard-process is a part of lockctl run, and lockctl run starts it; see lockctl run --help")
			var killAfter time.Duration
			var orders, reports uintptr
			if _, err := fmt.Sscan(strings.Join(args, " "), (*int64)(&killAfter), &orders, &reports); err != nil || len(args) < 4 {
				return usage
			}
			return (&guardProcess{killAfter: killAfter, orders: os.NewFile(orders, "orders"), reports: os.NewFile(reports, "reports")}).run(args[3:])
		},
	}
}

type guardProcess struct {
	killAfter       time.Duration
	orders, reports *os.File

	group  int    // the command's process id, which is that of its group
	until  moment // the end of trust
	kill   moment // when to send SIGKILL, if the command was asked to end
	ending bool   // end was called
	losing bool   // because the end of trust was near

	due  map[syscall.Signal]moment // the signals to pass on, and when
	came map[syscall.Signal]moment // the signals that this process has got itself, and when
	told map[syscall.Signal]bool   // those of asksToEnd that the command has got
}

func (g *guardProcess) tell(r report) {
	_ = json.NewEncoder(g.reports).Encode(r) // lockctl may have been killed
}

func (g *guardProcess) run(command []string) error {
	runtime.LockOSThread() // see ownGroup
	// The command is in the background of the terminal: to read from it is an error, and to write to it is none. Otherwise
	// the terminal would stop it.
	signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU)
	// Other signals are for the command. They are caught and not ignored, because a command
	// inherits what is ignored.
	caught := make(chan os.Signal, 1)
	for s := syscall.Signal(1); s <= lastSignal; s++ {
		exit.Notify(caught, s)
	}
	came := make(chan os.Signal, 64)
	if rename(guardName) {
		exit.Notify(came, PassedOn...)
	}
	orders := make(chan order)
	for _, f := range []*os.File{g.orders, g.reports} {
		syscall.CloseOnExec(int(f.Fd())) // or a daemon of the command would keep the pipe open
	}
	read := json.NewDecoder(g.orders)
	g.due, g.came, g.told = map[syscall.Signal]moment{}, map[syscall.Signal]moment{}, map[syscall.Signal]bool{}
	g.tell(report{Word: wordReady})
	var first order
	if read.Decode(&first) != nil {
		return &exit.Error{Status: exit.Bug}
	}
	g.obey(first)
	adopt()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = ownGroup()
	if now().until(g.until) <= 0 { // the machine has slept since the grant
		g.tell(report{Word: wordLate})
		return nil
	}
	if err := cmd.Start(); err != nil {
		g.tell(report{Word: wordFailed, Number: statusOf(err), Text: strings.TrimPrefix(strings.TrimPrefix(err.Error(), "exec: "), "fork/exec ")})
		return nil
	}
	g.group = cmd.Process.Pid
	for len(came) > 0 {
		<-came // before the command was there
	}
	g.look()
	g.tell(report{Word: wordStarted, Number: g.group})

	go func() {
		for over := false; !over; {
			var o order
			if over = read.Decode(&o) != nil; over {
				o = order{End: true}
			}
			orders <- o
		}
	}()
	ends := make(chan syscall.WaitStatus)
	go g.wait(ends)
	look := time.NewTicker(lookEvery)
	for {
		select {
		case o := <-orders:
			g.obey(o)
		case sig := <-came:
			g.came[sig.(syscall.Signal)] = now()
		case <-look.C:
		case end := <-ends:
			status := end.ExitStatus()
			if end.Signaled() {
				status = exit.Signal + int(end.Signal())
			}
			gone := killGroup(g.group, goneTime) // what the command has left; the trust may end meanwhile
			// A status of 0 does not say that the command's work is done: a command may
			// end so after SIGTERM, too.
			trusted := now().until(g.until) > 0 && !g.losing
			g.tell(report{Word: wordEnded, Number: status, Trusted: trusted, Gone: gone})
			return nil
		}
		g.look()
	}
}

// statusOf is what a shell returns for a command that cannot be started.
func statusOf(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exit.NotFound
	}
	return exit.NotRunnable
}

func (g *guardProcess) obey(o order) {
	switch {
	case o.Signal != 0:
		g.pass(o.Signal)
	case o.End:
		g.end()
	default:
		g.until = o.Until
	}
}

// pass passes a signal on. It may have been sent to each process, so it waits: if this process gets it, too, the
// command has got it.
func (g *guardProcess) pass(sig syscall.Signal) {
	if _, waits := g.due[sig]; !waits {
		g.due[sig] = now().add(together)
	}
}

// sendOnce sends a signal. One that asks the command to end is sent once, and SIGKILL comes killAfter it: many
// programs end at the second one without cleaning up. Who asks again does not make SIGKILL later.
func (g *guardProcess) sendOnce(sig syscall.Signal) {
	if g.told[sig] {
		return
	}
	if slices.Contains(asksToEnd, sig) {
		if len(g.told) == 0 {
			g.kill = now().add(g.killAfter)
		}
		g.told[sig] = true
	}
	if at, ok := g.came[sig]; !ok || now().until(at.add(2*together)) <= 0 {
		g.signal(sig)
	}
}

// look passes on what is due, and ends the process group if the time for that has come.
func (g *guardProcess) look() {
	for sig, at := range g.due {
		if now().until(at) <= 0 {
			delete(g.due, sig)
			g.sendOnce(sig)
		}
	}
	left := now().until(g.until)
	if left <= g.killAfter && !g.ending {
		g.losing = true
		g.end()
	}
	if left <= 0 || len(g.told) > 0 && now().until(g.kill) <= 0 {
		g.signal(syscall.SIGKILL)
	}
}

// end sends SIGTERM. SIGKILL comes after killAfter, and never later than the end of
// trust: see look.
func (g *guardProcess) end() {
	if g.ending {
		return
	}
	g.ending = true
	g.sendOnce(syscall.SIGTERM)
	g.signal(syscall.SIGCONT) // a stopped process handles no SIGTERM
}

func (g *guardProcess) signal(s syscall.Signal) {
	if g.group > 0 {
		_ = syscall.Kill(-g.group, s) // the command may have ended, or be another user's
	}
}

// wait sends how the command has ended. It also waits for the orphans that this process has adopted.
func (g *guardProcess) wait(ends chan<- syscall.WaitStatus) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && err != syscall.EINTR { // there is no child
			return
		}
		if pid == g.group {
			ends <- status
			return
		}
	}
}

// killGroup kills a process group, and waits until nobody of it is left, for d at most.
func killGroup(group int, d time.Duration) (gone bool) {
	for end := now().add(d); syscall.Kill(-group, syscall.SIGKILL) != syscall.ESRCH; time.Sleep(time.Millisecond) {
		if now().until(end) <= 0 {
			return false
		}
		// Children of this process that have ended stay in the group until somebody waits for them.
		for ended := 1; ended > 0; {
			ended, _ = syscall.Wait4(-group, nil, syscall.WNOHANG, nil) // below 0 for an error
		}
	}
	return true
}
