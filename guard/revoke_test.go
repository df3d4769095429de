package guard

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// After a Revoke with OpenAtOnce, two may be at work for as long as Revoke says. A run that renews is
// told at its next renewal, which comes a third of the TTL after the last one. A run whose
// lease reaches to its deadline renews no more, so it works until then.
func TestRevokedAndOpenAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		deadline, longest time.Duration
		silent            bool // the store answers no renewal after the revoke
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
				var revoked atomic.Bool
				b.store.renew = func(ctx context.Context, n int, r request) (driver.Answer, error) {
					if c.silent && revoked.Load() {
						return silent(ctx, n, r)
					}
					return b.store.pass(ctx, r)
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
				revoked.Store(true)
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

// The guard learns of the Revoke from a renewal. A run that ends before it renews learns of it from
// its release. What was said first is the outcome, whatever the end of the lease says.
func TestRevokedUnderTheWork(t *testing.T) {
	for name, run := range map[string]func(b *bench, work func(context.Context) error) error{
		"Do": func(b *bench, work func(context.Context) error) error {
			return b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error { return work(ctx) })
		},
		"DoAll": func(b *bench, work func(context.Context) error) error {
			return b.DoAll(context.Background(), []string{"j", "k", "l"}, func(ctx context.Context, _ []Lock) error { return work(ctx) })
		},
		"DoOnce": func(b *bench, work func(context.Context) error) error {
			return b.DoOnce(context.Background(), "k", OnceOptions{}, func(ctx context.Context, _ Lock) (Completion, error) { return hour, work(ctx) })
		},
		"DoOnce without a result": func(b *bench, work func(context.Context) error) error {
			return b.DoOnce(context.Background(), "k", OnceOptions{}, func(ctx context.Context, _ Lock) (Completion, error) { return Completion{}, work(ctx) })
		},
	} {
		for i := range 4 {
			atOnce, renews := i%2 == 0, i/2 == 0
			on(fmt.Sprintf("F35 %s, OpenAtOnce %v, renews %v", name, atOnce, renews), t, newBench, Options{}, func(t *testing.T, b *bench) {
				err := run(b, func(ctx context.Context) error {
					status, err := b.Inspect(context.Background(), "k")
					require.NoError(t, err)
					_, err = b.store.Revoke(context.Background(), lockstore.RevokeRequest{Key: "k", Fence: status.Fence, OpenAtOnce: atOnce})
					require.NoError(t, err)
					if !renews {
						return nil
					}
					<-ctx.Done()
					require.ErrorIs(t, context.Cause(ctx), lockstore.ErrLost)
					return nil
				})
				require.IsType(t, &LockLost{}, err)
				require.Equal(t, OutcomeLost, b.reports[0].Outcome)
				if renews {
					require.Equal(t, defaultTTL/3, b.reports[0].HoldTime, "until the first renewal")
				} else {
					require.Empty(t, b.store.renewals)
					require.Zero(t, b.reports[0].HoldTime)
				}
				status, err := b.store.Inspect(context.Background(), "k")
				require.NoError(t, err)
				require.False(t, status.State.Done(), "nothing is stored under a revoked lease")
			})
		}
	}
}
