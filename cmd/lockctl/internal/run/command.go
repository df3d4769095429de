// Package run is the command run: it runs a command while it holds a lock.
package run

import (
	"cmp"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/timeflag"
	"github.com/lambdalock/lambdalock/lockstore"
)

// settings are the arguments and flags.
type settings struct {
	stores.Settings
	key        string
	command    []string
	noWait     bool
	wait       time.Duration
	busyStatus int
	doneStatus int
	maxHolders int
	atLeastFor time.Duration
	ttl        time.Duration
	maxHold    time.Duration
	killAfter  time.Duration
	holder     string
}

// Bounds and defaults.
const (
	defaultTTL       = time.Minute
	defaultKillAfter = 10 * time.Second
	longest          = timeflag.Longest // no limit
)

// Command is lockctl run.
func Command() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "run [flags] KEY -- COMMAND [ARG...]",
		Short: "Run a command while holding a lock",
		Long: `Run COMMAND while holding the lock of KEY, and release the lock when it ends.
Without -n or -w it waits for as long as it takes, as flock does. There is no
shell. COMMAND gets LOCK_KEY, LOCK_FENCE, LOCK_SEAT and LOCK_HELD=true, and not
LOCK_URL. A TIME is a number of seconds, or 1m30s. SIGTERM, SIGINT and SIGHUP are
passed on, each once; SIGKILL follows after --kill-after. lockctl help run-details
has the rest: which processes lockctl cannot end, the terminal, several holders.

Exit status: that of COMMAND, 128+N if signal N ended it, 126 if it cannot be run,
127 if it is not found. COMMAND did not begin: 75 busy, 80 in doubt, 81 done
already, and those of lockctl --help. 79: the lock was lost, and COMMAND was ended,
had ended or did not begin. 124: --max-hold is over. 70: the guard process was killed.`,
		Example: `  lockctl run -n --at-least-for 1h nightly/report -- ./report.sh  # on several hosts
  lockctl run --max-holders 3 export -- sh -c './export.sh --license $LOCK_SEAT'
  lockctl run -w 30 account/7 -- sh -c 'psql -v fence=$LOCK_FENCE -f book.sql'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.read(args, cmd); err != nil {
				return err
			}
			aside := exit.NewAside(exit.Writer{To: cmd.ErrOrStderr()}) // with the names of holders, which come from outside
			cmd.SetErr(aside)
			return s.run(cmd.Context(), aside)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.SetInterspersed(false) // flags after KEY belong to COMMAND
	s.wait, s.ttl, s.maxHold = longest, defaultTTL, longest
	timeVar := func(d *time.Duration, name, shorthand, usage string) {
		timeflag.Var(f, d, name, shorthand, usage).DefValue = "" // the usage has the default
	}
	f.BoolVarP(&s.noWait, "no-wait", "n", false, "do not wait")
	timeVar(&s.wait, "wait", "w", "wait for `TIME` at most; default as long as it takes")
	f.IntVarP(&s.busyStatus, "busy-status", "E", exit.Busy, "exit `STATUS` for busy and done already; default 75 and 81")
	f.Lookup("busy-status").DefValue = "0" // as above
	timeVar(&s.atLeastFor, "at-least-for", "", "after success nobody runs it again for `TIME`, 1s to 24h")
	f.IntVar(&s.maxHolders, "max-holders", 1, "up to `N` may hold the lock at once, 1 to 32")
	timeVar(&s.ttl, "ttl", "", "a dead holder keeps others out for `TIME`; default 60s")
	timeVar(&s.maxHold, "max-hold", "", "end COMMAND after `TIME`; default no limit")
	timeVar(&s.killAfter, "kill-after", "", "SIGKILL is `TIME` after SIGTERM; default 10s, at most --ttl/4")
	f.StringVar(&s.holder, "holder", "", "`TEXT` that others see; default USER@HOST COMMAND")
	s.AddTo(f)
	return cmd
}

// Details is the help about what few want to know of run.
func Details() *cobra.Command {
	return &cobra.Command{
		Use:   "run-details",
		Short: "What lockctl run does with signals, the terminal, processes that stay and a store that fails",
		Long: `If the store does not answer at the start, lockctl ends with 69 after about 5 s, so a short
failure ends nothing. It ends at once with 77 if this user may not write, and with 78 if the
store is set up wrongly. If the store stops answering later, lockctl goes on waiting, and warns
after 30 s. While it waits it says who has the key: at once, and then more and more seldom (not
with --json).

With --at-least-for nobody gets the key for that time after COMMAND has ended with 0, and who
waits for it with --at-least-for ends with 81. Choose more than the clocks of the hosts differ,
and less than the period of the job. After another status, and after a signal that was passed
on, there is no such time.

A TIME is a number of seconds, as for flock, or a duration such as 1m30s.

COMMAND gets LOCK_KEY, LOCK_FENCE, LOCK_SEAT and LOCK_HELD=true. Standard input, output and the
terminal are its own. There is no shell. LOCK_FENCE does nothing by itself: what COMMAND
writes to has to refuse a smaller one.

With --max-holders N up to N commands hold the lock at once. LOCK_SEAT is the lowest number,
from 0, that no other holder had, for example which of N licences to use. While programs ask
for different numbers, the smallest one counts. Whoever compares fences compares them for each
seat, and that helps only while all ask for the same number.

COMMAND does not get LOCK_URL and ZOOKEEPER_AUTH, which may have a password. A COMMAND that
works on locks itself can read the URL from a variable of another name, which it gets:
  JOB_LOCKS=$LOCK_URL lockctl run KEY -- sh -c 'LOCK_URL=$JOB_LOCKS exec ./job.sh'
All users of a machine can read the URL of --store while lockctl runs (ps). Give a URL with a
password as LOCK_URL.

The lease is renewed while COMMAND runs. A guard process ends COMMAND's process group
before the lease ends, also when lockctl is stopped or killed: SIGTERM, and SIGKILL after
--kill-after or when the lease can be trusted no longer, whichever is first. What COMMAND
leaves in its process group is killed before the lock is released. The first renewal that
fails is told on standard error, with the time that is left. If nobody reads standard error,
what lockctl says is lost, and nothing else.

The guard process cannot end these: processes that have left the group (setsid, daemons,
docker run, ssh HOST, timeout inside a script, and the jobs of a shell with job control, as
by bash -i or set -m), and processes of another user (sudo). Inside a script use timeout
--foreground, or --max-hold. A virtual machine or container that was frozen wakes up past
the end of its lease and runs for milliseconds. Where guard process and lockctl are killed
at once, only COMMAND itself is killed, on Linux; on macOS nothing is. In these cases only
the fence helps.

SIGTERM, SIGINT and SIGHUP are passed on, each once, and SIGKILL follows after --kill-after.
Who signals each process, as systemd does, signals COMMAND, too: it gets the signal once. A
signal before COMMAND was started prevents its start. While lockctl waits a signal ends it, and
it leaves the queue. SIGQUIT is passed on, and nothing follows. After Ctrl-C no SIGKILL follows
if COMMAND has the terminal, because Ctrl-C goes to COMMAND alone then.
Ctrl-Z stops both if COMMAND has the terminal, and the lock is lost at the end of its lease
and COMMAND is ended. If COMMAND does not have it, Ctrl-Z stops lockctl alone: COMMAND works
on, and is ended before the lease ends. So it is if standard input or output is no terminal
("gen | lockctl run ...", "lockctl run ... | less", < /dev/null), until COMMAND reads from
the terminal.

A call that takes or renews the lock has 2 s at most, and one that releases it 1 s. --timeout
can make this shorter, and not longer.`,
	}
}

// read reads the arguments KEY -- COMMAND. If the key begins with "-", a "--" is before it, too.
func (s *settings) read(args []string, cmd *cobra.Command) error {
	if len(args) < 3 || args[1] != "--" {
		return exit.WrongUsage("want flags, KEY, -- and COMMAND, in this order: %q", "lockctl run [flags] KEY -- COMMAND [ARG...]")
	}
	s.key, s.command = args[0], args[2:]
	f := cmd.Flags()
	if s.noWait && f.Changed("wait") {
		return exit.WrongUsage("-n and -w: want one of them")
	}
	if s.noWait {
		s.wait = 0
	}
	if s.busyStatus < 0 || s.busyStatus > 255 {
		return exit.WrongUsage("-E, --busy-status is %d; want 0 to 255", s.busyStatus)
	}
	s.doneStatus = exit.Done
	if f.Changed("busy-status") {
		s.doneStatus = s.busyStatus
	}
	if s.maxHolders < 1 || s.maxHolders > lockstore.MaxHolders {
		return exit.WrongUsage("--max-holders is %d; want 1 to %d", s.maxHolders, lockstore.MaxHolders)
	}
	if s.maxHolders > 1 && s.atLeastFor > 0 {
		return exit.WrongUsage("--max-holders is %d with --at-least-for; want 1", s.maxHolders)
	}
	if !f.Changed("kill-after") {
		s.killAfter = min(defaultKillAfter, s.ttl/4)
	}
	for _, flag := range []struct {
		name        string
		value       time.Duration
		least, most time.Duration
	}{
		{"--wait", s.wait, 0, longest},
		{"--at-least-for", cmp.Or(s.atLeastFor, lockstore.MinTTL), lockstore.MinTTL, lockstore.MaxTTL},
		{"--ttl", s.ttl, lockstore.MinTTL, lockstore.MaxTTL},
		{"--max-hold", s.maxHold, time.Millisecond, longest},
		{"--kill-after", s.killAfter, 0, s.ttl / 4},
	} {
		if d := flag.value; d < flag.least || d > flag.most {
			return exit.WrongUsage("%s is %v; want %v to %v", flag.name, d, flag.least, flag.most)
		}
	}
	if s.holder == "" {
		s.holder = Operator() + " " + s.command[0]
	}
	return nil
}

// Operator says who runs lockctl, for people: USER@HOST.
func Operator() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
