package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

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
		"not for long":  {silentTime - time.Second, ""},
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
		assert.Equal(t, began.Add(time.Minute-margin).UnixNano(), trust.until.wall)
		_, err = store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Hour})
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.NoError(t, store.MarkStarted(t.Context(), lease))
		assert.Equal(t, began.Add(time.Minute-margin).UnixNano(), trust.until.wall, "only a grant changes it")
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
			command: &guarded{process: this, orders: itsOrders}}
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
