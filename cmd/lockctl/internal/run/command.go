// Package run is the command run: it runs a command while it holds a lock.
package run

import (
	"cmp"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/timeflag"
	"github.com/lambdalock/lambdalock/lockstore"
)

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
	holder     lockstore.HolderInfo
}

// killAfter is the time from SIGTERM to SIGKILL.
func (s *settings) killAfter() time.Duration { return min(10*time.Second, s.ttl/4) }

func Command() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "run [flags] KEY -- COMMAND [ARG...]",
		Short: "Run a command while holding a lock",
		Long: `Run COMMAND while holding the lock of KEY, and release the lock when it ends. Without -n or -w it
waits for as long as it takes, as flock does. There is no shell. COMMAND gets LOCK_KEY, LOCK_FENCE,
LOCK_SEAT and LOCK_HELD=true, and not LOCK_URL. A TIME is a number of seconds, or 1m30s. SIGTERM,
SIGINT and SIGHUP are passed on, each once; SIGKILL follows. lockctl help run-details has the rest.

Exit status: that of COMMAND, 128+N if signal N ended it, 126 if it cannot be run, 127 if it is not
found. COMMAND did not begin: 75 busy, 80 in doubt, 81 done already, and those of lockctl --help.
79: the lock was lost, and COMMAND was ended, had ended or did not begin. 70: the guard process was
killed.`,
		Example: `  lockctl run -n --at-least-for 1h nightly/report -- ./report.sh  # on several hosts
  lockctl run --max-holders 3 export -- sh -c './export.sh --license $LOCK_SEAT'
  lockctl run -w 30 account/7 -- sh -c 'psql -v fence=$LOCK_FENCE -f book.sql'
  lockctl run backup -- timeout 1h ./backup.sh`,
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
	s.wait, s.ttl, s.MakesFile = timeflag.Longest, time.Minute, true
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
	s.AddTo(f)
	return cmd
}

// Details is the help about what few want to know of run.
func Details() *cobra.Command {
	return &cobra.Command{
		Use:   "run-details",
		Short: "What lockctl run does with signals, the terminal, processes that stay and a store that fails",
		Long: `While lockctl waits it says who has the key, more and more seldom, and also if the store stops
answering. A store that does not answer the first request ends lockctl after about 5 s.

With --max-holders above 1 COMMAND's writes compare LOCK_FENCE for each LOCK_SEAT. While programs ask
for different numbers of holders, the smallest one counts.

LOCK_URL and ZOOKEEPER_AUTH may have a password, so COMMAND does not get them. If it works on locks
itself:
  JOB_LOCKS=$LOCK_URL lockctl run KEY -- sh -c 'LOCK_URL=$JOB_LOCKS exec ./job.sh'

A guard process ends COMMAND's process group before the lease ends, also when lockctl is stopped or
killed: SIGTERM, and SIGKILL 10 s later (--ttl/4, if that is less) or when the lease can be trusted
no longer. What COMMAND leaves in its group is killed before the lock is released. Out of reach are
processes of another user (sudo) or outside the group: setsid, daemons, docker run, ssh HOST, jobs
of bash -i or set -m, and timeout inside a script (use timeout --foreground). A machine that was
frozen past the end of its lease runs for milliseconds. Where guard process and lockctl are killed
at once, only COMMAND itself is killed, on macOS nothing. In all these cases only the fence helps.

A signal that each process gets, as from systemd, reaches COMMAND once. One that comes before its
start prevents it. SIGQUIT is passed on, and no SIGKILL follows. COMMAND cannot read from the
terminal: its group is in the background. Ctrl-Z stops lockctl alone: COMMAND works on, and is
ended before the lease ends.`,
	}
}

// read reads the arguments KEY -- COMMAND. If the key begins with "-", a "--" is before it, too.
func (s *settings) read(args []string, cmd *cobra.Command) error {
	if len(args) < 3 || args[1] != "--" {
		return exit.WrongUsage("want flags, KEY, -- and COMMAND, in this order: %q", "lockctl run [flags] KEY -- COMMAND [ARG...]")
	}
	s.key, s.command = args[0], args[2:]
	s.holder = lockstore.HolderInfo{Name: Operator() + " " + s.command[0], ID: strconv.Itoa(os.Getpid())}
	set := cmd.Flags().Changed
	if s.noWait && set("wait") {
		return exit.WrongUsage("-n and -w: want one of them")
	}
	if s.noWait {
		s.wait = 0
	}
	s.doneStatus = exit.Done
	if set("busy-status") {
		s.doneStatus = s.busyStatus
	}
	if s.maxHolders > 1 && s.atLeastFor > 0 {
		return exit.WrongUsage("--max-holders is %d with --at-least-for; want 1", s.maxHolders)
	}
	return cmp.Or(
		exit.Bounds("-E, --busy-status", s.busyStatus, 0, 255),
		exit.Bounds("--max-holders", s.maxHolders, 1, lockstore.MaxHolders),
		exit.Bounds("--wait", s.wait, 0, timeflag.Longest),
		exit.Bounds("--at-least-for", cmp.Or(s.atLeastFor, lockstore.MinTTL), lockstore.MinTTL, lockstore.MaxTTL),
		exit.Bounds("--ttl", s.ttl, lockstore.MinTTL, lockstore.MaxTTL),
	)
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
