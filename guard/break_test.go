package guard

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// After a Revoke with OpenAtOnce, two may be at work for as long as Revoke says. A run that renews is
// told at its next renewal, which comes a third of the TTL after the last one. A run whose
// lease reaches to its deadline renews no more, so it works until then.
func TestBrokenNow(t *testing.T) {
	for name, c := range map[string]struct {
		deadline, longest time.Duration
		refuse            bool // the store answers no renewal after the break
	}{
		"a run that renews":                    {10 * time.Minute, defaultTTL / 3, false},
		"a run that renews, and gets no reply": {10 * time.Minute, defaultTTL, true},
		"a run that has no need to renew":      {50 * time.Second, 50 * time.Second, false},
	} {
		bubble(name, t, func(t *testing.T) {
			var longest time.Duration
			const moments = 200
			for i := range moments {
				b := newBench(t, Options{})
				var broken atomic.Bool
				b.store.renew = func(ctx context.Context, _ int, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
					if c.refuse && broken.Load() {
						<-ctx.Done()
						return 0, ctx.Err()
					}
					return b.store.Store.Renew(ctx, lease, ttl)
				}
				ctx, cancel := context.WithTimeout(context.Background(), c.deadline)
				ended := make(chan time.Time)
				go func() {
					_ = b.Do(ctx, "k", func(ctx context.Context, _ Lock) error {
						<-ctx.Done()
						ended <- time.Now()
						return ctx.Err()
					})
				}()
				pass(1 + time.Duration(i)*45*time.Second/moments)

				held, err := b.Inspect(ctx, "k")
				require.NoError(t, err)
				broken.Store(true)
				at := time.Now()
				status, err := b.store.Store.Revoke(ctx, lockstore.RevokeRequest{Key: "k", Fence: held.Fence, OpenAtOnce: true})
				require.NoError(t, err)
				b.free(t, "k")
				window := (<-ended).Sub(at)
				cancel()
				require.LessOrEqual(t, window, status.Remaining, "longer than Revoke said")
				longest = max(longest, window)
			}
			t.Logf("two could be at work for at most %v", longest)
			require.LessOrEqual(t, longest, c.longest)
			require.Greater(t, longest, c.longest*9/10, "the limit is wider than it needs to be")
		})
	}
}
