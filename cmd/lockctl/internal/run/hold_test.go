package run

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// The tests' own program is the guard process, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == guardCommand {
		cmd := GuardCommand()
		cmd.SetArgs(os.Args[2:])
		if cmd.Execute() != nil {
			os.Exit(exit.Bug)
		}
		return
	}
	watchdog.Start()
	m.Run()
}

// startAlone starts a guard process, and lets it start its command. Nothing else of lockctl is there.
func startAlone(t *testing.T, until moment, killAfter time.Duration, command ...string) *guarded {
	t.Helper()
	g, err := startGuarded(command, nil, killAfter)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = g.orders.Close() // it ends the command, if there is one
		for range g.reports {
			continue
		}
	})
	assert.Equal(t, report{Word: wordReady}, <-g.reports)
	g.start(until)
	return g
}

// awaitText waits until a file has a text.
func awaitText(file string) string {
	for {
		if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
			return string(text)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// A guard process that begins after the end of trust starts nothing.
func TestGuardProcessIsLate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	g := startAlone(t, now().add(-time.Nanosecond), 0, "touch", file)
	assert.Equal(t, report{Word: wordLate}, <-g.reports)
	assert.NoFileExists(t, file)
}

// The command does not outlive the trust, also if somebody has stopped the guard process.
func TestGuardProcessIsStopped(t *testing.T) {
	command := exec.Command("sleep", "30")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, command.Start())
	g, _ := deaf(t)
	h := &hold{command: g, group: command.Process.Pid, until: now()}
	go h.supervise(nil)
	assert.EqualError(t, command.Wait(), "signal: killed")
	g.reports <- report{Word: wordEnded}
}

// A command that was told to end because the lease could not be renewed has not done its work,
// also if it ends with 0 and in time. One that an operator ended has the status that it wants. Its child is told, too.
func TestGuardProcessTellsWhatItEnded(t *testing.T) {
	for name, c := range map[string]struct {
		order   order
		trusted bool
		stopped bool // by somebody, before that
	}{
		"the end of trust is near": {order{Until: now().add(time.Minute - time.Second)}, false, false},
		"SIGTERM of an operator":   {order{Signal: syscall.SIGTERM}, true, false},
		"the end":                  {order{End: true}, true, false},
		"the end of a stopped one": {order{End: true}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			begun, told := filepath.Join(dir, "begun"), filepath.Join(dir, "told")
			g := startAlone(t, now().add(time.Hour), time.Minute, "sh", "-c", `trap : TERM
				sh -c 'trap "echo TERM > $2; exit" TERM; echo begun > "$1"; while :; do sleep 0.01; done' sh "$1" "$2" &
				while [ ! -s "$2" ]; do sleep 0.01; done; exit 0`, "sh", begun, told)
			awaitText(begun)
			started := <-g.reports
			assert.Equal(t, wordStarted, started.Word)
			if c.stopped {
				require.NoError(t, syscall.Kill(-started.Number, syscall.SIGSTOP))
			}
			g.send(c.order)
			assert.Equal(t, "TERM\n", awaitText(told))
			assert.Equal(t, report{Word: wordEnded, Trusted: c.trusted, Gone: true}, <-g.reports)
		})
	}
}

// What lockctl makes of the last report of the guard process. After success, and only then, the key is closed. Where that
// cannot be, because the store has taken longer than the lease, there is a warning.
func TestEnded(t *testing.T) {
	for name, c := range map[string]struct {
		last   report
		status int
		text   string
		key    lockstore.State
		warns  string
		over   bool // the lease is, when it is to be released
	}{
		"late":                        {last: report{Word: wordLate}, status: exit.Lost, text: "was not started"},
		"success":                     {last: report{Word: wordEnded, Trusted: true, Gone: true}, key: lockstore.Cooldown},
		"success, and too late":       {last: report{Word: wordEnded, Trusted: true, Gone: true}, over: true, warns: "could not be closed for --at-least-for"},
		"failure":                     {last: report{Word: wordEnded, Number: 1, Trusted: true, Gone: true}, status: 1, text: "status 1"},
		"failure, and too late":       {last: report{Word: wordEnded, Number: 1, Trusted: true, Gone: true}, over: true, status: 1, text: "status 1"},
		"lost":                        {last: report{Word: wordEnded, Gone: true}, status: exit.Lost, text: "was lost"},
		"lost, and renewed too late":  {last: report{Word: wordEnded, Number: 143, Gone: true}, status: exit.Lost, text: "another wrote: no renewal had succeeded when 10s or less was left of the lease"},
		"a process is left":           {last: report{Word: wordEnded, Trusted: true}, key: lockstore.Held, warns: "cannot be ended"},
		"a process is left, and lost": {last: report{Word: wordEnded}, status: exit.Lost, text: "was lost", key: lockstore.Held, warns: "cannot be ended"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			h := holdOf(t, memstore.New(time.Now), &stderr)
			h.command, h.atLeastFor = &guarded{started: true}, time.Hour
			if c.over {
				require.NoError(t, h.guard.Release(t.Context(), h.lease))
				h.until = now()
			}
			err := h.ended(t.Context(), c.last)
			assert.Equal(t, c.status, exit.Status(err))
			if err != nil {
				assert.ErrorContains(t, err, c.text)
			}
			assert.Equal(t, c.warns != "", stderr.Len() > 0, stderr.String())
			assert.Contains(t, stderr.String(), c.warns)
			status, err := h.guard.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, c.key, status.State)
		})
	}
}

// holdOf holds the key k of a store.
func holdOf(t *testing.T, store *lockstore.Store, stderr *bytes.Buffer) *hold {
	t.Helper()
	w := &watched{}
	g, err := guard.New(w.watch(store), guard.Options{})
	require.NoError(t, err)
	lease, err := g.Acquire(t.Context(), guard.LeaseRequest{Key: "k", TTL: time.Minute})
	require.NoError(t, err)
	return &hold{settings: &settings{key: "k", ttl: time.Minute}, guard: g, lease: lease, until: w.sent.add(lease.TTL), stderr: stderr}
}

// deaf is a guard process that does nothing. Its orders can be read.
func deaf(t *testing.T) (g *guarded, orders *os.File) {
	t.Helper()
	orders, itsOrders, err := os.Pipe()
	require.NoError(t, err)
	this, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = itsOrders.Close() // the test may have closed it
		_ = orders.Close()
	})
	return &guarded{process: this, orders: itsOrders, reports: make(chan report, 3)}, orders
}

// changing is a driver with other answers.
type changing struct {
	driver.Driver
	began  time.Time
	change func(since time.Duration, r driver.Request, a *driver.Answer) error
}

func (c changing) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	a, err := c.Driver.Do(ctx, key, r)
	return a, errors.Join(err, c.change(time.Since(c.began), r, &a))
}

// changed is memstore with other answers. The clock of the test begins with the store.
func changed(change func(since time.Duration, r driver.Request, a *driver.Answer) error) *lockstore.Store {
	return memstore.New(time.Now).WrapDriver(func(d driver.Driver) driver.Driver { return changing{d, time.Now(), change} })
}

// A long lease is renewed within the trust that the store grants, and never trusted for longer: a slow answer and a
// process that stands still cost trust.
func TestRenewsWithinTheTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow, trusted = time.Second, 15 * time.Second
		h := holdOf(t, changed(func(_ time.Duration, _ driver.Request, a *driver.Answer) error {
			<-time.After(slow)
			a.TTL = min(a.TTL, trusted)
			return nil
		}), nil)
		began := now().add(-slow)
		assert.LessOrEqual(t, began.until(h.until), trusted-250*time.Millisecond, "the margin is that of package guard")
		assert.Greater(t, began.until(h.until), trusted-2*slow)
		ctx, stop := context.WithCancel(t.Context())
		answers, joined := make(chan renewal), make(chan struct{})
		go func() {
			defer close(joined)
			h.renew(ctx, answers)
		}()
		for range 3 {
			r := <-answers
			require.NoError(t, r.failed)
			require.False(t, r.lost)
			assert.LessOrEqual(t, now().until(r.until), trusted-slow-250*time.Millisecond)
			assert.Greater(t, now().until(r.until), h.killAfter())
		}
		stop()
		<-joined
	})
}

// The first renewal that fails is told, with the time until the command is ended, and the
// first one that succeeds after that. A loss is told by the status.
func TestRenewalWarns(t *testing.T) {
	command, _ := deaf(t)
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		h := holdOf(t, changed(func(since time.Duration, r driver.Request, _ *driver.Answer) error {
			minute := since % time.Minute
			if r.Kind == driver.Renew && minute > 30*time.Second && minute < 50*time.Second {
				return errors.New("connection refused")
			}
			return nil
		}), &stderr)
		h.command, command.started = command, true
		renewals := make(chan renewal)
		go func() {
			h.renew(t.Context(), renewals)
			close(renewals)
		}()
		for r := range renewals {
			h.renewed(r)
			if strings.Count(stderr.String(), "\n") == 4 {
				require.NoError(t, h.guard.Release(t.Context(), h.lease))
			}
		}
		const warned = `lockctl: warning: the lock of "k" cannot be renewed, and the command is ended in \d\d.\ds if that stays so: connection refused.*\n`
		const again = `lockctl: the lock of "k" is renewed again\n`
		assert.Regexp(t, "^"+warned+again+warned+again+"$", stderr.String())
		require.ErrorIs(t, h.lost, lockstore.ErrLost)
	})
}

func TestMoments(t *testing.T) {
	a := moment{100, 50}
	assert.Equal(t, time.Duration(7), a.until(a.add(7)))
	assert.Equal(t, time.Duration(-3), a.until(moment{107, 47}), "the steady clock is past the end")
	assert.Equal(t, time.Duration(-3), a.until(moment{97, 57}), "the wall clock is past the end")
	first := now()
	assert.Positive(t, first.Wall)
	assert.LessOrEqual(t, first.until(now()), time.Minute)
}

// A signal that has come before the command was started prevents its start.
func TestSignalBeforeTheStart(t *testing.T) {
	for name, tell := range map[string]func(h *hold, signals chan os.Signal){
		"before the guard process is ready": func(_ *hold, signals chan os.Signal) { signals <- syscall.SIGTERM },
		"when it is ready": func(h *hold, signals chan os.Signal) {
			signals <- syscall.SIGTERM
			h.begin()
		},
		"also to the guard process": func(h *hold, _ chan os.Signal) {
			h.command.reports <- report{Number: int(syscall.SIGTERM)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			command, orders := deaf(t)
			signals := make(chan os.Signal, 8)
			h := holdOf(t, memstore.New(time.Now), nil)
			h.signals, h.command = signals, command
			tell(h, signals)
			go func() {
				_, _ = io.Copy(io.Discard, orders) // as the guard process does: it ends at the end of its orders
				h.command.reports <- report{Word: wordReady}
				close(h.command.reports)
			}()
			err := h.ended(t.Context(), h.supervise(nil))
			assert.Equal(t, exit.Signal+int(syscall.SIGTERM), exit.Status(err), err)
			assert.False(t, h.command.started)
			status, err := h.guard.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.False(t, status.State.Taken(), "the lock is released")
		})
	}
}

// Who waits is told who has the key: at once, and then more and more seldom. A store that fails ends no wait.
func TestTellsWhoHasTheKey(t *testing.T) {
	const who = `: lock "k" is held by report \(7\) since 2000-01-01T00:00:00Z, for at most `
	for wait, want := range map[time.Duration]string{
		0: "",
		4 * time.Minute: `lockctl: waiting` + who + `1h0m0s more
lockctl: waiting for 30s` + who + `59m30s more; 1 wait
lockctl: warning: the store does not answer; lockctl goes on waiting: WRONGPASS.*
lockctl: waiting for 3m3\ds` + who + `56m2\ds more; 1 wait
`,
	} {
		synctest.Test(t, func(t *testing.T) {
			store := changed(func(since time.Duration, r driver.Request, _ *driver.Answer) error {
				if r.Kind == driver.Inspect && since > time.Minute && since < 2*time.Minute {
					return errors.New("WRONGPASS")
				}
				return nil
			})
			_, err := store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Hour,
				HolderInfo: lockstore.HolderInfo{Name: "report", ID: "7", Since: time.Now()}})
			require.NoError(t, err)
			g, err := guard.New(store, guard.Options{})
			require.NoError(t, err)
			var said bytes.Buffer
			s := &settings{key: "k", ttl: time.Minute, wait: wait, busyStatus: exit.Busy}
			_, err = s.acquire(t.Context(), g, &said)
			assert.Equal(t, exit.Busy, exit.Status(err))
			synctest.Wait()
			assert.Regexp(t, "^"+want+"$", said.String())
		})
	}
}
