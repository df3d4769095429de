package run

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// down is a store that refuses the calls of some time.
type down struct {
	lockstore.Store
	from, to time.Time
}

func (d down) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if now := time.Now(); now.After(d.from) && now.Before(d.to) {
		return lockstore.Lease{}, errors.New("WRONGPASS")
	}
	return d.Store.Acquire(ctx, req)
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
				waits := &trusting{Store: down{store, from, from.Add(c.fails)}, timeout: time.Second, failing: failing{stderr: &stderr}}
				g, err := guard.New(waits, guard.Options{})
				require.NoError(t, err)
				_, err = g.Acquire(t.Context(), guard.LeaseRequest{Key: "k", TTL: time.Minute, Wait: 10 * time.Minute})
				require.Error(t, err)
				assert.Equal(t, c.said, stderr.String())
			})
		})
	}
}

// flaky is a store whose renewals fail as the test says.
type flaky struct {
	lockstore.Store
	err error
}

func (f *flaky) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if f.err != nil {
		return 0, f.err
	}
	return f.Store.Renew(ctx, lease, ttl)
}

// The first renewal that fails is told, with the time until the command is ended, and the
// first one that succeeds after that.
func TestRenewalWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		inner := &flaky{Store: memstore.New(time.Now)}
		store := &trusting{Store: inner, timeout: time.Second, killAfter: 10 * time.Second, failing: failing{stderr: &stderr}}
		lease, err := store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		renew := func(ctx context.Context, fails error) string {
			t.Helper()
			stderr.Reset()
			inner.err = fails
			_, err := store.Renew(ctx, lease, time.Minute)
			require.ErrorIs(t, err, fails)
			return stderr.String()
		}
		assert.Empty(t, renew(t.Context(), nil))
		<-time.After(20 * time.Second)
		refused := errors.New("connection refused")
		assert.Equal(t, "lockctl: warning: the lock of \"k\" cannot be renewed, and the command is ended in 29.8s if that stays so: connection refused\n", renew(t.Context(), refused))
		assert.Empty(t, renew(t.Context(), refused), "once")
		assert.Equal(t, "lockctl: the lock of \"k\" is renewed again\n", renew(t.Context(), nil))
		assert.Empty(t, renew(t.Context(), nil), "once")
		assert.NotEmpty(t, renew(t.Context(), refused), "and the next time again")

		store.warned = false
		assert.Empty(t, renew(t.Context(), lockstore.ErrLost), "lockctl tells a loss by its status")
		ended, end := context.WithCancel(t.Context())
		end()
		assert.Empty(t, renew(ended, refused), "the command has ended: nobody needs the renewal")
	})
}
