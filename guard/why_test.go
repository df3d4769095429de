package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Who reads LockLost has to learn why, and to learn it once.
func TestLockLostSaysWhy(t *testing.T) {
	refused := fmt.Errorf("redisstore: dial tcp 10.0.0.1:6379: connection refused: %w", lockstore.ErrUnavailable)
	down := func(b *bench) {
		b.store.renew = fails(refused)
	}
	wait := func(ctx context.Context, _ *bench) error { <-ctx.Done(); return nil }
	for name, c := range map[string]struct {
		left  time.Duration // 0: one minute
		store func(*bench)
		work  func(context.Context, *bench) error
		want  []string
		not   []string
	}{
		"F71 renewals failed": {store: down, work: wait, want: []string{"the last renewal failed", "connection refused"}, not: []string{"stood still", "went on"}},
		"F08 the monotonic clock stood still, and nobody waited": {
			work: func(_ context.Context, b *bench) error { b.shift(instant{wall: 8 * time.Second}); return nil },
			want: []string{"stood still for 8s"}, not: []string{"renewal", "went on"},
		},
		"F07 stopped, with both clocks going on": {
			work: func(ctx context.Context, b *bench) error {
				time.AfterFunc(500*time.Millisecond, func() { b.shift(instant{mono: 8 * time.Second, wall: 8 * time.Second}) })
				<-ctx.Done()
				return nil
			},
			want: []string{"stood still for 8s"}, not: []string{"renewal", "went on"},
		},
		"F08 a freeze before the last renewal is not why": {
			store: func(b *bench) {
				b.store.renew = func(ctx context.Context, n int, r request) (driver.Answer, error) {
					if n > 2 {
						return driver.Answer{}, refused
					}
					return b.store.pass(ctx, r)
				}
			},
			work: func(ctx context.Context, b *bench) error {
				pass(500 * time.Millisecond)
				b.shift(instant{wall: 3 * time.Second})
				<-ctx.Done()
				return nil
			},
			want: []string{"connection refused"}, not: []string{"stood still"},
		},
		"the work outlasted its deadline and its lease": {
			left: 3 * time.Second,
			work: func(context.Context, *bench) error { pass(5 * time.Second); return nil },
			want: []string{"the work went on after its end"}, not: []string{"renewal", "stood still"},
		},
	} {
		on(name, t, newBench, Options{TTL: 5 * time.Second}, func(t *testing.T, b *bench) {
			if c.store != nil {
				c.store(b)
			}
			if c.left == 0 {
				c.left = time.Minute
			}
			err := b.Do(within(t, c.left), "k", func(ctx context.Context, _ Lock) error { return c.work(ctx, b) })
			require.IsType(t, &LockLost{}, err)
			assert.ErrorIs(t, err, lockstore.ErrLost)
			assert.NotErrorIs(t, err, lockstore.ErrUnavailable, "a renewal that was refused makes the loss no refusal")
			text := err.Error()
			assert.Equal(t, 1, strings.Count(text, "lost"), text)
			for _, want := range c.want {
				assert.Equal(t, 1, strings.Count(text, want), "%s: %s", want, text)
			}
			for _, not := range c.not {
				assert.NotContains(t, text, not)
			}
		})
	}
}

func TestErrorTexts(t *testing.T) {
	missing := errors.New(`dynamostore: there is no table "locks" in eu-west-1`)
	require.EqualError(t, &LockLost{"k", nil, lockstore.ErrLost}, `lock "k" was lost; what was written under it may stand`)
	why := fmt.Errorf("stood still: %w", lockstore.ErrLost)
	require.EqualError(t, &LockLost{"k", why, why}, `lock "k" was lost; what was written under it may stand: stood still`, "once, if the work returns its context's cause")
	require.EqualError(t, &LockCorrupt{"k", missing}, `dynamostore: there is no table "locks" in eu-west-1 (lock "k")`)
	on("F65 a reserve that does not fit names both times", t, newBench, Options{DeadlineMargin: 40 * time.Second}, func(t *testing.T, b *bench) {
		err := b.Do(within(t, 30*time.Second), "k", neverRuns(t))
		require.EqualError(t, err, `lock "k": no time left to run the work: the deadline is 30s away; want at least DeadlineMargin (40s) and 100ms for the work`)
	})
}
