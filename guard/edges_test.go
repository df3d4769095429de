package guard

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// The numbers of the trust rules and of the budgets, each at its exact edge. They
// stand here a second time, so that nobody changes one by accident.
func TestNumbers(t *testing.T) {
	ctx := context.Background()
	const ms = time.Millisecond
	noRenewal := fails(errDown)
	atOnce := func(b *bench) { b.random = func(time.Duration) time.Duration { return 0 } } // pauses of 1 ns
	// ends is when the work's context ends.
	ends := func(t *testing.T, b *bench, ctx context.Context) (after time.Duration) {
		began := time.Now()
		_ = b.Do(ctx, "k", func(ctx context.Context, _ Lock) error {
			<-ctx.Done()
			after = time.Since(began)
			return nil
		})
		return after
	}

	bubble("margin", t, func(t *testing.T) {
		const says = "the margin is 250 ms"
		b := newBench(t, Options{})
		b.store.renew = noRenewal
		require.Equal(t, 59_750*ms, ends(t, b, ctx), says)
		b.store.renew = nil
		lease, err := b.Acquire(ctx, LeaseRequest{Key: "k", TTL: 10 * time.Second})
		require.NoError(t, err)
		require.Equal(t, 9750*ms, lease.TTL, says)
		trusted, err := b.Renew(ctx, lease, 20*time.Second)
		require.NoError(t, err)
		require.Equal(t, 19_750*ms, trusted, says)
	})
	for name, trusted := range map[string]time.Duration{"the lease": 60 * time.Second, "what the store lets be trusted": 30 * time.Second} {
		on("thirds of "+name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.acquire = b.trusts(trusted)
			began := time.Now()
			var at []time.Duration
			b.store.renew = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
				at = append(at, time.Since(began))
				a, err := b.store.pass(ctx, r)
				a.TTL = trusted
				return a, err
			}
			require.NoError(t, b.Do(ctx, "k", func(context.Context, Lock) error { pass(trusted); return nil }))
			require.Equal(t, []time.Duration{trusted / 3, trusted / 3 * 2}, at[:2], "a lease is renewed after each third")
		})
	}
	bubble("reserve", t, func(t *testing.T) {
		require.Equal(t, 9700*ms, ends(t, newBench(t, Options{}), within(t, 10*time.Second)), "the reserve is 300 ms")
	})
	for left, runs := range map[time.Duration]bool{400 * ms: true, 400*ms - 1: false} {
		bubble("least work before the deadline "+left.String(), t, func(t *testing.T) {
			ran := false
			_ = newBench(t, Options{}).Do(within(t, left), "k", func(context.Context, Lock) error { ran = true; return nil })
			require.Equal(t, runs, ran, "the least work is 100 ms, behind a reserve of 300 ms")
		})
	}
	for trusted, requests := range map[time.Duration]int{350 * ms: 1, 350*ms - 1: 2} {
		on("least work under a lease of "+trusted.String(), t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.acquire = b.first(1, b.trusts(trusted))
			require.NoError(t, b.Do(ctx, "k", nothing))
			require.Len(t, b.store.requests, requests, "the least work is 100 ms, before a margin of 250 ms")
		})
	}
	bubble("least work behind a late grant", t, func(t *testing.T) {
		for left, want := range map[time.Duration]error{5 * time.Second: &LockStoreUnavailable{}, 5*time.Second - 1: &LockDeadline{}} {
			b := newBench(t, Options{})
			b.store.acquire = func(ctx context.Context, n int, r request) (driver.Answer, error) {
				a, err := b.store.pass(ctx, r)
				b.shift(instant{mono: 4600 * ms, wall: 4600 * ms})
				a.TTL = 0
				return a, err
			}
			atOnce(b)
			ctx, cancel := context.WithDeadline(ctx, time.Now().Add(left))
			defer cancel()
			require.IsType(t, want, b.Do(ctx, "k", neverRuns(t)), "the least work is 100 ms: with less left it is not the store that is late")
		}
	})
	on("slack", t, newBench, Options{}, func(t *testing.T, b *bench) {
		require.NoError(t, b.Do(within(t, 10*time.Second), "k", nothing))
		require.Equal(t, 11*time.Second, b.store.requests[0].TTL, "a lease ends 1 s after the run")
	})

	// calls are the times that a store which hangs was given.
	calls := func(b *bench) (all func() []time.Duration, hang hook) {
		var mu sync.Mutex
		var times []time.Duration
		return func() []time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return times
			}, func(ctx context.Context, n int, r request) (driver.Answer, error) {
				began := time.Now()
				a, err := silent(ctx, n, r)
				mu.Lock()
				defer mu.Unlock()
				times = append(times, time.Since(began).Round(ms))
				return a, err
			}
	}
	for name, ask := range map[string]func(b *bench, hang hook) error{
		"acquire": func(b *bench, hang hook) error {
			b.store.acquire = hang
			return b.Do(ctx, "k", neverRuns(t))
		},
		"renew": func(b *bench, hang hook) error {
			b.store.renew = hang
			_, err := b.Renew(ctx, lockstore.Lease{Key: "k", Owner: "me", Fence: 1}, time.Minute)
			return err
		},
	} {
		on("call time of "+name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			atOnce(b)
			all, hang := calls(b)
			require.IsType(t, &LockStoreUnavailable{}, ask(b, hang))
			require.Equal(t, []time.Duration{2 * time.Second, 1500 * ms, 750 * ms, 375 * ms, 200 * ms, 200 * ms}, all(),
				"a call has 2 s, at most half of the 5 s that are left, and at least 200 ms")
		})
	}
	on("call time of a renewal in a run", t, newBench, Options{}, func(t *testing.T, b *bench) {
		atOnce(b)
		all, hang := calls(b)
		b.store.renew = hang
		ends(t, b, ctx)
		require.Equal(t, 2*time.Second, all()[0], "a call has 2 s")
		// From 20 s on: 17 calls of 2 s, then 5.75 s are left.
		require.Equal(t, []time.Duration{2 * time.Second, 1875 * ms, 937 * ms, 469 * ms}, all()[17:21], "a renewal has half of what is left of the trust")
	})
	on("call time of a poll", t, newBenchFull, Options{Wait: 3 * time.Second}, func(t *testing.T, b *bench) {
		atOnce(b)
		b.occupy(t, "k", time.Hour)
		all, hang := calls(b)
		b.store.inspect = hang
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, []time.Duration{2 * time.Second, time.Second}, all(), "a poll has 2 s, and no more than is left of Wait")
	})
	on("polls end with Wait", t, newBenchFull, Options{Wait: 750 * ms}, func(t *testing.T, b *bench) {
		b.random = func(d time.Duration) time.Duration { return d - 1 }
		b.occupy(t, "k", time.Hour)
		began := time.Now()
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, 750*ms, time.Since(began))
		require.Equal(t, 3, b.store.polls, "no poll at the end of Wait, because nobody could wait for its answer")
		require.Equal(t, 4, b.report(t).Calls)
	})
	on("pauses after slow answers", t, newBenchFull, Options{Wait: 10 * time.Second}, func(t *testing.T, b *bench) {
		atOnce(b)
		b.occupy(t, "k", time.Hour)
		var at []time.Duration
		began := time.Now()
		slow := func(ctx context.Context, _ int, r request) (driver.Answer, error) {
			at = append(at, time.Since(began).Round(ms))
			pass(600 * ms)
			return b.store.pass(ctx, r)
		}
		b.store.acquire, b.store.inspect = slow, slow
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, []time.Duration{0, 2 * time.Second, 4 * time.Second, 6 * time.Second, 8 * time.Second}, at, "four times as long as the answer took, at most 2 s")
	})
	for took, want := range map[time.Duration]error{750*ms - 1: lockstore.ErrLost, 750 * ms: nil} {
		on("a release that says lost after "+took.String(), t, newBench, Options{TTL: time.Second}, func(t *testing.T, b *bench) {
			b.store.release = func(context.Context, int, request) (driver.Answer, error) {
				pass(took)
				return driver.Answer{Outcome: driver.Lost}, nil
			}
			require.ErrorIs(t, b.Do(ctx, "k", nothing), want, "it says something about the work while the lease is trusted")
		})
	}
	on("waited and held", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", 5*time.Second)
		require.NoError(t, b.Do(within(t, time.Minute), "k", func(ctx context.Context, _ Lock) error {
			select { // a watched context whose work runs on
			case <-ctx.Done():
			case <-time.After(2 * time.Second):
			}
			return nil
		}))
		require.Equal(t, 2*time.Second, b.report(t).HoldTime)
		require.Greater(t, b.report(t).WaitTime, 4*time.Second)
	})
	on("work that goes on after its context's end", t, newBench, Options{}, func(t *testing.T, b *bench) {
		require.NoError(t, b.Do(within(t, 10*time.Second), "k", func(ctx context.Context, _ Lock) error {
			<-ctx.Done()
			pass(100 * ms)
			return nil
		}))
		require.Equal(t, 9800*ms, b.report(t).HoldTime)
	})
	for name, fault := range map[string]error{"down": errDown, "lost replies": errLostReply} {
		bubble("retry time, "+name, t, func(t *testing.T) {
			for left, want := range map[time.Duration]time.Duration{time.Hour: 5 * time.Second, 8 * time.Second: 4 * time.Second} {
				b := newBench(t, Options{})
				b.store.acquire = fails(fault)
				b.store.renew = fails(fault)
				const says = "a store that fails is asked for 5 s, at most half of the time that is left"
				began := time.Now()
				require.IsType(t, &LockStoreUnavailable{}, b.Do(within(t, left), "k", neverRuns(t)))
				require.Equal(t, want, time.Since(began), says)
				began = time.Now()
				_, err := b.Renew(within(t, left), lockstore.Lease{Key: "k", Owner: "me", Fence: 1}, time.Minute)
				require.IsType(t, &LockStoreUnavailable{}, err)
				require.Equal(t, want, time.Since(began), says)
			}
		})
	}
	on("retry time of a run that waits for longer", t, newBench, Options{Wait: 7 * time.Second}, func(t *testing.T, b *bench) {
		b.store.acquire = fails(errDown)
		began := time.Now()
		require.IsType(t, &LockStoreUnavailable{}, b.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, 7*time.Second, time.Since(began))
	})
	on("release time", t, newBench, Options{}, func(t *testing.T, b *bench) {
		atOnce(b)
		all, hang := calls(b)
		b.store.release = hang
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Equal(t, []time.Duration{500 * ms, 500 * ms}, all(), "a release has 1 s, its first call half of it")

		b.store.release = fails(errDown)
		b.random = func(d time.Duration) time.Duration { return d }
		began := time.Now()
		require.NoError(t, b.Do(ctx, "k2", nothing))
		require.Equal(t, time.Second, time.Since(began), "a release has 1 s with its pauses")
	})
	for late, want := range map[time.Duration]time.Duration{
		0:               200 * ms, // the reserve less the answer's part
		100*ms - 1:      100*ms + 1,
		100 * ms:        100 * ms,
		800 * ms:        100 * ms,
		-900*ms + 1:     time.Second,
		-900 * ms:       time.Second,
		-800*ms + 5*ms:  995 * ms,
		-700*ms - 50*ms: 950 * ms,
	} {
		on("answer time, the work ends at 9.7 s and "+late.String(), t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.release = silent
			b.random = func(d time.Duration) time.Duration { return d }
			began := time.Now()
			_ = b.Do(within(t, 10*time.Second), "k", func(context.Context, Lock) error { pass(9700*ms + late); return nil })
			require.Equal(t, 9700*ms+late+want, time.Since(began), "100 ms are kept for the answer, and a release has at least as much")
		})
	}
	on("release after Shutdown", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.release = silent
		began := time.Now()
		time.AfterFunc(time.Second, b.Shutdown)
		ends(t, b, ctx)
		require.Equal(t, 1300*ms, time.Since(began), "a release has until 300 ms after Shutdown")

		b = newBench(t, Options{})
		b.store.release = silent
		began = time.Now()
		time.AfterFunc(10*ms, b.Shutdown)
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Equal(t, 310*ms, time.Since(began), "a release that is under way has until 300 ms after Shutdown")
	})
	on("pauses", t, newBench, Options{}, func(t *testing.T, b *bench) {
		var bounds []time.Duration
		b.random = func(d time.Duration) time.Duration { bounds = append(bounds, d); return d - 1 }
		b.store.acquire = fails(errDown)
		_ = b.Do(ctx, "k", neverRuns(t))
		require.Equal(t, []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second, time.Second, time.Second, time.Second}, bounds,
			"pauses are random up to 50 ms, doubled up to 1 s")
		for range 1000 {
			require.LessOrEqual(t, systemPause(t), 50*ms)
		}
	})
	on("pauses of a run that waits without a place", t, newBenchFull, Options{Wait: 3 * time.Second}, func(t *testing.T, b *bench) {
		var bounds []time.Duration
		b.random = func(d time.Duration) time.Duration { bounds = append(bounds, d); return d - 1 }
		b.occupy(t, "k", time.Hour)
		_ = b.Do(ctx, "k", neverRuns(t))
		require.Equal(t, []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second, time.Second}, bounds,
			"pauses are random up to 50 ms, doubled up to 1 s")
	})
	bubble("clock noise", t, func(t *testing.T) {
		for step, want := range map[time.Duration]time.Duration{10 * ms: 0, 10*ms + 1: 10*ms + 1, -10 * ms: 0, -10*ms - 1: 0} {
			var now instant
			c := clock{now: func() instant { return now }}
			c.read()
			now.wall += step
			c.read()
			require.Equal(t, want, c.missed(), "clocks that differ by 10 ms and less differ by nothing; step %v", step)
			now.wall += time.Second // a freeze after it
			c.read()
			switch step {
			case -10 * ms:
				want = time.Second - 10*ms // it was no change, so the next one is smaller by it
			case 10 * ms:
				want = time.Second + 10*ms
			default:
				want += time.Second
			}
			require.Equal(t, want, c.missed(), "clocks that differ by 10 ms and less differ by nothing; step %v, then a freeze", step)
		}
	})
}

func systemPause(t *testing.T) time.Duration {
	p := newBench(t, Options{}).newPauses()
	d := p.next()
	require.Positive(t, d)
	return d
}

// A run whose deadline is at most TTL less a second away is not renewed, when the
// store lets all but the last second of the lease be trusted.
func TestWhoNeverRenews(t *testing.T) {
	for name, c := range map[string]struct {
		left  time.Duration
		less  time.Duration // than the lease is what the store lets be trusted
		renew bool
	}{
		"59 s":                            {59 * time.Second, 0, false},
		"59 s on DynamoDB":                {59 * time.Second, 250 * time.Millisecond, false},
		"59 s, the last second untrusted": {59 * time.Second, time.Second, false},
		"59 s, before the edge":           {59 * time.Second, 1050*time.Millisecond - 1, false},
		"59 s, the exact edge":            {59 * time.Second, 1050 * time.Millisecond, true},
		"60 s":                            {60 * time.Second, 0, false},
		"60.05 s, before the edge":        {60*time.Second + 50*time.Millisecond - 1, 0, false},
		"60.05 s, the exact edge":         {60*time.Second + 50*time.Millisecond, 0, true},
		"60 s on DynamoDB":                {60 * time.Second, 250 * time.Millisecond, true},
		"59.8 s on DynamoDB, before it":   {59800*time.Millisecond - 1, 250 * time.Millisecond, false},
		"59.8 s on DynamoDB":              {59800 * time.Millisecond, 250 * time.Millisecond, true},
		"a short one":                     {450 * time.Millisecond, time.Second, false},
	} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.acquire = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
				a, err := b.store.pass(ctx, r)
				a.TTL -= c.less
				return a, err
			}
			err := b.Do(within(t, c.left), "k", func(ctx context.Context, _ Lock) error {
				<-ctx.Done()
				assert.Equal(t, ErrDeadline, context.Cause(ctx), "the lease outlasts the work's time")
				return errors.New("own")
			})
			require.EqualError(t, err, "own")
			require.Equal(t, c.renew, len(b.store.renewals) > 0)
		})
	}
}

// A renewal after which the trust ends with the work's time is not the last one.
func TestRenewalUpToTheEnd(t *testing.T) {
	for left, renewals := range map[time.Duration]int{80*time.Second + 50*time.Millisecond - 1: 1, 80*time.Second + 50*time.Millisecond: 2} {
		on(left.String(), t, newBench, Options{}, func(t *testing.T, b *bench) {
			require.NoError(t, b.Do(within(t, left), "k", func(ctx context.Context, _ Lock) error { <-ctx.Done(); return nil }))
			require.Len(t, b.store.renewals, renewals)
		})
	}
}
