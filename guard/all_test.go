package guard

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// asked and released are the keys of the store's requests, in their order.

func (h *hooked) asked() (keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, req := range h.requests {
		keys = append(keys, req.Key)
	}
	return keys
}

func (h *hooked) released() (keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, lease := range h.releases {
		keys = append(keys, lease.Key)
	}
	return keys
}

// outcomes are the reports by key.
func (b *bench) outcomes(t *testing.T) map[string]Outcome {
	t.Helper()
	all := map[string]Outcome{}
	for _, r := range b.reports {
		require.NotContains(t, all, r.Key, "one report for each key")
		all[r.Key] = r.Outcome
	}
	return all
}

func neverRunsAll(t *testing.T) func(context.Context, []Lock) error {
	return func(context.Context, []Lock) error {
		t.Error("the work ran")
		return nil
	}
}

func letters(n int) (keys []string) {
	for i := range n {
		keys = append(keys, string(rune('a'+i)))
	}
	return keys
}

func TestDoAll(t *testing.T) {
	ctx := context.Background()
	on("the work has the locks in the order of the caller's keys, and all are held", t, newBench, Options{}, func(t *testing.T, b *bench) {
		require.NoError(t, b.DoAll(ctx, []string{"c", "a", "b"}, func(_ context.Context, locks []Lock) error {
			fences := map[string]lockstore.Fence{}
			for _, key := range []string{"a", "b", "c"} {
				status := b.status(t, key)
				require.Equal(t, lockstore.Held, status.State)
				fences[key] = status.Fence
			}
			require.Equal(t, []Lock{{"c", fences["c"], 0}, {"a", fences["a"], 0}, {"b", fences["b"], 0}}, locks)
			pass(time.Second)
			return nil
		}))
		require.Equal(t, []string{"a", "b", "c"}, b.store.asked(), "in one order whoever asks")
		require.ElementsMatch(t, []string{"c", "b", "a"}, b.store.released())
		require.Equal(t, map[string]Outcome{"a": OutcomeOK, "b": OutcomeOK, "c": OutcomeOK}, b.outcomes(t))
		for _, r := range b.reports {
			require.Equal(t, time.Second, r.HoldTime)
			require.Equal(t, 2, r.Calls)
			require.Positive(t, r.Fence)
			require.WithinDuration(t, time.Now().Add(-time.Second), r.AcquiredAt, time.Millisecond)
			require.NoError(t, r.Err)
			require.NoError(t, r.ReleaseErr)
			b.free(t, r.Key)
		}
		require.Empty(t, b.runs.runs, "the guard keeps nothing of a run that is over")
	})
	on("a key that stands twice is locked once", t, newBench, Options{}, func(t *testing.T, b *bench) {
		require.NoError(t, b.DoAll(ctx, []string{"b", "a", "b"}, func(_ context.Context, locks []Lock) error {
			require.Equal(t, []string{"b", "a", "b"}, []string{locks[0].Key, locks[1].Key, locks[2].Key})
			require.Equal(t, locks[0], locks[2])
			return nil
		}))
		require.Equal(t, []string{"a", "b"}, b.store.asked())
	})
	on("16 keys are the most, and each has what one has", t, newBench, Options{}, func(t *testing.T, b *bench) {
		keys := letters(16)
		require.NoError(t, b.DoAll(within(t, 10*time.Second), keys, func(ctx context.Context, locks []Lock) error {
			require.Len(t, locks, 16)
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, 9700*time.Millisecond, time.Until(deadline), "the reserve is there once")
			<-ctx.Done()
			require.Equal(t, ErrDeadline, context.Cause(ctx))
			require.Equal(t, context.DeadlineExceeded, ctx.Err())
			return nil
		}))
		for _, req := range b.store.requests {
			require.Equal(t, 11*time.Second, req.TTL)
		}
		require.Empty(t, b.store.renewals)
	})
}

func TestDoAllRefusesBeforeItAsks(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		keys []string
		key  string
		want string
	}{
		"no key":                     {nil, "", "there are 0 keys; want 1 to 16"},
		"F48 17 keys":                {letters(17), "", "there are 17 keys; want 1 to 16"},
		"F48 17 keys that are equal": {slices.Repeat([]string{"a"}, 17), "", "there are 17 keys"},
		"F52 a key that is empty":    {[]string{"a", ""}, "", "Key is empty"},
		"F52 a key with a newline":   {[]string{"a", "x\ny", "b"}, "x\ny", "control character"},
		"F52 a key that is too long": {[]string{"a", strings.Repeat("x", 2000)}, strings.Repeat("x", 1024), "2000 bytes"},
	} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			err := b.DoAll(ctx, c.keys, neverRunsAll(t))
			require.IsType(t, &LockBadRequest{}, err)
			require.ErrorContains(t, err, c.want)
			require.Equal(t, c.key, err.(*LockBadRequest).Key)
			require.Empty(t, b.store.requests)
			require.Equal(t, OutcomeInvalid, b.report(t).Outcome)
		})
	}
}

func TestDoAllIsAllOrNothing(t *testing.T) {
	ctx := context.Background()
	on("F64 the third key is held: the first two are released", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.occupy(t, "c", time.Minute)
		err := b.DoAll(ctx, []string{"d", "c", "b", "a"}, neverRunsAll(t))
		busy, ok := err.(*LockBusy)
		require.True(t, ok, "%T", err)
		require.Equal(t, "c", busy.Key)
		require.Equal(t, "another", busy.Holder.Name)
		require.Equal(t, []string{"a", "b", "c"}, b.store.asked(), "d is not asked for")
		require.ElementsMatch(t, []string{"b", "a"}, b.store.released())
		require.Equal(t, map[string]Outcome{"a": OutcomeBusy, "b": OutcomeBusy, "c": OutcomeBusy}, b.outcomes(t))
		for _, r := range b.reports {
			require.Equal(t, err, r.Err)
		}
	})
	for name, newBench := range benches {
		on("F64 Wait is for all locks together"+name, t, newBench, Options{Wait: 4 * time.Second}, func(t *testing.T, b *bench) {
			b.occupy(t, "a", 2*time.Second)
			b.occupy(t, "b", 5*time.Second)
			start := time.Now()
			err := b.DoAll(ctx, []string{"b", "a"}, neverRunsAll(t))
			require.IsType(t, &LockBusy{}, err)
			require.Equal(t, "b", err.(*LockBusy).Key)
			require.Equal(t, 4*time.Second, time.Since(start))
			b.free(t, "a")
		})
	}
	on("a lock that becomes free in time is waited for, and what is held meanwhile is renewed", t, newBench, Options{Wait: time.Minute, TTL: 5 * time.Second}, func(t *testing.T, b *bench) {
		b.occupy(t, "b", 20*time.Second)
		require.NoError(t, b.DoAll(ctx, []string{"a", "b"}, func(ctx context.Context, locks []Lock) error {
			require.Equal(t, lockstore.Held, b.status(t, "a").State)
			return ctx.Err()
		}))
		require.Greater(t, len(b.store.renewals), 8)
	})
	for what, lose := range map[string]hook{
		"F35 a lease vanishes":         says(driver.Lost),
		"F31 a lease runs out":         fails(errDown),
		"F54 an entry becomes foreign": fails(lockstore.ErrCorrupt),
	} {
		on(what+" while DoAll waits for the next lock: the work did not run, and the error says so", t, newBench, Options{Wait: time.Minute, TTL: 5 * time.Second}, func(t *testing.T, b *bench) {
			b.occupy(t, "c", time.Hour)
			b.store.renew = b.only("a", lose)
			err := b.DoAll(ctx, []string{"a", "b", "c"}, neverRunsAll(t))
			require.IsType(t, &LockStoreUnavailable{}, err)
			require.Equal(t, "a", err.(*LockStoreUnavailable).Key)
			require.ErrorContains(t, err, "lost before the work began")
			require.ErrorIs(t, err, lockstore.ErrLost)
			require.Equal(t, map[string]Outcome{"a": OutcomeUnavailable, "b": OutcomeUnavailable, "c": OutcomeUnavailable}, b.outcomes(t))
			b.free(t, "b")
		})
	}
}

func TestDoAllLosesOneLease(t *testing.T) {
	keys := []string{"a", "b", "c"}
	for _, lost := range keys {
		on("F35 F43 "+lost+" vanishes: the work's context ends, the others are released", t, newBench, Options{TTL: 6 * time.Second}, func(t *testing.T, b *bench) {
			b.store.renew = b.only(lost, says(driver.Lost))
			start := time.Now()
			err := b.DoAll(context.Background(), keys, func(ctx context.Context, _ []Lock) error {
				<-ctx.Done()
				assert.Equal(t, 2*time.Second, time.Since(start), "at the first renewal")
				assert.ErrorIs(t, context.Cause(ctx), lockstore.ErrLost)
				assert.Equal(t, context.Canceled, ctx.Err())
				return nil
			})
			require.IsType(t, &LockLost{}, err)
			require.Equal(t, lost, err.(*LockLost).Key)
			require.Equal(t, map[string]Outcome{"a": OutcomeLost, "b": OutcomeLost, "c": OutcomeLost}, b.outcomes(t))
			require.ElementsMatch(t, keys, b.store.released(), "a lost lease, too: it may be revoked, and its release opens the key")
			for _, key := range keys {
				b.free(t, key)
			}
		})
		on("F08 a freeze that is too long for "+lost+" alone is seen at the first check", t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.acquire = b.only(lost, b.trusts(5*time.Second))
			err := b.DoAll(within(t, 40*time.Second), keys, func(ctx context.Context, _ []Lock) error {
				require.NoError(t, ctx.Err())
				b.shift(instant{wall: 10 * time.Second})
				assert.Error(t, ctx.Err())
				assert.ErrorIs(t, context.Cause(ctx), lockstore.ErrLost)
				return nil
			})
			require.IsType(t, &LockLost{}, err, "the work's nil does not hide the loss")
			require.Equal(t, lost, err.(*LockLost).Key)
		})
	}
	on("MaxHold counts from the first grant", t, newBench, Options{TTL: 5 * time.Second, MaxHold: 20 * time.Second, Wait: time.Minute}, func(t *testing.T, b *bench) {
		b.occupy(t, "b", 8*time.Second)
		start := time.Now()
		require.NoError(t, b.DoAll(context.Background(), []string{"a", "b"}, func(ctx context.Context, _ []Lock) error {
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, 20*time.Second, deadline.Sub(start))
			<-ctx.Done()
			require.Equal(t, ErrDeadline, context.Cause(ctx))
			require.Equal(t, 20*time.Second, time.Since(start))
			return nil
		}))
	})
}

func TestDoAllReleases(t *testing.T) {
	for _, n := range []int{1, 16} {
		on(fmt.Sprintf("F28 of %d keys end in the time of one when the store hangs", n), t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = silent
			start := time.Now()
			require.NoError(t, b.DoAll(context.Background(), letters(n), func(context.Context, []Lock) error { return nil }))
			require.InDelta(t, releaseTime, time.Since(start), float64(time.Microsecond))
			for _, key := range letters(n) {
				require.Contains(t, b.store.released(), key)
			}
			require.Greater(t, len(b.store.releases), n, "there was time for repeats")
			require.Len(t, b.reports, n)
			for _, r := range b.reports {
				require.Error(t, r.ReleaseErr)
				require.Equal(t, OutcomeOK, r.Outcome)
			}
		})
		on(fmt.Sprintf("F28 of %d keys leave time for the answer", n), t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = silent
			start := time.Now()
			_ = b.DoAll(within(t, 5*time.Second), letters(n), func(ctx context.Context, _ []Lock) error { <-ctx.Done(); return nil })
			require.InDelta(t, 5*time.Second-answerTime, time.Since(start), float64(time.Microsecond))
		})
		on(fmt.Sprintf("F69 of %d keys end in time after Shutdown", n), t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = silent
			start := time.Now()
			time.AfterFunc(time.Second, b.Shutdown)
			_ = b.DoAll(context.Background(), letters(n), func(ctx context.Context, _ []Lock) error {
				<-ctx.Done()
				assert.Equal(t, errShutdown, context.Cause(ctx))
				return nil
			})
			require.InDelta(t, time.Second+shutdownTime, time.Since(start), float64(time.Microsecond))
		})
		on(fmt.Sprintf("F69 of %d keys that are under way end in time after Shutdown", n), t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = silent
			start := time.Now()
			time.AfterFunc(100*time.Millisecond, b.Shutdown)
			_ = b.DoAll(context.Background(), letters(n), func(context.Context, []Lock) error { return nil })
			require.InDelta(t, 100*time.Millisecond+shutdownTime, time.Since(start), float64(time.Microsecond))
		})
	}
}

// A call of the store may end 50 ms after its context. The release of a healthy key has its time all the same.
func TestDoAllReleasesAHealthyKey(t *testing.T) {
	for name, c := range map[string]struct {
		keys int
		stop time.Duration // Shutdown; the work returns after a second
	}{
		"without Shutdown":    {16, time.Hour},
		"soon after Shutdown": {16, time.Second},
		"late after Shutdown": {3, 750 * time.Millisecond},
	} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
				if r.Key == "a" && ctx.Err() == nil {
					return b.store.pass(ctx, r)
				}
				<-ctx.Done()
				pass(noticeTime)
				return driver.Answer{}, ctx.Err()
			}
			time.AfterFunc(c.stop, b.Shutdown)
			_ = b.DoAll(t.Context(), letters(c.keys), func(context.Context, []Lock) error { pass(time.Second); return nil })
			b.free(t, "a")
		})
	}
}

// One request for each key is enough for a store that is healthy and not fast.
func TestReleasesOfASlowStore(t *testing.T) {
	for name, c := range map[string]struct {
		keys int
		took time.Duration // by each request of a release
		ends func(context.Context, *bench)
	}{
		"8 keys":                      {8, 80 * time.Millisecond, func(context.Context, *bench) {}},
		"16 keys":                     {16, 35 * time.Millisecond, func(context.Context, *bench) {}},
		"F03 8 keys, at their end":    {8, 15 * time.Millisecond, func(ctx context.Context, _ *bench) { <-ctx.Done() }},
		"F03 16 keys, at their end":   {16, 8 * time.Millisecond, func(ctx context.Context, _ *bench) { <-ctx.Done() }},
		"F03 one key, at its end":     {1, 110 * time.Millisecond, func(ctx context.Context, _ *bench) { <-ctx.Done() }},
		"F03 one key, after its end":  {1, 60 * time.Millisecond, func(ctx context.Context, _ *bench) { <-ctx.Done(); pass(150 * time.Millisecond) }},
		"F69 16 keys, after Shutdown": {16, 10 * time.Millisecond, func(_ context.Context, b *bench) { b.Shutdown() }},
	} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = b.late(c.took)
			require.NoError(t, b.DoAll(within(t, 10*time.Second), letters(c.keys), func(ctx context.Context, _ []Lock) error { c.ends(ctx, b); return nil }))
			require.Len(t, b.reports, c.keys)
			for _, r := range b.reports {
				require.NoError(t, r.ReleaseErr)
				b.free(t, r.Key)
			}
		})
	}
	for after, took := range map[time.Duration]time.Duration{0: 110 * time.Millisecond, 150 * time.Millisecond: 60 * time.Millisecond} {
		on("F03 a result that is complete so long after the end: "+after.String(), t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.complete = b.late(took)
			require.NoError(t, b.DoOnce(within(t, 10*time.Second), "k", doonce.Options{}, func(ctx context.Context, _ Lock) (doonce.Completion, error) {
				<-ctx.Done()
				pass(after)
				return hour, nil
			}))
			require.NoError(t, b.report(t).CompleteErr)
			require.Equal(t, lockstore.Completed, b.status(t, "k").State)
		})
	}
}

func TestDoAllIsFrozenAtARelease(t *testing.T) {
	for _, d := range []time.Duration{6 * time.Second, 20 * time.Second} {
		on("F08 for "+d.String()+": the other keys are released, too", t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = b.first(1, func(ctx context.Context, _ int, r request) (driver.Answer, error) {
				b.shift(instant{wall: d})
				return b.store.pass(ctx, r)
			})
			require.NoError(t, b.DoAll(t.Context(), letters(4), func(context.Context, []Lock) error { return nil }))
			for _, key := range letters(4) {
				b.free(t, key)
			}
		})
	}
}

func TestDoAllWhoseWorkPanics(t *testing.T) {
	on("F04 all keys are released, and the panic goes on with its own stack", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.release = b.late(80 * time.Millisecond)
		func() {
			defer func() {
				assert.Equal(t, "boom", recover())
				assert.Contains(t, string(debug.Stack()), "panicsHere", "the stack of the panic itself")
				for _, key := range letters(16) {
					b.free(t, key)
				}
			}()
			b.DoAll(t.Context(), letters(16), func(ctx context.Context, locks []Lock) error { return panicsHere(ctx, locks[0]) })
		}()
		require.Len(t, b.reports, 16)
		for _, r := range b.reports {
			require.Equal(t, OutcomePanic, r.Outcome)
			require.Equal(t, 2, r.Calls)
		}
	})
	on("a store that panics, too", t, newBench, Options{}, func(t *testing.T, b *bench) {
		for i, key := range letters(3) { // the outermost run, and those inside
			b.reports = nil
			b.store.release = b.only(key, func(context.Context, int, request) (driver.Answer, error) { panic("boom") })
			require.PanicsWithValue(t, "boom", func() { _ = b.DoAll(t.Context(), letters(3), func(context.Context, []Lock) error { return nil }) })
			require.Len(t, b.reports, 3)
			for _, r := range b.reports {
				require.Equal(t, r.Key == key, r.ReleaseErr != nil, r.Key)
			}
			require.Empty(t, b.runs.runs, "the guard still knows the run")
			b.free(t, letters(3)[(i+1)%3])
			pass(2 * time.Minute) // the lease that was not released ends
		}
	})
}

func TestDoAllInOppositeOrders(t *testing.T) {
	on("F61 two callers with opposite orders: no deadlock, and both run", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		b.store.acquire = b.slow(10 * time.Millisecond)
		results := make(chan error, 2)
		for _, keys := range [][]string{{"a", "b"}, {"b", "a"}} {
			go func() {
				results <- b.DoAll(within(t, 2*time.Minute), keys, func(context.Context, []Lock) error { pass(time.Second); return nil })
			}()
		}
		for range 2 {
			require.NoError(t, <-results)
		}
	})
}
