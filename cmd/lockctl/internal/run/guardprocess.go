package run

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

// The guard process is the parent of the command. It has no network and no lease. It knows
// until when the lease can be trusted, and ends the command's process group before that:
// also when lockctl is stopped or killed.
//
// lockctl writes lines to its file 3, and reads lines from its file 4:
//
//	until WALL STEADY   the end of trust, a moment in nanoseconds; the first one starts the command
//	signal N            send the signal to the command's process group; SIGTERM, SIGINT and
//	                    SIGHUP once, and SIGKILL comes after them
//	end                 end the process group: SIGTERM, then SIGKILL
//	(the end of file)   the same: lockctl has been killed
//
//	ready               it waits for the first line
//	started PID         the command's process and process group
//	stopped N           by a signal; the guard process goes on
//	ended STATUS TRUSTED GONE   as a shell says it; false if the lease could not be trusted
//	                            until then, or if the command was told to end because of
//	                            that; true if nobody of the process group is left
//	failed STATUS TEXT  the command could not be started
//	late                the lease could be trusted no longer; the command was not started
const (
	ordersFile  = 3
	reportsFile = 4

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

// guardCommand is the name of the hidden command that is the guard process.
const guardCommand = "guard-process"

// guardName is the name of the guard process for ps. Who stops lockctl by its name (killall lockctl) means lockctl
// alone.
const guardName = "command-guard"

// GuardCommand is the hidden command that lockctl run starts.
func GuardCommand() *cobra.Command {
	return &cobra.Command{
		Use:                guardCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			usage := exit.WrongUsage("guard-process is a part of lockctl run, and lockctl run starts it; see lockctl run --help")
			if len(args) < 2 {
				return usage
			}
			killAfter, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return usage
			}
			return (&guardProcess{killAfter: time.Duration(killAfter), reports: os.NewFile(reportsFile, "reports")}).run(args[1:])
		},
	}
}

type guardProcess struct {
	killAfter time.Duration
	reports   *os.File

	group   int    // the command's process id, which is that of its group
	until   moment // the end of trust
	kill    moment // when to send SIGKILL, if killing
	killing bool   // the command was asked to end
	ending  bool   // end was called
	losing  bool   // because the end of trust was near

	due  map[syscall.Signal]moment // the signals to pass on, and when
	came map[syscall.Signal]moment // the signals that this process has got itself, and when
	told map[syscall.Signal]bool   // those of asksToEnd that the command has got
}

func (g *guardProcess) report(format string, args ...any) {
	_, _ = fmt.Fprintf(g.reports, format+"\n", args...) // lockctl may have been killed
}

func (g *guardProcess) run(command []string) error {
	runtime.LockOSThread() // see ownGroup
	// Signals are for the command. They are caught and not ignored, because a command
	// inherits what is ignored.
	var signals []os.Signal
	for s := syscall.Signal(1); s <= lastSignal; s++ {
		signals = append(signals, s)
	}
	signal.Notify(make(chan os.Signal, 1), NotIgnored(signals...)...)
	came := make(chan os.Signal, 64)
	if heed := NotIgnored(passedOn...); len(heed) > 0 && rename(guardName) {
		signal.Notify(came, heed...)
	}
	orders := make(chan string)
	file := os.NewFile(ordersFile, "orders")
	for _, f := range []*os.File{file, g.reports} {
		syscall.CloseOnExec(int(f.Fd())) // or a daemon of the command would keep the pipe open
	}
	lines := bufio.NewScanner(file)
	g.due, g.came, g.told = map[syscall.Signal]moment{}, map[syscall.Signal]moment{}, map[syscall.Signal]bool{}
	g.report("ready")
	if !lines.Scan() || !g.obey(lines.Text()) { // the first line says until when
		return &exit.Silent{Status: exit.Bug}
	}
	adopt()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = ownGroup()
	if now().until(g.until) <= 0 { // the machine has slept since the grant
		g.report("late")
		return nil
	}
	if err := cmd.Start(); err != nil {
		text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "exec: "), "fork/exec ")
		g.report("failed %d %s", statusOf(err), strings.ReplaceAll(text, "\n", " "))
		return nil
	}
	g.group = cmd.Process.Pid
	for len(came) > 0 {
		<-came // before the command was there
	}
	g.look()
	g.report("started %d", g.group)

	go func() {
		for lines.Scan() {
			orders <- lines.Text()
		}
		orders <- "end"
	}()
	changes := make(chan syscall.WaitStatus)
	go g.wait(changes)
	look := time.NewTicker(lookEvery)
	for {
		select {
		case order := <-orders:
			g.obey(order)
		case sig := <-came:
			g.came[sig.(syscall.Signal)] = now()
		case <-look.C:
		case change := <-changes:
			if change.Stopped() {
				g.report("stopped %d", change.StopSignal())
				continue
			}
			status := change.ExitStatus()
			if change.Signaled() {
				status = exit.Signal + int(change.Signal())
			}
			gone := g.clear() // takes up to goneTime, in which the trust may end
			// A status of 0 does not say that the command's work is done: a command may
			// end so after SIGTERM, too.
			trusted := now().until(g.until) > 0 && !g.losing
			g.report("ended %d %t %t", status, trusted, gone)
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

// obey does what a line of lockctl says. It returns false for a line that it does not know.
func (g *guardProcess) obey(order string) bool {
	word, rest, _ := strings.Cut(order, " ")
	switch word {
	case "until":
		n, err := fmt.Sscan(rest, &g.until.wall, &g.until.steady)
		return n == 2 && err == nil
	case "signal":
		n, err := strconv.Atoi(rest)
		if err != nil {
			return false
		}
		g.pass(syscall.Signal(n))
		return true
	case "end":
		g.end()
		return true
	}
	return false
}

// pass passes a signal on. One that may have been sent to each process waits: if this process gets it, too, the
// command has got it.
func (g *guardProcess) pass(sig syscall.Signal) {
	if !slices.Contains(passedOn, os.Signal(sig)) {
		g.signal(sig)
	} else if _, waits := g.due[sig]; !waits {
		g.due[sig] = now().add(together)
	}
}

// sendOnce sends a signal. One that asks the command to end is sent once, and SIGKILL comes after it: many
// programs end at the second one without cleaning up.
func (g *guardProcess) sendOnce(sig syscall.Signal) {
	if g.told[sig] {
		return
	}
	if slices.Contains(asksToEnd, sig) {
		g.told[sig] = true
		g.killLater()
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
	if left <= 0 || g.killing && now().until(g.kill) <= 0 {
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

// killLater sets the time for SIGKILL. Who asks again does not make it later.
func (g *guardProcess) killLater() {
	if g.killing {
		return
	}
	g.killing, g.kill = true, now().add(g.killAfter)
}

func (g *guardProcess) signal(s syscall.Signal) {
	if g.group > 0 {
		_ = syscall.Kill(-g.group, s) // the command may have ended, or be another user's
	}
}

// wait sends each change of the command. It ends with the command. It also waits for the
// orphans that this process has adopted.
func (g *guardProcess) wait(changes chan<- syscall.WaitStatus) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // nobody is left, so the command's end has been told
			return
		case pid == g.group:
			changes <- status
			if !status.Stopped() {
				return
			}
		}
	}
}

// clear kills what the command has left in its process group, and waits until it is gone.
func (g *guardProcess) clear() (gone bool) {
	for end := now().add(goneTime); now().until(end) > 0; time.Sleep(time.Millisecond) {
		if syscall.Kill(-g.group, syscall.SIGKILL) == syscall.ESRCH {
			return true
		}
		reap(g.group)
	}
	return false
}

// reap takes notice of the children in a process group that have ended. Without it they
// would stay in the group.
func reap(group int) {
	for {
		var status syscall.WaitStatus
		if pid, err := syscall.Wait4(-group, &status, syscall.WNOHANG, nil); pid <= 0 || err != nil {
			return
		}
	}
}
