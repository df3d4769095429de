package guard

import (
	"context"
	"errors"
	"math"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/clocktest"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestLeaseLength(t *testing.T) {
	for _, c := range []struct {
		name string
		left time.Duration // 0: no deadline
		opt  Options
		want time.Duration
	}{
		{"a short function: what is left and a second", 10 * time.Second, Options{}, 11 * time.Second},
		{"a long one: TTL", 10 * time.Minute, Options{}, time.Minute},
		{"no deadline: TTL", 0, Options{}, time.Minute},
		{"the farthest deadline there is", math.MaxInt64, Options{}, time.Minute},
		{"MaxHold is shorter than the deadline", 10 * time.Minute, Options{MaxHold: 20 * time.Second}, 20 * time.Second},
		{"a TTL of one's own", 10 * time.Minute, Options{TTL: 5 * time.Second}, 5 * time.Second},
		{"never below the store's least", 450 * time.Millisecond, Options{}, 1450 * time.Millisecond},
	} {
		on(c.name, t, newBench, c.opt, func(t *testing.T, b *bench) {
			ctx := context.Background()
			if c.left != 0 {
				ctx = within(t, c.left)
			}
			require.NoError(t, b.Do(ctx, "k", nothing))
			require.Equal(t, c.want, b.store.requests[0].TTL)
		})
	}
}

func TestWorkContext(t *testing.T) {
	on("ends DeadlineMargin before the deadline, with the cause ErrDeadline", t, newBench, Options{}, func(t *testing.T, b *bench) {
		start := time.Now()
		err := b.Do(within(t, 10*time.Second), "k", func(ctx context.Context, _ Lock) error {
			deadline, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.WithinDuration(t, start.Add(10*time.Second-defaultDeadlineMargin), deadline, time.Millisecond)
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			<-ctx.Done()
			assert.Equal(t, 10*time.Second-defaultDeadlineMargin, time.Since(start))
			assert.Equal(t, ErrDeadline, context.Cause(ctx))
			assert.Equal(t, context.DeadlineExceeded, ctx.Err())
			assert.Equal(t, ErrDeadline, context.Cause(child), "the cause is the same below")
			return ctx.Err()
		})
		require.Equal(t, context.DeadlineExceeded, err, "what the work said")
		require.Empty(t, b.store.renewals, "a run that ends within its lease does not renew")
		b.free(t, "k")
	})
	on("is a child of the caller's", t, newBench, Options{}, func(t *testing.T, b *bench) {
		type name struct{}
		parent, cancel := context.WithCancelCause(context.WithValue(context.Background(), name{}, "v"))
		gone := errors.New("gone")
		require.NoError(t, b.Do(parent, "k", func(ctx context.Context, _ Lock) error {
			assert.Equal(t, "v", ctx.Value(name{}))
			cancel(gone)
			<-ctx.Done()
			assert.Equal(t, gone, context.Cause(ctx))
			return nil
		}))
		b.free(t, "k")
	})
	on("F67 ends when the work returns, and nothing of the run goes on", t, newBench, Options{}, func(t *testing.T, b *bench) {
		leaked := make(chan error, 1)
		require.NoError(t, b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
			child, cancel := context.WithTimeout(ctx, time.Hour)
			t.Cleanup(cancel)
			go func() {
				<-child.Done()
				leaked <- child.Err()
			}()
			pass(time.Minute) // renewing goes on meanwhile
			return nil
		}))
		synctest.Wait()
		require.Equal(t, context.Canceled, <-leaked)
		before := len(b.store.renewals)
		require.NotZero(t, before)
		pass(time.Hour)
		require.Len(t, b.store.renewals, before)
	})
}

// Work that its context stops returns under the lease. So a lease lasts until the deadline, or until shortly after the end of MaxHold; who has such a lease
// never renews.
func TestWhoNeverRenews(t *testing.T) {
	for name, c := range map[string]struct {
		opt      Options
		deadline time.Duration
		less     time.Duration // than the TTL is what the store lets the guard trust
		renewals int
		returns  time.Duration // after the end of the context
	}{
		"the trust outlasts the deadline":                                    {Options{}, 59 * time.Second, 750*time.Millisecond - 1, 0, 300 * time.Millisecond},
		"the trust ends at the deadline":                                     {Options{}, 59 * time.Second, 750 * time.Millisecond, 1, 300 * time.Millisecond},
		"the trust ends between the end of the context and the deadline":     {Options{}, time.Minute, 0, 1, 300 * time.Millisecond},
		"a renewal lasts until then":                                         {Options{}, 80 * time.Second, 0, 2, 300 * time.Millisecond},
		"DeadlineMargin is long":                                             {Options{DeadlineMargin: 3 * time.Second}, 62500 * time.Millisecond, 0, 1, 3 * time.Second},
		"a renewal outlasts MaxHold, but not by long enough":                 {Options{MaxHold: 79600 * time.Millisecond}, time.Hour, 0, 2, returnTime},
		"a renewal outlasts MaxHold by long enough, with a store that keeps": {Options{MaxHold: 79 * time.Second}, time.Hour, 250 * time.Millisecond, 1, returnTime},
	} {
		on(name, t, newBench, c.opt, func(t *testing.T, b *bench) {
			less := func(ctx context.Context, _ int, r request) (driver.Answer, error) {
				a, err := b.store.pass(ctx, r)
				a.TTL -= c.less
				return a, err
			}
			b.store.acquire, b.store.renew = less, less
			err := b.Do(within(t, c.deadline), "k", func(ctx context.Context, _ Lock) error {
				<-ctx.Done()
				assert.Equal(t, ErrDeadline, context.Cause(ctx))
				pass(c.returns)
				return errors.New("own")
			})
			require.EqualError(t, err, "own", "it is not lost")
			require.Len(t, b.store.renewals, c.renewals)
		})
	}
}

func TestRenewal(t *testing.T) {
	on("asks for what is left of MaxHold and a second", t, newBench, Options{MaxHold: 70 * time.Second}, func(t *testing.T, b *bench) {
		require.NoError(t, b.Do(context.Background(), "k", func(context.Context, Lock) error { pass(25 * time.Second); return nil }))
		require.Equal(t, []time.Duration{51 * time.Second}, b.store.renewals)
	})
	on("F08 a freeze that stops the monotonic clock takes most of the lease", t, newBench, Options{}, func(t *testing.T, b *bench) {
		require.NoError(t, b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
			pass(time.Second)
			b.shift(instant{wall: 57 * time.Second})
			pass(15 * time.Second)
			return ctx.Err()
		}))
	})
	on("F14 a renewal that is late by most of the lease keeps the lease or loses it", t, newBench, Options{TTL: 10 * time.Second}, func(t *testing.T, b *bench) {
		b.store.renew = func(ctx context.Context, n int, r request) (driver.Answer, error) {
			pass(6200 * time.Millisecond) // the first third and this: 0.95 of the TTL
			return b.store.pass(context.Background(), r)
		}
		require.NoError(t, b.Do(within(t, time.Minute), "k", func(ctx context.Context, _ Lock) error {
			pass(9600 * time.Millisecond)
			return ctx.Err()
		}))
	})
}

// endsAt is a context with a deadline that only its reader keeps.
type endsAt struct {
	context.Context
	end time.Time
}

func (e endsAt) Deadline() (time.Time, bool) { return e.end, true }

// A deadline that was made before a freeze, or before the wall clock was set, comes at another time on each clock. The
// earlier one counts: for the start of the work, for its context and for the lease.
func TestDeadlineOnTwoClocks(t *testing.T) {
	const short, long = 10 * time.Second, time.Hour
	for name, left := range map[string]struct{ mono, wall time.Duration }{
		"F08 the monotonic clock stood still": {long, short},
		"F17 the wall clock was set back":     {short, long},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			began := time.Now()
			require.NoError(t, b.Do(endsAt{t.Context(), clocktest.Ago(-left.mono, -left.wall)}, "k", func(ctx context.Context, _ Lock) error {
				end, ok := ctx.Deadline()
				require.True(t, ok)
				require.LessOrEqual(t, end.Sub(began), short-200*time.Millisecond, "the reserve is 300 ms")
				return nil
			}))
			require.LessOrEqual(t, b.store.requests[0].TTL, short+time.Second)
			err := b.Do(endsAt{t.Context(), clocktest.Ago(short-left.mono, short-left.wall)}, "k", neverRuns(t))
			require.IsType(t, &LockNoTime{}, err)
		})
	}
}

func TestAProcessThatWasStoppedBetweenItsTwoClocks(t *testing.T) {
	readings := []instant{{mono: time.Second, wall: time.Minute}, {mono: time.Second, wall: time.Minute}, // the first reading
		{mono: 5 * time.Second, wall: time.Minute + time.Second}, {mono: 5 * time.Second, wall: time.Minute + 4*time.Second}, // stopped for 3 s behind the wall clock, which is read first
		{mono: 5 * time.Second, wall: time.Minute + 8*time.Second}, {mono: 5 * time.Second, wall: time.Minute + 8*time.Second}, // frozen for 4 s
		{mono: 6 * time.Second, wall: time.Minute + 9*time.Second + clockNoise}} // not frozen
	c := clock{now: func() (mono, wall time.Duration) {
		next := readings[0]
		readings = readings[1:]
		return next.mono, next.wall
	}}
	start, _ := c.read()
	stopped, _ := c.read()
	require.Equal(t, 4*time.Second, stopped-start)
	frozen, _ := c.read()
	require.Equal(t, 8*time.Second, frozen-start)
	noise, _ := c.read()
	require.Equal(t, 9*time.Second, noise-start)
}

func TestClocks(t *testing.T) {
	on("F08 F07 a freeze is seen at the first check, before any timer", t, newBench, Options{}, func(t *testing.T, b *bench) {
		err := b.Do(within(t, 30*time.Second), "k", func(ctx context.Context, _ Lock) error {
			require.NoError(t, ctx.Err())
			b.shift(instant{wall: time.Hour}) // the monotonic clock stood still
			assert.Error(t, ctx.Err())
			select {
			case <-ctx.Done():
			default:
				assert.Fail(t, "Done is still open")
			}
			assert.ErrorIs(t, context.Cause(ctx), lockstore.ErrLost)
			return nil
		})
		require.IsType(t, &LockLost{}, err, "the work's nil does not hide the loss")
	})
	for name, left := range map[string]time.Duration{"that renews": time.Hour, "that does not": 30 * time.Second} {
		on("F08 a context derived from the work's ends within a second after a freeze, in a run "+name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			err := b.Do(within(t, left), "k", func(ctx context.Context, _ Lock) error {
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				pass(5500 * time.Millisecond)
				b.shift(instant{wall: time.Hour})
				before := time.Now()
				<-child.Done()
				assert.LessOrEqual(t, time.Since(before), time.Second)
				return nil
			})
			require.IsType(t, &LockLost{}, err)
		})
	}
	on("F10 a freeze between the work's end and the release does not change the result", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.release = func(ctx context.Context, _ int, _ request) (driver.Answer, error) {
			b.shift(instant{mono: time.Hour, wall: time.Hour})
			return driver.Answer{Outcome: driver.Lost}, nil // another has been granted the key since
		}
		require.NoError(t, b.Do(within(t, 30*time.Second), "k", nothing))
		require.ErrorIs(t, b.report(t).ReleaseErr, lockstore.ErrLost)
	})
}

func TestWorkThatDoesNotReturnWell(t *testing.T) {
	on("F04 after a panic the lease is released, and the panic goes on with its own stack", t, newBench, Options{}, func(t *testing.T, b *bench) {
		func() {
			defer func() {
				assert.Equal(t, "boom", recover())
				assert.Contains(t, string(debug.Stack()), "panicsHere", "the stack of the panic itself")
			}()
			b.Do(context.Background(), "k", panicsHere)
		}()
		require.Equal(t, OutcomePanic, b.report(t).Outcome)
		require.Len(t, b.store.releases, 1)
		b.free(t, "k")
	})
}

func panicsHere(context.Context, Lock) error { panic("boom") }

func TestRelease(t *testing.T) {
	for took, want := range map[time.Duration]error{750*time.Millisecond - 1: lockstore.ErrLost, 750 * time.Millisecond: nil} {
		on("a release that says lost after "+took.String(), t, newBench, Options{TTL: time.Second}, func(t *testing.T, b *bench) {
			b.store.release = func(context.Context, int, request) (driver.Answer, error) {
				pass(took)
				return driver.Answer{Outcome: driver.Lost}, nil
			}
			require.ErrorIs(t, b.Do(context.Background(), "k", nothing), want, "it says something about the work while the lease is trusted")
		})
	}
	on("F31 a renewal that lets trust for less shortens nothing", t, newBench, Options{TTL: 10 * time.Second}, func(t *testing.T, b *bench) {
		b.store.renew = func(ctx context.Context, n int, r request) (driver.Answer, error) {
			if n > 1 {
				return driver.Answer{}, errDown
			}
			return b.trusts(4*time.Second)(ctx, n, r)
		}
		require.Equal(t, 10*time.Second-margin, lostAt(t, b), "as the grant said")
	})
	on("F31 F35 lost after a refusal is lost: the refused request was not applied", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.release = func(ctx context.Context, n int, _ request) (driver.Answer, error) {
			if n == 1 {
				return driver.Answer{}, errDown
			}
			return driver.Answer{Outcome: driver.Lost}, nil
		}
		require.IsType(t, &LockLost{}, b.Do(context.Background(), "k", nothing))
		require.Equal(t, OutcomeLost, b.report(t).Outcome)
	})
}

func TestAKeyInsideItself(t *testing.T) {
	on("a key inside itself is refused, another key is not", t, newBench, Options{}, func(t *testing.T, b *bench) {
		var leaked context.Context
		require.NoError(t, b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
			leaked = context.WithoutCancel(ctx)
			return b.Do(ctx, "other", func(ctx context.Context, lock Lock) error {
				assert.Equal(t, "other", lock.Key)
				err := b.Do(ctx, "k", neverRuns(t))
				assert.IsType(t, &LockBadRequest{}, err)
				assert.ErrorIs(t, err, errNested)
				return nil
			})
		}))
		require.NoError(t, b.Do(leaked, "k", nothing), "the run around it has ended")
	})
	on("F35 a run goes on after the one around it has ended, whose release says lost", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.release = b.only("k", says(driver.Lost))
		inside := make(chan error)
		require.IsType(t, &LockLost{}, b.Do(context.Background(), "k", func(ctx context.Context, _ Lock) error {
			go func() {
				inside <- b.Do(context.WithoutCancel(ctx), "inside", func(ctx context.Context, _ Lock) error {
					pass(10 * time.Second)
					return ctx.Err()
				})
			}()
			pass(time.Second)
			return nil
		}))
		require.NoError(t, <-inside)
	})
}

// The caller leaves, so the run around is not renewed any more. The run inside has a context that goes on.
func TestALockAroundIsLostAfterItsCallerHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Options{})
		ctx, leave := context.WithCancel(t.Context())
		err := b.Do(ctx, "k", func(ctx context.Context, _ Lock) error {
			leave()
			ctx = context.WithoutCancel(ctx)
			assert.NoError(t, b.Do(ctx, "inside", func(ctx context.Context, _ Lock) error {
				assert.NoError(t, ctx.Err())
				<-ctx.Done()
				assert.ErrorIs(t, context.Cause(ctx), lockstore.ErrLost)
				return nil
			}))
			return b.Do(ctx, "cleans up", func(ctx context.Context, _ Lock) error { return ctx.Err() })
		})
		lost, ok := err.(*LockLost)
		require.True(t, ok, "%v", err)
		require.NoError(t, lost.WorkErr)
	})
}
