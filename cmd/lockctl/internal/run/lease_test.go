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
