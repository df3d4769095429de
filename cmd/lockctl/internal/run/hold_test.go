package run

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// guardAlone starts a guard process without lockctl, with its first order. The test reads what
// it reports.
func guardAlone(t *testing.T, first, killAfter string, command ...string) (orders *os.File, reports *bufio.Scanner) {
	t.Helper()
	itsOrders, orders, err := os.Pipe()
	require.NoError(t, err)
	read, itsReports, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(lockctl, append([]string{guardCommand, killAfter}, command...)...)
	cmd.ExtraFiles = []*os.File{itsOrders, itsReports}
	_, err = orders.WriteString(first + "\n")
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, itsOrders.Close())
	require.NoError(t, itsReports.Close())
	t.Cleanup(func() {
		_ = orders.Close() // it ends the command, if there is one
		assert.NoError(t, cmd.Wait())
		assert.NoError(t, read.Close())
	})
	reports = bufio.NewScanner(read)
	require.True(t, reports.Scan())
	assert.Equal(t, "ready", reports.Text())
	return orders, reports
}

// A guard process that begins after the end of trust starts nothing.
func TestGuardProcessIsLate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	_, reports := guardAlone(t, now().add(-time.Nanosecond).order(), "0", "touch", file)
	require.True(t, reports.Scan())
	assert.Equal(t, "late", reports.Text())
	assert.False(t, reports.Scan())
	assert.NoFileExists(t, file)
}

// A command that was told to end because the lease could not be renewed has not done its work,
// also if it ends with 0 and in time. One that an operator ended has the status that it wants.
func TestGuardProcessTellsWhatItEnded(t *testing.T) {
	for name, c := range map[string]struct{ order, want string }{
		"the end of trust is near": {now().add(time.Minute - time.Second).order(), "ended 0 false true"},
		"SIGTERM of an operator":   {"signal 15", "ended 0 true true"},
		"the end":                  {"end", "ended 0 true true"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file")
			orders, reports := guardAlone(t, now().add(time.Hour).order(), strconv.FormatInt(int64(time.Minute), 10),
				"sh", "-c", `trap 'exit 0' TERM; echo begun > "$1"; while :; do sleep 0.01; done`, "sh", file)
			lines(t, file, 1)
			_, err := orders.WriteString(c.order + "\n")
			require.NoError(t, err)
			require.True(t, reports.Scan())
			assert.Contains(t, reports.Text(), "started ")
			require.True(t, reports.Scan())
			assert.Equal(t, c.want, reports.Text())
		})
	}
}

// The command's own child gets a signal, too, and not only when the command has ended.
func TestGuardProcessSignalsTheGroup(t *testing.T) {
	for name, order := range map[string]string{
		"a signal that is passed on": "signal 15",
		"the end":                    "end",
		"the end of trust is near":   now().add(time.Minute - time.Second).order(),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			begun, told := filepath.Join(dir, "begun"), filepath.Join(dir, "told")
			orders, reports := guardAlone(t, now().add(time.Hour).order(), strconv.FormatInt(int64(time.Minute), 10), "sh", "-c", `trap : TERM
				sh -c 'trap "echo TERM > $2; exit" TERM; echo begun > "$1"; while :; do sleep 0.01; done' sh "$1" "$2" &
				while [ ! -s "$2" ]; do sleep 0.01; done; exit 5`, "sh", begun, told)
			lines(t, begun, 1)
			_, err := orders.WriteString(order + "\n")
			require.NoError(t, err)
			assert.Equal(t, []string{"TERM"}, lines(t, told, 1))
			require.True(t, reports.Scan())
			require.True(t, reports.Scan())
			assert.Regexp(t, "^ended 5 ", reports.Text())
		})
	}
}

// What lockctl makes of the last report of the guard process.
func TestEnded(t *testing.T) {
	for name, c := range map[string]struct {
		line   string
		status int
		text   string
	}{
		"late":                        {"late", exit.Lost, "was not started"},
		"success":                     {"ended 0 true true", 0, ""},
		"lost":                        {"ended 0 false true", exit.Lost, "was lost"},
		"lost, and renewed too late":  {"ended 143 false true", exit.Lost, "another wrote: no renewal had succeeded when --kill-after, 10s, or less was left of the lease"},
		"a process is left":           {"ended 0 true false", 0, ""},
		"a process is left, and lost": {"ended 0 false false", exit.Lost, "was lost"},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := guard.New(memstore.New(time.Now), guard.Options{})
			require.NoError(t, err)
			lease, err := g.Acquire(t.Context(), guard.LeaseRequest{Key: "k", TTL: time.Minute})
			require.NoError(t, err)
			var stderr bytes.Buffer
			h := &hold{settings: &settings{key: "k", ttl: time.Minute, killAfter: defaultKillAfter}, guard: g, lease: lease, until: now().add(lease.TTL), stderr: &stderr,
				command: &guarded{started: true}}
			err = h.ended(t.Context(), parseReport(c.line))
			assert.Equal(t, c.status, exit.Status(err))
			if err != nil {
				assert.ErrorContains(t, err, c.text)
			}
			left := strings.Contains(name, "left")
			assert.Equal(t, left, strings.Contains(stderr.String(), "cannot be ended"), stderr.String())
			status, err := g.Inspect(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, left, status.State.Taken())
		})
	}
}

// The next renewal comes before the guard process sends SIGTERM, also if the store grants
// less trust than the lease that was asked for.
func TestUntilRenewal(t *testing.T) {
	for name, c := range map[string]struct{ ttl, killAfter, left, want time.Duration }{
		"a third of the lease":    {time.Minute, 10 * time.Second, 59 * time.Second, 20 * time.Second},
		"the least lease":         {time.Second, 250 * time.Millisecond, 500 * time.Millisecond, 125 * time.Millisecond},
		"after a lost reply":      {5 * time.Second, 1250 * time.Millisecond, 2500 * time.Millisecond, 625 * time.Millisecond},
		"SIGTERM was sent":        {time.Minute, 10 * time.Second, 9 * time.Second, lookEvery},
		"the end of trust passed": {time.Minute, 0, -time.Second, lookEvery},
	} {
		h := &hold{settings: &settings{ttl: c.ttl, killAfter: c.killAfter}}
		assert.Equal(t, c.want, h.untilRenewal(c.left), name)
	}
}

// brief is a driver that lets nobody trust a lease for long.
type brief struct{ driver.Driver }

const briefTrust = 2 * time.Second

func (b brief) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	a, err := b.Driver.Do(ctx, key, r)
	a.TTL = min(a.TTL, briefTrust)
	return a, err
}

// A long lease is renewed within the trust that was granted.
func TestRenewsWithinTheTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(time.Now).WrapDriver(func(d driver.Driver) driver.Driver { return brief{d} })
		lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		s := &settings{ttl: time.Minute}
		s.Timeout = time.Minute
		h := &hold{settings: s, store: store, lease: lease, until: now().add(lease.TTL - margin)}
		ctx, stop := context.WithCancel(t.Context())
		answers, joined := make(chan renewal), make(chan struct{})
		go func() {
			defer close(joined)
			h.renew(ctx, answers)
		}()
		for range 3 {
			answer := <-answers
			require.NoError(t, answer.failed)
			require.False(t, answer.lost)
		}
		stop()
		<-joined
	})
}

// down is a driver that fails for some time. Its waits are short.
type down struct {
	driver.Driver
	from, to time.Time
}

func (d down) fails() error {
	if now := time.Now(); now.After(d.from) && now.Before(d.to) {
		return errors.New("WRONGPASS")
	}
	return nil
}

func (d down) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if err := d.fails(); err != nil {
		return driver.Answer{}, err
	}
	return d.Driver.Do(ctx, key, r)
}

func (d down) Await(ctx context.Context, _ string, _ driver.Request) (driver.Answer, error) {
	select {
	case <-time.After(time.Second):
		return driver.Answer{Outcome: driver.NotYet}, d.fails()
	case <-ctx.Done():
		return driver.Answer{}, ctx.Err()
	}
}

// Who waits is told that the calls fail, once, and that they succeed again, once.
func TestWaitWarns(t *testing.T) {
	for name, c := range map[string]struct {
		fails time.Duration
		said  string
	}{
		"for long":      {time.Minute, "lockctl: warning: calls of the store have failed for 30s; lockctl goes on waiting: WRONGPASS\nlockctl: the store answers again\n"},
		"not for long":  {29 * time.Second, ""},
		"not even once": {0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				store := memstore.New(time.Now)
				_, err := store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Hour})
				require.NoError(t, err)
				var stderr bytes.Buffer
				from := began.Add(time.Minute)
				g, err := guard.New(store.WrapDriver(func(d driver.Driver) driver.Driver {
					return &trusting{Driver: down{d, from, from.Add(c.fails)}, timeout: time.Second, failing: failing{stderr: &stderr}}
				}), guard.Options{})
				require.NoError(t, err)
				_, err = g.Acquire(t.Context(), guard.LeaseRequest{Key: "k", TTL: time.Minute, Wait: 10 * time.Minute})
				require.Error(t, err)
				assert.Equal(t, c.said, stderr.String())
			})
		})
	}
}

// refusing is a driver that answers with an error of a Redis server.
type refusing string

func (r refusing) Error() string { return string(r) }
func (refusing) RedisError()     {}

func (r refusing) Do(context.Context, string, driver.Request) (driver.Answer, error) {
	return driver.Answer{}, fmt.Errorf("%w: %w", lockstore.ErrUnavailable, r)
}

func (refusing) Await(context.Context, string, driver.Request) (driver.Answer, error) {
	return driver.Answer{}, nil
}

// The guard does not repeat a first request that is refused for the user or for the set-up. Later
// such a refusal ends no wait.
func TestFirstRefusalIsFinal(t *testing.T) {
	for text, is := range map[refusing]bool{"WRONGPASS": true, "MOVED 1 127.0.0.1:1: the URL needs cluster=true": true, "MOVED 1 127.0.0.1:1": false, "ERR This instance has cluster support disabled": true, "LOADING": false} {
		d := &trusting{Driver: text, timeout: time.Second}
		for _, first := range []bool{true, false} {
			_, err := d.Do(t.Context(), "k", driver.Request{Kind: driver.Acquire})
			assert.Equal(t, is && first, errors.Is(err, lockstore.ErrCorrupt), text)
			require.ErrorIs(t, err, text)
		}
	}
}

// slowGrant is a driver whose answer comes a second after the grant.
type slowGrant struct{ driver.Driver }

func (d slowGrant) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	a, err := d.Driver.Do(ctx, key, r)
	<-time.After(time.Second)
	return a, err
}

// The end of trust counts from before the request, whatever happens to lockctl until it has
// the answer.
func TestTrustCountsFromBeforeTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trust := &trusting{timeout: time.Minute}
		store := memstore.New(time.Now).WrapDriver(func(d driver.Driver) driver.Driver {
			trust.Driver = slowGrant{d}
			return trust
		})
		began := time.Now()
		lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		const trusted = 59_750 * time.Millisecond // the margin is that of package guard, 250 ms
		assert.Equal(t, began.Add(trusted).UnixNano(), trust.until.wall)
		_, err = store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Hour})
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.NoError(t, store.MarkStarted(t.Context(), lease))
		assert.Equal(t, began.Add(trusted).UnixNano(), trust.until.wall, "only a grant changes it")
	})
}

// flaky is a driver whose renewals fail as the test says.
type flaky struct {
	driver.Driver
	fails chan error // of the next renewal
}

func (f flaky) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if r.Kind == driver.Renew {
		if err := <-f.fails; err != nil {
			return driver.Answer{}, err
		}
	}
	return f.Driver.Do(ctx, key, r)
}

// The first renewal that fails is told, with the time until the command is ended, and the
// first one that succeeds after that.
func TestRenewalWarns(t *testing.T) {
	orders, itsOrders, err := os.Pipe()
	require.NoError(t, err)
	defer orders.Close()
	defer itsOrders.Close()
	this, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		renewalFails := make(chan error)
		store := memstore.New(time.Now).WrapDriver(func(d driver.Driver) driver.Driver { return flaky{d, renewalFails} })
		lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		s := &settings{key: "k", ttl: time.Minute, killAfter: 10 * time.Second}
		s.Timeout = time.Second
		h := &hold{settings: s, store: store, lease: lease, until: now().add(time.Minute - margin), stderr: &stderr,
			command: &guarded{process: this, orders: itsOrders, started: true}}
		ctx, stop := context.WithCancel(t.Context())
		renewals, joined := make(chan renewal), make(chan struct{})
		go func() {
			defer close(joined)
			h.renew(ctx, renewals)
		}()
		renew := func(fails error) string {
			t.Helper()
			stderr.Reset()
			renewalFails <- fails
			r := <-renewals
			require.ErrorIs(t, r.failed, fails)
			h.renewed(r)
			return stderr.String()
		}
		assert.Empty(t, renew(nil))
		refused := errors.New("connection refused")
		assert.Equal(t, "lockctl: warning: the lock of \"k\" cannot be renewed, and the command is ended in 29.8s if that stays so: connection refused\n", renew(refused))
		assert.Empty(t, renew(refused), "once")
		assert.Equal(t, "lockctl: the lock of \"k\" is renewed again\n", renew(nil))
		assert.Empty(t, renew(nil), "once")
		assert.NotEmpty(t, renew(refused), "and the next time again")
		assert.NotEmpty(t, renew(nil))
		assert.Empty(t, renew(lockstore.ErrLost), "lockctl tells a loss by its status")
		require.ErrorIs(t, h.lost, lockstore.ErrLost)
		<-joined // nothing is renewed after that
		stop()
	})
}
