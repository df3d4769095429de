// Package locallambda is the command local: it runs a function in several Lambda
// environments on this machine and shows if its critical sections overlap.
package locallambda

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/timeflag"
	"github.com/lambdalock/lambdalock/lockstore"
)

type settings struct {
	function             string
	environments, events int
	event                string
	store                string
	env                  []string
	timeout, think       time.Duration
	freeze, kill         int
	coalesce             bool
	compare              bool // without the lock first
	before, after        string
	fenced               bool // the data of the function refuses late writes

	picture string // its file
	getenv  func(string) string
	ttl     time.Duration // of a lease; where there are faults
}

const (
	mostEnvironments = 100
	mostEvents       = 100_000
	mostTime         = 15 * time.Minute // Lambda's own bound
	faultTTL         = 2 * time.Second  // short, so that the next holder need not wait long for a dead one
)

func Command() *cobra.Command { return command(filepath.Join("build", "timeline.svg")) }

func command(picture string) *cobra.Command {
	s := settings{getenv: os.Getenv, picture: picture}
	cmd := &cobra.Command{
		Use:   "local [flags] BINARY-or-PACKAGE-DIR",
		Short: "Run your function in several Lambda environments on this machine",
		Long: `Run your function in several Lambda environments on this machine, send it events, and show if
critical sections of one key overlapped: as a table, and as a picture, build/timeline.svg.

BINARY-or-PACKAGE-DIR is a bootstrap binary for this machine, or the folder of its main package,
which is built first. Each environment is a process with a Runtime API of its own. It has the
variables of Lambda, LOCK_URL, LOCK_WAIT and those of --env, and what it needs to reach the store;
it inherits nothing else.

In the file of --event {{n}} becomes the number of the event, from 1 on, and {{run}} a text that is
new in each phase. There is one client for each environment. It tries again after LockBusy, the
HTTP status 409 or a batch whose locks were busy, and up to three times if the store was not
available.

Critical sections are read from the report lines of the guard, so the function has to log them as
JSON, as boot.MustGuardFromEnv does. A run that ends without a log line, as after a timeout, is no
section. If a run that --freeze stops returns no error though the next run of its key has begun, the
check fails, unless --fenced says that the data refuses late writes. Nothing is known of work that
goes on after its answer, of work without the guard, and of two keys for one thing. An event that
was covered is a dot in the picture; the check fails if no run for its key began later and ended
well.

Exit status: 0; 1 when sections overlapped, a run returned success late, an event failed for good
or was answered with success without its lock, or a command failed; those of lockctl --help.`,
		Example: `  lockctl local --event event.json ./myfunction
  lockctl local -c 4 -n 50 --event event.json --freeze 2 --kill 2 ./myfunction
  lockctl local --store 'dynamodb://locks?endpoint=http://127.0.0.1:8000' --event event.json bootstrap`,
		Args: exit.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.function = args[0]
			exit.NeedsNoReader() // what runs has to be ended
			return run(cmd.Context(), s, exit.Writer{To: cmd.OutOrStdout()})
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&s.environments, "environments", "c", 8, "how many environments run at once")
	f.IntVarP(&s.events, "events", "n", 200, "how many events are sent")
	f.StringVar(&s.event, "event", "", "`FILE` with the event as JSON, or with one in each line, which come in turn")
	f.StringVar(&s.store, "store", "", stores.Flag+", or an embedded Redis;\nit may be a store that only the function has")
	f.StringArrayVar(&s.env, "env", nil, "a variable of the function, `NAME=VALUE`; {{redis}} becomes the URL of an embedded\nRedis; LOCK_WAIT is 1s without it; repeatable")
	s.timeout, s.think = 15*time.Second, 100*time.Millisecond
	timeflag.Var(f, &s.timeout, "timeout", "", "the function's timeout, in seconds or as 1m30s")
	timeflag.Var(f, &s.think, "think", "", "pause of a client between two events, at random up to twice as long")
	f.IntVar(&s.freeze, "freeze", 0, "how often an environment with an event under way is stopped (SIGSTOP)\nfor longer than its lease lasts, and continued")
	f.BoolVar(&s.fenced, "fenced", false, "the function's data compares fences: a run that --freeze stopped may return\nsuccess after its lease")
	f.IntVar(&s.kill, "kill", 0, "how often an environment with an event under way is killed (SIGKILL);\n--freeze and --kill set LOCK_LOG=start, and LOCK_TTL=2s unless --env sets LOCK_TTL")
	f.BoolVar(&s.coalesce, "coalesce", false, "LOCK_COALESCE=true: of many events for one key only one waits, and covers the others;\nLockCovered is no failure")
	f.BoolVar(&s.compare, "compare", false, "run it first as without the lock, with LOCK_MAX_HOLDERS=32 (not for idempotency, a cooldown or\nWithMaxHolders); an embedded Redis is emptied between the phases")
	f.StringVar(&s.before, "before", "", "shell `COMMAND` before each phase; it has the function's variables and\nLOCKCTL_RUN, the text of {{run}}")
	f.StringVar(&s.after, "after", "", "shell `COMMAND` after each phase, also with LOCKCTL_SUCCEEDED, a number;\neach line \"name: value\" becomes a row of the table, and an exit status\nother than 0 fails the run with the lock")
	return cmd
}

// redisMark stands in --env for the URL of the embedded Redis.
const redisMark = "{{redis}}"

// validate checks what can be checked without a store. For --freeze and --kill it finds out how long a lease lasts.
func (s *settings) validate() error {
	most := mostEnvironments
	if s.compare { // so many may hold a key as without the lock
		most = lockstore.MaxHolders
	}
	if err := cmp.Or(
		exit.Bounds("-c, --environments", s.environments, 1, most),
		exit.Bounds("-n, --events", s.events, 1, mostEvents),
		exit.Bounds("--freeze", s.freeze, 0, s.events),
		exit.Bounds("--kill", s.kill, 0, s.events),
		exit.Bounds("--timeout", s.timeout, time.Second, mostTime),
		exit.Bounds("--think", s.think, 0, time.Minute),
	); err != nil {
		return err
	}
	faults := s.freeze+s.kill > 0
	for _, v := range s.env {
		name, value, ok := strings.Cut(v, "=")
		switch {
		case !ok || name == "":
			return exit.WrongUsage("--env is %.40q; want NAME=VALUE", v)
		case name == "LOCK_URL":
			return exit.WrongUsage("--env has LOCK_URL; use --store, which sets it")
		case name == "LOCK_TTL" && faults:
			ttl, err := time.ParseDuration(value)
			if err != nil || ttl < lockstore.MinTTL {
				return exit.WrongUsage("--env LOCK_TTL is %.40q; want a duration of %v at least, such as 2s", value, lockstore.MinTTL)
			}
			s.ttl = ttl
		}
	}
	if !faults {
		return nil
	}
	if s.ttl == 0 {
		s.ttl = faultTTL
		s.env = append(s.env, "LOCK_TTL="+faultTTL.String())
	}
	s.env = append(s.env, "LOCK_LOG=start") // then the holders are known
	if least := s.freezeTime() + time.Second; s.freeze > 0 && s.timeout < least {
		return exit.WrongUsage("--timeout is %v, and would end a process that --freeze stops for %v; want %v at least, or a shorter --env LOCK_TTL", s.timeout, s.freezeTime(), least)
	}
	return nil
}

// freezeTime is longer than a lease.
func (s *settings) freezeTime() time.Duration {
	return s.ttl + max(s.ttl/4, time.Second/2)
}

func (s *settings) needsRedis() bool {
	return slices.ContainsFunc(s.env, func(v string) bool { return strings.Contains(v, redisMark) })
}

// storeURL is the URL of --store or of the environment; "" for an embedded Redis.
func (s *settings) storeURL() string { return cmp.Or(s.store, s.getenv(stores.Variable)) }
