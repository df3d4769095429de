package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// guardAlone is a guard process without lockctl.
type guardAlone struct {
	t       *testing.T
	orders  *json.Encoder
	reports *json.Decoder
}

func startGuardAlone(t *testing.T, until moment, killAfter time.Duration, command ...string) guardAlone {
	t.Helper()
	itsOrders, orders, err := os.Pipe()
	require.NoError(t, err)
	reports, itsReports, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(lockctl, append([]string{guardCommand, strconv.FormatInt(int64(killAfter), 10)}, command...)...)
	cmd.ExtraFiles = []*os.File{itsOrders, itsReports}
	require.NoError(t, cmd.Start())
	require.NoError(t, itsOrders.Close())
	require.NoError(t, itsReports.Close())
	t.Cleanup(func() {
		_ = orders.Close() // it ends the command, if there is one
		assert.NoError(t, cmd.Wait())
		assert.NoError(t, reports.Close())
	})
	g := guardAlone{t, json.NewEncoder(orders), json.NewDecoder(reports)}
	assert.Equal(t, report{Word: wordReady}, g.says())
	g.gets(order{Until: until})
	return g
}

func (g guardAlone) gets(o order) {
	g.t.Helper()
	require.NoError(g.t, g.orders.Encode(o))
}

func (g guardAlone) says() (r report) {
	g.t.Helper()
	require.NoError(g.t, g.reports.Decode(&r))
	return r
}

// A guard process that begins after the end of trust starts nothing.
func TestGuardProcessIsLate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	g := startGuardAlone(t, now().add(-time.Nanosecond), 0, "touch", file)
	assert.Equal(t, report{Word: wordLate}, g.says())
	assert.NoFileExists(t, file)
}

// A command that was told to end because the lease could not be renewed has not done its work,
// also if it ends with 0 and in time. One that an operator ended has the status that it wants. Its child is told, too.
func TestGuardProcessTellsWhatItEnded(t *testing.T) {
	for name, c := range map[string]struct {
		order   order
		trusted bool
	}{
		"the end of trust is near": {order{Until: now().add(time.Minute - time.Second)}, false},
		"SIGTERM of an operator":   {order{Signal: syscall.SIGTERM}, true},
		"the end":                  {order{End: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			begun, told := filepath.Join(dir, "begun"), filepath.Join(dir, "told")
			g := startGuardAlone(t, now().add(time.Hour), time.Minute, "sh", "-c", `trap : TERM
				sh -c 'trap "echo TERM > $2; exit" TERM; echo begun > "$1"; while :; do sleep 0.01; done' sh "$1" "$2" &
				while [ ! -s "$2" ]; do sleep 0.01; done; exit 0`, "sh", begun, told)
			lines(t, begun, 1)
			g.gets(c.order)
			assert.Equal(t, []string{"TERM"}, lines(t, told, 1))
			assert.Equal(t, wordStarted, g.says().Word)
			assert.Equal(t, report{Word: wordEnded, Trusted: c.trusted, Gone: true}, g.says())
		})
	}
}

// What lockctl makes of the last report of the guard process.
func TestEnded(t *testing.T) {
	for name, c := range map[string]struct {
		last   report
		status int
		text   string
	}{
		"late":                        {report{Word: wordLate}, exit.Lost, "was not started"},
		"success":                     {report{Word: wordEnded, Trusted: true, Gone: true}, 0, ""},
		"lost":                        {report{Word: wordEnded, Gone: true}, exit.Lost, "was lost"},
		"lost, and renewed too late":  {report{Word: wordEnded, Number: 143, Gone: true}, exit.Lost, "another wrote: no renewal had succeeded when 10s or less was left of the lease"},
		"a process is left":           {report{Word: wordEnded, Trusted: true}, 0, ""},
		"a process is left, and lost": {report{Word: wordEnded}, exit.Lost, "was lost"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			h := holdOf(t, memstore.New(time.Now), &stderr)
			h.command = &guarded{started: true}
			err := h.ended(t.Context(), c.last)
			assert.Equal(t, c.status, exit.Status(err))
			if err != nil {
				assert.ErrorContains(t, err, c.text)
			}
			left := strings.Contains(name, "left")
			assert.Equal(t, left, strings.Contains(stderr.String(), "cannot be ended"), stderr.String())
			status, err := h.guard.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, left, status.State.Taken())
		})
	}
}

// holdOf holds the key k of a store.
func holdOf(t *testing.T, store *lockstore.Store, stderr *bytes.Buffer) *hold {
	t.Helper()
	granted := &grant{}
	g, err := guard.New(stores.Around(store, granted.around), guard.Options{})
	require.NoError(t, err)
	lease, err := g.Acquire(t.Context(), guard.LeaseRequest{Key: "k", TTL: time.Minute})
	require.NoError(t, err)
	return &hold{settings: &settings{key: "k", ttl: time.Minute}, guard: g, lease: lease, until: granted.sent.add(lease.TTL), stderr: stderr}
}

// changed is memstore with other answers. The clock of the test begins with the store.
func changed(change func(since time.Duration, r driver.Request, a *driver.Answer) error) *lockstore.Store {
	began := time.Now()
	return stores.Around(memstore.New(time.Now), func(do stores.Do) stores.Do {
		return func(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
			a, err := do(ctx, key, r)
			return a, errors.Join(err, change(time.Since(began), r, &a))
		}
	})
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
	orders, itsOrders, err := os.Pipe()
	require.NoError(t, err)
	defer orders.Close()
	defer itsOrders.Close()
	this, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		h := holdOf(t, changed(func(since time.Duration, r driver.Request, _ *driver.Answer) error {
			minute := since % time.Minute
			if r.Kind == driver.Renew && minute > 30*time.Second && minute < 50*time.Second {
				return errors.New("connection refused")
			}
			return nil
		}), &stderr)
		h.command = &guarded{process: this, orders: itsOrders, started: true}
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
