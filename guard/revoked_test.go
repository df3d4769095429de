package guard

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/lockstore"
)

// A run that learns of a Revoke at its renewal releases the lease when its work returns. So the key
// opens, and a waiting run gets it, long before the end of the revoked lease.
func TestRevokedRunOpensTheKey(t *testing.T) {
	work := func(ctx context.Context) error {
		<-ctx.Done()
		pass(time.Second)
		return context.Cause(ctx)
	}
	for name, do := range map[string]func(context.Context, *bench) error{
		"Do": func(ctx context.Context, b *bench) error {
			return b.Do(ctx, "k", func(ctx context.Context, _ Lock) error { return work(ctx) })
		},
		"DoOnce": func(ctx context.Context, b *bench) error {
			return b.DoOnce(ctx, "k", doonce.Options{}, func(ctx context.Context, _ Lock) (doonce.Completion, error) { return doonce.Completion{}, work(ctx) })
		},
	} {
		on("F35 "+name, t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
			began := time.Now()
			ended := make(chan error)
			go func() { ended <- do(context.Background(), b) }()
			pass(time.Second)
			_, err := b.store.Revoke(context.Background(), lockstore.RevokeRequest{Key: "k", Fence: b.status(t, "k").Fence})
			require.NoError(t, err)
			next := make(chan time.Duration)
			go func() {
				_ = b.Do(context.Background(), "k", func(context.Context, Lock) error { next <- time.Since(began); return nil })
			}()
			got := <-next
			require.IsType(t, &LockLost{}, <-ended)
			require.GreaterOrEqual(t, got, defaultTTL/3+time.Second, "the work had not returned")
			require.Less(t, got, defaultTTL/3+2*time.Second, "after the first renewal and the work")
		})
	}
	on("F35 a lease whose work has started: in doubt at its end, and not before", t, newBench, Options{}, func(t *testing.T, b *bench) {
		began := time.Now()
		err := b.DoOnce(context.Background(), "k", doonce.Options{MarkStarted: true}, func(ctx context.Context, lock Lock) (doonce.Completion, error) {
			_, err := b.store.Revoke(ctx, lockstore.RevokeRequest{Key: "k", Fence: lock.Fence})
			require.NoError(t, err)
			return doonce.Completion{NoEffect: true}, work(ctx)
		})
		require.IsType(t, &LockLost{}, err)
		require.Equal(t, lockstore.Revoked, b.status(t, "k").State)
		pass(defaultTTL - time.Since(began))
		require.Equal(t, lockstore.InDoubt, b.status(t, "k").State)
	})
}
