package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// sleepers are parked owners, with what was done to wake them. The token of an owner is its own text.
type sleepers struct {
	*bench
	wake func(ctx context.Context, n int) error // in the place of a wake-up that succeeds; n counts those of an owner

	mu    sync.Mutex
	calls map[lockstore.Owner]int
	woken []lockstore.Owner
	under int
	most  int // that were under way at once
}

func newSleepers(t *testing.T, opt Options) *sleepers {
	s := &sleepers{calls: map[lockstore.Owner]int{}}
	opt.Wake = s.Wake
	s.bench = newBench(t, opt)
	return s
}

// Wake is Options.Wake. It sees the hand-over in the store: a wake-up comes after the write.
func (s *sleepers) Wake(ctx context.Context, a lockstore.WakeAddress) error {
	token, _ := a.TaskToken()
	owner := lockstore.Owner(token)
	s.mu.Lock()
	s.calls[owner]++
	n := s.calls[owner]
	s.under++
	s.most = max(s.most, s.under)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.under--
	}()
	if s.wake != nil {
		if err := s.wake(ctx, n); err != nil {
			return err
		}
	}
	status, err := s.store.Store.Inspect(ctx, "k")
	if err != nil {
		return err
	}
	if status.State == lockstore.Held && len(status.Holders) == 1 || status.State == lockstore.Free {
		return fmt.Errorf("woken before the hand-over: the key is %v", status.State)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woken = append(s.woken, owner)
	return nil
}

// park lets an owner take a parked place of the key, as one of those that share it with others.
func (b *bench) park(t *testing.T, key string, maxHolders int) lockstore.Owner {
	t.Helper()
	owner := lockstore.NewOwner()
	req := lockstore.Request{Key: key, Owner: owner, TTL: time.Minute, MaxHolders: maxHolders, JoinQueue: true, Parked: 30 * time.Second, Address: lockstore.TaskToken(string(owner))}
	_, err := b.store.Store.Acquire(t.Context(), req)
	require.ErrorIs(t, err, lockstore.ErrRefused)
	return owner
}

// holds is what an owner is told that asks after its wake-up.
func (b *bench) holds(t *testing.T, owner lockstore.Owner) (lockstore.Lease, error) {
	t.Helper()
	return b.store.Store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: owner, TTL: time.Minute})
}

// Every request that hands a key over, or completes it, wakes the parked owners that it has told so.
func TestWakeUps(t *testing.T) {
	for name, c := range map[string]struct {
		run       func(t *testing.T, s *sleepers, park func())
		completed bool // the owners find the key completed, and otherwise have the lease
	}{
		"release": {run: func(t *testing.T, s *sleepers, park func()) {
			require.NoError(t, s.Do(t.Context(), "k", func(context.Context, Lock) error { park(); return nil }))
		}},
		"release of several keys": {run: func(t *testing.T, s *sleepers, park func()) {
			require.NoError(t, s.DoAll(t.Context(), []string{"j", "k", "l"}, func(context.Context, []Lock) error { park(); return nil }))
			s.reports = s.reports[1:2]
			require.Equal(t, "k", s.reports[0].Key)
		}},
		"release of a long-lived lease": {run: func(t *testing.T, s *sleepers, park func()) {
			lease := s.occupy(t, "k", time.Minute)
			park()
			require.NoError(t, s.Release(t.Context(), lease))
		}},
		"release that is written, and its answer is an error": {run: func(t *testing.T, s *sleepers, park func()) {
			lease := s.occupy(t, "k", time.Minute)
			park()
			s.store.release = s.first(1, func(ctx context.Context, _ int, r request) (driver.Answer, error) {
				a, err := s.store.pass(ctx, r)
				return a, errors.Join(err, errLostReply)
			})
			require.NoError(t, s.Release(t.Context(), lease))
		}},
		"cooldown": {completed: true, run: func(t *testing.T, s *sleepers, park func()) {
			do := s.WithCooldown(time.Hour).Do
			require.NoError(t, do(t.Context(), "k", func(context.Context, Lock) error { park(); return nil }))
		}},
		"completion": {completed: true, run: func(t *testing.T, s *sleepers, park func()) {
			require.NoError(t, s.DoOnce(t.Context(), "k", doonce.Options{}, func(context.Context, Lock) (doonce.Completion, error) {
				park()
				return doonce.Completion{ResultTime: time.Hour, Result: lockstore.HiddenBytes("done")}, nil
			}))
		}},
		"a grant that leaves room for one more": {run: func(t *testing.T, s *sleepers, park func()) {
			s.occupy(t, "k", 3*time.Second)
			time.AfterFunc(time.Second, park)
			require.NoError(t, s.WithMaxHolders(2).Do(t.Context(), "k", func(context.Context, Lock) error {
				synctest.Wait()
				require.Len(t, s.woken, 1, "the work and the wake-up begin at the same time")
				return nil
			}))
		}},
		"a refusal": {run: func(t *testing.T, s *sleepers, park func()) {
			lease := s.occupy(t, "k", time.Minute)
			park()
			s.store.full = true // a run that leaves the queue would wait for the wake-up there
			s.store.acquire = s.first(1, func(ctx context.Context, _ int, r request) (driver.Answer, error) {
				handed, err := s.store.pass(ctx, request{"k", driver.Request{Kind: driver.Release, Owner: lease.Owner, Fence: lease.Fence}})
				require.NoError(t, err)
				a, err := s.store.pass(ctx, r)
				a.Wake = handed.Wake
				return a, err
			})
			require.IsType(t, &LockBusy{}, s.Do(t.Context(), "k", neverRuns(t)))
		}},
	} {
		on(name, t, newSleepers, Options{Wait: 5 * time.Second}, func(t *testing.T, s *sleepers) {
			var owner lockstore.Owner
			c.run(t, s, func() { owner = s.park(t, "k", 2) })
			synctest.Wait()
			require.Equal(t, []lockstore.Owner{owner}, s.woken)
			r := s.report(t)
			require.Equal(t, 1, r.OwnersWoken)
			require.NoError(t, r.WakeErr)
			_, err := s.holds(t, owner)
			if c.completed {
				require.ErrorIs(t, err, lockstore.ErrRefused)
				return
			}
			require.NoError(t, err)
		})
	}
}

// A wake-up that fails changes no outcome, and costs no more time than the release has.
func TestWakeUpsThatFail(t *testing.T) {
	errDenied := errors.New("denied")
	const many = -1
	for name, c := range map[string]struct {
		wake  func(ctx context.Context, n int) error // nil succeeds
		tries int                                    // calls of Wake
		take  func(n int, take func() (driver.HiddenBytes, error)) (driver.HiddenBytes, error)
		takes int           // how often the address is asked for, if by take
		took  time.Duration // at the most
		why   string        // "" if the owner is woken in the end
	}{
		"twice": {tries: 3, took: time.Second, wake: func(_ context.Context, n int) error {
			if n < 3 {
				return errDenied
			}
			return nil
		}},
		"always":                {tries: many, took: time.Second, why: "denied", wake: func(context.Context, int) error { return errDenied }},
		"nobody waits any more": {tries: 1, why: "gone", wake: func(context.Context, int) error { return lockstore.Invalidf("gone") }},
		"the answer is lost, and the repeat finds nobody": {tries: 2, took: time.Second, why: "gone", wake: func(_ context.Context, n int) error {
			if n == 1 {
				return errLostReply
			}
			return lockstore.Invalidf("gone")
		}},
		"hangs":                   {tries: 2, took: time.Second, why: "context", wake: hang},
		"hangs and cannot be cut": {tries: 1, took: time.Second + noticeTime, why: "did not return", wake: func(context.Context, int) error { pass(5 * time.Second); return nil }},
		"panics":                  {tries: 1, why: "panicked with a string", wake: func(context.Context, int) error { panic("boom") }},
		"ends its goroutine":      {tries: 1, why: "Goexit", wake: func(context.Context, int) error { runtime.Goexit(); return nil }},
		"its error has the secret": {tries: 1, why: "bad token (not shown)", wake: func(ctx context.Context, _ int) error {
			return lockstore.Invalidf("bad token %s", ctx.Value(tokenKey{}))
		}},
		"the address cannot be taken once": {tries: 1, takes: 2, took: time.Second, take: func(n int, take func() (driver.HiddenBytes, error)) (driver.HiddenBytes, error) {
			if n == 1 {
				return nil, errDown
			}
			return take()
		}},
		"the answer with the address is lost": {takes: 2, took: time.Second, why: "no address", take: func(n int, take func() (driver.HiddenBytes, error)) (driver.HiddenBytes, error) {
			a, err := take()
			if n == 1 {
				return nil, errLostReply
			}
			return a, err
		}},
		"an address of a kind of tomorrow": {takes: 1, why: "foreign or corrupt", take: func(int, func() (driver.HiddenBytes, error)) (driver.HiddenBytes, error) {
			return driver.HiddenBytes("mail x@y"), nil
		}},
		"taking the address panics": {takes: 1, why: "panicked", take: func(int, func() (driver.HiddenBytes, error)) (driver.HiddenBytes, error) { panic("boom") }},
	} {
		on(name, t, newSleepers, Options{}, func(t *testing.T, s *sleepers) {
			var out bytes.Buffer
			observe := s.opt.Observe
			s.opt.Observe = func(ctx context.Context, r Report) {
				observe(ctx, r)
				LogReports(slog.New(slog.NewTextHandler(&out, nil)))(ctx, r)
			}
			s.wake = c.wake
			lease := s.occupy(t, "k", time.Minute)
			owner := s.park(t, "k", 1)
			a := &addresses{take: c.take}
			if c.take != nil {
				s.Guard.store = s.Guard.store.WrapDriver(func(d driver.Driver) driver.Driver { a.Driver = d; return a })
			}
			began := time.Now()
			require.NoError(t, s.Release(context.WithValue(t.Context(), tokenKey{}, string(owner)), lease))
			require.LessOrEqual(t, time.Since(began), c.took)
			synctest.Wait() // a Wake may be left behind
			require.Equal(t, c.takes, a.n)
			if c.tries == many {
				require.Greater(t, s.calls[owner], 2)
			} else {
				require.Equal(t, c.tries, s.calls[owner])
			}
			r := s.report(t)
			require.Equal(t, outcomeReleased, r.Outcome)
			require.Equal(t, 1, r.Calls)
			require.NoError(t, r.ReleaseErr)
			require.NotContains(t, out.String(), string(owner))
			require.NotContains(t, out.String(), "x@y")
			if c.why == "" {
				require.NoError(t, r.WakeErr)
				require.Contains(t, out.String(), "level=INFO")
				require.Contains(t, out.String(), "woken=1")
			} else {
				require.Zero(t, r.OwnersWoken)
				require.ErrorContains(t, r.WakeErr, "1 of 1 parked owners")
				require.ErrorContains(t, r.WakeErr, c.why)
				require.Equal(t, c.tries == many || c.tries > 1, strings.Contains(r.WakeErr.Error(), "an earlier try may have woken it"), "%v", r.WakeErr)
				require.Contains(t, out.String(), "level=WARN")
				require.Contains(t, out.String(), "wakeError=")
			}
			_, err := s.holds(t, owner)
			require.NoError(t, err, "it was handed the key")
			pass(5 * time.Second) // who was left behind has ended
		})
	}
	on("without the option", t, newBench, Options{}, func(t *testing.T, b *bench) {
		lease := b.parkedBehind(t)
		require.NoError(t, b.Release(t.Context(), lease))
		require.EqualError(t, b.report(t).WakeErr, "1 of 1 parked owners that have to ask again were not woken: guard.Options.Wake is nil")
	})
}

// The trust in a long-lived lease counts from the return of Acquire, also if the grant has left room for a parked
// owner whose wake-up hangs.
func TestAcquireThatWakes(t *testing.T) {
	on("", t, newSleepers, Options{}, func(t *testing.T, s *sleepers) {
		s.wake = hang
		s.occupy(t, "k", 3*time.Second)
		time.AfterFunc(time.Second, func() { s.park(t, "k", 2) })
		lease, err := s.WithMaxHolders(2).Acquire(t.Context(), LeaseRequest{Key: "k", TTL: 10 * time.Second, Wait: 5 * time.Second})
		require.NoError(t, err)
		require.Equal(t, 10*time.Second-margin-releaseTime, lease.TTL)
		require.Error(t, s.report(t).WakeErr)
	})
}

// A wake-up that outlasts its time under the work, and then succeeds, has woken its owner.
func TestWakeUpThatEndsLate(t *testing.T) {
	late := func(context.Context, lockstore.WakeAddress) error {
		<-time.After(releaseTime + 4*noticeTime)
		return nil
	}
	on("", t, newBench, Options{Wait: 5 * time.Second, Wake: late}, func(t *testing.T, b *bench) {
		b.occupy(t, "k", 3*time.Second)
		time.AfterFunc(time.Second, func() { b.park(t, "k", 2) })
		require.NoError(t, b.WithMaxHolders(2).Do(t.Context(), "k", func(context.Context, Lock) error {
			<-time.After(5 * time.Second)
			return nil
		}))
		require.NoError(t, b.report(t).WakeErr)
		require.Equal(t, 1, b.report(t).OwnersWoken)
	})
}

type tokenKey struct{}

// hang is a Wake that hangs until its context ends.
func hang(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }

// addresses is a store whose addresses are taken through a hook.
type addresses struct {
	driver.Driver
	take func(n int, take func() (driver.HiddenBytes, error)) (driver.HiddenBytes, error)
	n    int
}

func (a *addresses) Unwrap() driver.Driver { return a.Driver }

func (a *addresses) PutAddress(context.Context, string, driver.Owner, driver.HiddenBytes, time.Duration) error {
	return errors.ErrUnsupported
}

func (a *addresses) TakeAddress(ctx context.Context, key string, owner driver.Owner) (driver.HiddenBytes, error) {
	a.n++
	p, _ := driver.As[driver.Parker](a.Driver)
	return a.take(a.n, func() (driver.HiddenBytes, error) { return p.TakeAddress(ctx, key, owner) })
}

// parkedBehind lets one owner hold the key, and another one park behind it. It returns the lease.
func (b *bench) parkedBehind(t *testing.T) lockstore.Lease {
	t.Helper()
	lease := b.occupy(t, "k", time.Minute)
	b.park(t, "k", 1)
	return lease
}

func TestManyWakeUps(t *testing.T) {
	on("a completion wakes all but one that is gone, a few at once", t, newSleepers, Options{}, func(t *testing.T, s *sleepers) {
		var n atomic.Int32
		s.wake = func(context.Context, int) error {
			pass(20 * time.Millisecond)
			if n.Add(1) == 1 {
				return lockstore.Invalidf("gone")
			}
			return nil
		}
		do := s.WithCooldown(time.Hour).Do
		var all []lockstore.Owner
		require.NoError(t, do(t.Context(), "k", func(context.Context, Lock) error {
			for range 64 {
				all = append(all, s.park(t, "k", 1))
			}
			return nil
		}))
		require.Subset(t, all, s.woken)
		require.Len(t, s.woken, 63)
		require.Equal(t, mostWakes, s.most)
		require.Equal(t, 63, s.report(t).OwnersWoken)
		require.ErrorContains(t, s.report(t).WakeErr, "1 of 64 parked owners")
	})
	on("F11 wake-ups leave time for the answer", t, newSleepers, Options{}, func(t *testing.T, s *sleepers) {
		s.wake = hang
		began := time.Now()
		require.NoError(t, s.Do(within(t, 10*time.Second), "k", func(ctx context.Context, _ Lock) error {
			s.park(t, "k", 1)
			<-ctx.Done()
			return nil
		}))
		require.LessOrEqual(t, time.Since(began), 10*time.Second-answerTime+noticeTime)
	})
	on("a DoAll wakes within the time of one release", t, newSleepers, Options{}, func(t *testing.T, s *sleepers) {
		s.wake = hang
		var began time.Time
		require.NoError(t, s.DoAll(t.Context(), []string{"k", "l"}, func(context.Context, []Lock) error {
			s.park(t, "k", 1)
			s.park(t, "l", 1)
			began = time.Now()
			return nil
		}))
		require.LessOrEqual(t, time.Since(began), releaseTime)
		require.Len(t, s.reports, 2)
		for _, r := range s.reports {
			require.Error(t, r.WakeErr)
		}
	})
}

// The address of an owner is taken out of the store first, so nobody else can wake it.
func TestDoAllWakesAllInTheTimeOfOne(t *testing.T) {
	wake := func(ctx context.Context, _ lockstore.WakeAddress) error {
		pass(130 * time.Millisecond)
		return ctx.Err()
	}
	on("", t, newBench, Options{Wake: wake}, func(t *testing.T, b *bench) {
		require.NoError(t, b.DoAll(t.Context(), letters(8), func(context.Context, []Lock) error {
			for _, key := range letters(8) {
				b.park(t, key, 1)
			}
			return nil
		}))
		require.Len(t, b.reports, 8)
		for _, r := range b.reports {
			require.Equal(t, 1, r.OwnersWoken)
			require.NoError(t, r.WakeErr)
		}
	})
}

func TestShutdownCutsWakeUps(t *testing.T) {
	for after := time.Duration(0); after < time.Second; after += 100 * time.Millisecond {
		on("F69 "+after.String(), t, newSleepers, Options{}, func(t *testing.T, s *sleepers) {
			s.wake = func(ctx context.Context, n int) error { defer pass(50 * time.Millisecond); return hang(ctx, n) }
			lease := s.parkedBehind(t)
			var stopped time.Time
			time.AfterFunc(after, func() { stopped = time.Now(); s.Shutdown() })
			require.NoError(t, s.Release(t.Context(), lease))
			require.LessOrEqual(t, time.Since(stopped), shutdownTime+noticeTime)
			require.Error(t, s.report(t).WakeErr)
		})
	}
}

func TestPark(t *testing.T) {
	const turn = lockstore.MaxParkedTurn
	address := lockstore.TaskToken("hunter2")
	request := func() LeaseRequest { return LeaseRequest{Key: "k", TTL: time.Minute, Owner: lockstore.NewOwner()} }
	on("takes a place and does not wait", t, newSleepers, Options{Wait: time.Hour}, func(t *testing.T, s *sleepers) {
		lease := s.occupy(t, "k", time.Hour)
		req := request()
		began := time.Now()
		for range 2 { // it asks again: the place is its own
			_, err := s.Park(t.Context(), req, turn, lockstore.TaskToken(string(req.Owner)))
			busy, ok := errors.AsType[*LockBusy](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, 1, busy.QueuePosition)
		}
		require.Zero(t, time.Since(began))
		require.Equal(t, 1, s.status(t, "k").Waiting, "nothing ends its place")
		require.NoError(t, s.Release(t.Context(), lease))
		require.Equal(t, []lockstore.Owner{req.Owner}, s.woken)
		pass(29 * time.Second)
		woken, err := s.Acquire(t.Context(), LeaseRequest{Key: "k", TTL: time.Minute, Owner: req.Owner})
		require.NoError(t, err)
		require.Greater(t, woken.Fence, lease.Fence)
		require.Greater(t, woken.TTL, 50*time.Second, "the lease is a full one")
		require.NoError(t, s.Release(t.Context(), woken))
		s.free(t, "k")
	})
	for i, c := range []struct {
		change  func(*LeaseRequest)
		turn    time.Duration
		address lockstore.WakeAddress
		want    string
	}{
		{func(r *LeaseRequest) { r.Owner = "" }, turn, address, "without Owner"},
		{func(r *LeaseRequest) { r.Wait = time.Second }, turn, address, "Wait 1s; want 0"},
		{nil, 0, address, "the turn is 0s; want 2s to 30s"},
		{nil, 0, "", "the turn is 0s; want 2s to 30s"},
		{nil, time.Second, address, "Parked is 1s; want 2s to 30s"},
		{nil, -time.Second, address, "Parked is -1s; want 2s to 30s"},
		{nil, time.Minute, address, "Parked is 1m0s; want 2s to 30s"},
		{nil, turn, "", "Address has 0 bytes"},
		{nil, turn, "https://hunter2", "of no kind that this version knows"},
		{nil, turn, lockstore.TaskToken(""), "Address has"},
		{nil, turn, lockstore.TaskToken(string(make([]byte, 1<<20))), "Address has"},
	} {
		on("bad input "+strconv.Itoa(i), t, newBench, Options{}, func(t *testing.T, b *bench) {
			req := request()
			if c.change != nil {
				c.change(&req)
			}
			_, err := b.Park(t.Context(), req, c.turn, c.address)
			require.IsType(t, &LockBadRequest{}, err)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "hunter2")
			require.Less(t, len(err.Error()), 300)
			require.Empty(t, b.store.requests)
		})
	}
	bubble("of a store without parked places", t, func(t *testing.T) {
		g, err := New(memstore.New(nil).WrapDriver(func(d driver.Driver) driver.Driver { return struct{ driver.Driver }{d} }), Options{})
		require.NoError(t, err)
		_, err = g.Park(t.Context(), request(), turn, address)
		require.IsType(t, &LockBadRequest{}, err)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	})
}
