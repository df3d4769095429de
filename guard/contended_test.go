package guard

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// contended is a store that answers for so long, from its first request on, that others were quicker. Then it goes on with
// the hook. If atLast, an answer comes only with the end of the call's context, and leaves the outcome unknown.
func (b *bench) contended(lasts time.Duration, atLast bool, then hook) (h hook, began *time.Time) {
	began = new(time.Time)
	var first sync.Once
	return func(ctx context.Context, n int, r request) (driver.Answer, error) {
		first.Do(func() { *began = time.Now() })
		switch {
		case time.Since(*began) >= lasts:
			return then(ctx, n, r)
		case atLast:
			<-ctx.Done()
			return driver.Answer{}, fmt.Errorf("%w: %w", lockstore.ErrContended, ctx.Err())
		}
		pass(20 * time.Millisecond)
		return driver.Answer{}, fmt.Errorf("%w: %w", lockstore.ErrUnavailable, lockstore.ErrContended)
	}, began
}

// A release, an abandon and a leave have 5 s while the store answers that others were quicker, but not more than the deadline
// and Shutdown leave. After the last such answer they have as much time as with a store that does not answer.
func TestContendedRelease(t *testing.T) {
	const always, exact = time.Hour, 21 * time.Millisecond // one answer of the store
	for name, c := range map[string]struct {
		lasts          time.Duration
		then           hook          // nil: the store
		deadline, shut time.Duration // after the end of the work; 0 is none
		least, most    time.Duration // how long the release takes
		fails          bool
	}{
		"F28 3 s":                              {lasts: 3 * time.Second, least: 3 * time.Second, most: 4 * time.Second},
		"F28 always":                           {lasts: always, least: contendedTime - maxWaitPause, most: contendedTime + exact, fails: true},
		"F28 never":                            {then: silent, least: releaseTime, most: releaseTime + exact, fails: true},
		"F28 2 s, then the store is silent":    {lasts: 2 * time.Second, then: silent, least: 2 * time.Second, most: 2*time.Second + 2*releaseTime, fails: true},
		"F28 F11 always, and the deadline":     {lasts: always, deadline: 2 * time.Second, least: time.Second, most: 2*time.Second - answerTime + exact, fails: true},
		"F28 F69 always, and a Shutdown":       {lasts: always, shut: 2 * time.Second, least: 2 * time.Second, most: 2*time.Second + shutdownTime + exact, fails: true},
		"F28 F69 always, after Shutdown began": {lasts: always, shut: time.Millisecond, most: shutdownTime + exact, fails: true},
	} {
		for _, atLast := range []bool{false, true} {
			on(fmt.Sprint(name, ", late ", atLast), t, newBench, Options{Wait: time.Second}, func(t *testing.T, b *bench) {
				for _, what := range []string{"release", "abandon", "leave"} {
					if what != "release" && c.deadline+c.shut > 0 {
						break
					}
					last := c.then
					if last == nil {
						last = func(ctx context.Context, _ int, r request) (driver.Answer, error) { return b.store.pass(ctx, r) }
					}
					h, began := b.contended(c.lasts, atLast, last)
					b.store.release, b.store.leave = h, h
					ctx, left := context.Background(), time.Duration(0)
					if c.deadline > 0 {
						left = 10 * time.Second
						ctx = within(t, left)
					}
					switch what {
					case "release":
						require.NoError(t, b.Do(ctx, what, func(context.Context, Lock) error {
							pass(left - c.deadline) // it looks at no context
							if c.shut > 0 {
								time.AfterFunc(c.shut, b.Shutdown)
							}
							return nil
						}))
					case "abandon":
						b.store.acquire = silent
						require.Error(t, b.Do(ctx, what, neverRuns(t)))
						b.store.acquire = nil
					case "leave":
						lease := b.occupy(t, what, time.Minute)
						require.Error(t, b.Do(ctx, what, neverRuns(t)))
						require.NoError(t, b.store.Store.Release(context.Background(), lease))
					}
					took := time.Since(*began)
					if r := b.reports[len(b.reports)-1]; c.fails {
						require.Error(t, r.ReleaseErr, what)
					} else {
						require.NoError(t, r.ReleaseErr, what)
						b.free(t, what)
					}
					require.GreaterOrEqual(t, took, c.least, what)
					require.LessOrEqual(t, took, c.most, what)
					b.store.release, b.store.leave = nil, nil
				}
			})
		}
	}
	for _, n := range []int{2, 16} {
		on(fmt.Sprintf("F28 of %d keys end in the time of one", n), t, newBench, Options{}, func(t *testing.T, b *bench) {
			h, began := b.contended(always, false, silent)
			b.store.release = h
			require.NoError(t, b.DoAll(context.Background(), letters(n), func(context.Context, []Lock) error { return nil }))
			require.LessOrEqual(t, time.Since(*began), contendedTime+exact)
			for _, key := range letters(n) {
				require.Contains(t, b.store.released(), key)
			}
		})
	}
	on("F28 a result has its own time, also after the store has answered so", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.complete, _ = b.contended(time.Second, false, b.until(20*time.Second, fails(errDown)))
		require.NoError(t, b.DoOnce(t.Context(), "k", doonce.Options{}, func(context.Context, Lock) (doonce.Completion, error) { return hour, nil }))
		require.NoError(t, b.report(t).CompleteErr)
	})
	on("F28 a renewal that meets others asks again at short intervals", t, newBench, Options{TTL: 3 * time.Second}, func(t *testing.T, b *bench) {
		b.store.renew, _ = b.contended(always, false, silent)
		require.IsType(t, &LockLost{}, b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error { <-ctx.Done(); return nil }))
		require.Greater(t, len(b.store.renewals), 8)
	})
}
