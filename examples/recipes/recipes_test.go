package recipes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func newGuard(t *testing.T, options guard.Options) *guard.Guard {
	g, err := guard.New(memstore.New(nil), options)
	require.NoError(t, err)
	return g
}

// One tenant has far more runs than its share. Those of the others do not wait for them.
func TestTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, guard.Options{Wait: time.Minute})
		var mu sync.Mutex
		running, most := map[string]int{}, map[string]int{}
		var all sync.WaitGroup
		began := time.Now()
		do := func(tenant string) {
			all.Go(func() {
				require.NoError(t, Tenant(t.Context(), g, tenant, 3, 8, func(context.Context, guard.Lock) error {
					count := func(by int) {
						mu.Lock()
						defer mu.Unlock()
						for _, name := range []string{tenant, "all"} {
							running[name] += by
							most[name] = max(most[name], running[name])
						}
					}
					count(1)
					<-time.After(time.Second)
					count(-1)
					if tenant != "busy" {
						require.Less(t, time.Since(began), 3*time.Second)
					}
					return nil
				}))
			})
		}
		for range 30 {
			do("busy")
		}
		synctest.Wait()
		for _, tenant := range []string{"a", "b"} {
			do(tenant)
			do(tenant)
			do(tenant)
		}
		all.Wait()
		require.Equal(t, 3, most["busy"])
		require.Equal(t, 8, most["all"])
		require.LessOrEqual(t, max(most["a"], most["b"]), 3)
	})
}

func TestOverTwoInvocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(nil)
		first, err := guard.New(store, guard.Options{})
		require.NoError(t, err)
		second, err := guard.New(store, guard.Options{})
		require.NoError(t, err)
		owner := lockstore.NewOwner()
		_, err = Begin(t.Context(), first, "report", owner, time.Hour) // its answer is lost
		require.NoError(t, err)
		text, err := Begin(t.Context(), second, "report", owner, time.Hour)
		require.NoError(t, err, "the next try")
		<-time.After(30 * time.Minute)
		_, err = Begin(t.Context(), second, "report", lockstore.NewOwner(), time.Hour)
		require.IsType(t, &guard.LockBusy{}, err)

		wrong := errors.New("wrong")
		require.ErrorIs(t, Finish(t.Context(), second, text, time.Minute, func(context.Context, guard.Lock) error { return wrong }), wrong)
		require.NoError(t, Finish(t.Context(), second, text, time.Minute, func(ctx context.Context, lock guard.Lock) error {
			require.Equal(t, "report", lock.Key)
			require.Positive(t, lock.Fence)
			require.NoError(t, ctx.Err())
			return nil
		}))
		_, err = Begin(t.Context(), first, "report", lockstore.NewOwner(), time.Minute)
		require.NoError(t, err, "it is free")
		require.ErrorIs(t, Finish(t.Context(), second, text, time.Minute, nil), lockstore.ErrLost)
		require.ErrorIs(t, Finish(t.Context(), second, "no lease", time.Minute, nil), lockstore.ErrInvalid)
	})
}
