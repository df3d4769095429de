package casstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestKV(t *testing.T) {
	castest.Run(t, func(*testing.T) (casstore.KV, castest.Table) {
		w := newWaking()
		return w, w
	}, synctest.Test)
}

// kvs are what the suite and the comparison run on.
var kvs = map[string]func(*testing.T) storetest.Harness{
	"a clock of 1ns":                   onClock(1, 0),
	"a clock of 1s":                    onClock(time.Second, 0),
	"clocks of 1s that differ by 0.2s": onClock(time.Second, time.Second/5),
	"wake-ups":                         onWaking,
}

func onClock(step, skew time.Duration) func(*testing.T) storetest.Harness {
	return func(t *testing.T) storetest.Harness {
		m := castest.NewMemory(step)
		h := castest.Harness(t, m, casstore.Options{Margin: 100 * time.Millisecond, MaxClockSkew: skew}, m)
		h.ShiftClock = func(_ *testing.T, d time.Duration) { m.Shift(d) }
		return h
	}
}

func TestStore(t *testing.T) {
	for name, open := range kvs {
		t.Run(name, func(t *testing.T) {
			if verifyrecord.WithRaceDetector && name != "clocks of 1s that differ by 0.2s" {
				t.Skip("for races one KV is enough, and TestRuleBook has a few sequences of each: make verify has all")
			}
			storetest.Run(t, open, synctest.Test)
		})
	}
}

// A value tells the owner of each lease, and no other text does.
func TestOwnerOf(t *testing.T) {
	m := castest.NewMemory(time.Millisecond)
	s, err := casstore.New(m, casstore.Options{})
	require.NoError(t, err)
	r := lockstore.Request{Key: "k", TTL: time.Minute, MaxHolders: 2}
	for range 2 {
		r.Owner = lockstore.NewOwner()
		lease, err := s.Acquire(t.Context(), r)
		require.NoError(t, err)
		value := m.Value(t, "k")
		require.Equal(t, r.Owner, casstore.OwnerOf(value, lease.Fence))
		require.Empty(t, casstore.OwnerOf(value, lease.Fence+1))
		require.Empty(t, casstore.OwnerOf(value[1:], lease.Fence))
	}
	require.Empty(t, casstore.OwnerOf(nil, 0))
}

// TestRuleBook compares the store with the rule book by random requests.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/casstore -run TestRuleBook
// replays one seed.
func TestRuleBook(t *testing.T) {
	leasesim.RuleBook(t, "random requests over a KV and to the rule book", 100, 7_510, kvs)
}

// Something comes between the requests of one call, or its replies are lost (F09 F23 F24 F25).
func TestPairs(t *testing.T) {
	leasesim.Pairs(t, "pairs of requests over a KV and to the rule book", kvs["clocks of 1s that differ by 0.2s"])
}

// A service's clock was ahead, and is set back. An entry that was written by the clock of before begins again when
// somebody writes it next, also if each process asks only once and does not wait, as after a cold start.
func TestClockThatIsSetBack(t *testing.T) {
	for name, c := range map[string]struct {
		ahead            time.Duration
		joins, completed bool
	}{
		"an hour, and one waits": {time.Hour, true, false},
		"days":                   {72 * time.Hour, false, false},
		"days, and a cooldown":   {72 * time.Hour, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := castest.NewMemory(time.Millisecond)
				m.Shift(c.ahead)
				lease := take(t, open(t, m), time.Second)
				if c.completed {
					require.NoError(t, open(t, m).Complete(t.Context(), lease, nil, time.Second))
				}
				m.Shift(0)
				s, req := open(t, m), request(time.Second)
				req.JoinQueue = c.joins
				_, err := s.Acquire(t.Context(), req)
				require.ErrorIs(t, err, lockstore.ErrRefused)
				<-time.After(1100 * time.Millisecond)
				if !c.joins {
					s = open(t, m)
				}
				_, err = s.Acquire(t.Context(), req)
				require.NoError(t, err)
			})
		})
	}
}

// Those who come and go in the queue write the entry that the holder renews. make verify has more
// renewals.
func TestHolderRenewsInTimeAmongJoiners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(10 * time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		holder := open(t, r)
		sent := time.Now()
		lease := take(t, holder, time.Second)
		end := sent.Add(lease.TTL)
		var all sync.WaitGroup
		joiners, renewals := 32, 60
		if verifyrecord.WithRaceDetector {
			joiners, renewals = 8, 10
		}
		for range joiners {
			s := open(t, r)
			all.Go(func() {
				for ctx.Err() == nil {
					req := request(time.Second)
					req.JoinQueue = true
					_, err := s.Acquire(ctx, req)
					if err == nil {
						t.Error("granted, though another has the key")
					}
					_ = s.Leave(ctx, req.Key, req.Owner) // it may end with the test
				}
			})
		}
		slowest := time.Duration(0)
		for range renewals {
			<-time.After(300 * time.Millisecond)
			sent := time.Now()
			renewed, err := holder.Renew(ctx, lease, time.Second)
			require.NoError(t, err)
			require.True(t, time.Now().Before(end), "the renewal came %v after the end of trust", time.Since(end))
			slowest, end = max(slowest, time.Since(sent)), sent.Add(renewed.TTL)
		}
		cancel()
		all.Wait()
		t.Logf("the slowest of %d renewals took %v", renewals, slowest)
	})
}

func open(t *testing.T, r casstore.KV) *lockstore.Store {
	s, err := casstore.New(r, casstore.Options{})
	require.NoError(t, err)
	return s
}

func request(ttl time.Duration) lockstore.Request {
	return lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: ttl}
}

// take grants the key to a new owner.
func take(t *testing.T, s *lockstore.Store, ttl time.Duration) lockstore.Lease {
	t.Helper()
	lease, err := s.Acquire(t.Context(), request(ttl))
	require.NoError(t, err)
	return lease
}

// join takes a place in the queue.
func join(t *testing.T, s *lockstore.Store, ttl time.Duration) (lockstore.Request, *lockstore.Refused) {
	t.Helper()
	req := request(ttl)
	req.JoinQueue = true
	_, err := s.Acquire(t.Context(), req)
	refused, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok, "%v", err)
	require.Positive(t, refused.QueuePosition)
	return req, refused
}

func TestInvalidSettings(t *testing.T) {
	ms := castest.NewMemory(time.Millisecond)
	for name, c := range map[string]struct {
		kv   casstore.KV
		opt  casstore.Options
		says string
	}{
		"F51 no KV":             {nil, casstore.Options{Name: "mystore"}, "mystore: the KV is nil"},
		"no resolution":         {castest.NewMemory(0), casstore.Options{}, "casstore: the KV's ClockResolution is 0s"},
		"more than a second":    {castest.NewMemory(time.Second + 1), casstore.Options{}, "casstore: the KV's ClockResolution is 1.000000001s"},
		"a negative skew":       {ms, casstore.Options{MaxClockSkew: -1}, "casstore: MaxClockSkew is -1ns"},
		"a skew above a minute": {ms, casstore.Options{MaxClockSkew: time.Minute + 1}, "casstore: MaxClockSkew is 1m0.000000001s"},
		"a negative margin":     {ms, casstore.Options{Margin: -1}, "casstore: Margin is -1ns"},
		"a margin above 0.5 s":  {ms, casstore.Options{Margin: time.Second/2 + 1}, "casstore: Margin is 500.000001ms"},
	} {
		s, err := casstore.New(c.kv, c.opt)
		require.ErrorIs(t, err, lockstore.ErrInvalid, name)
		require.ErrorContains(t, err, c.says)
		require.Nil(t, s)
	}
}

// able is a KV that can do all that a KV may do besides.
type able struct {
	casstore.KV
	casstore.Lister
	closed *int
}

func (able) Check(context.Context) ([]driver.Finding, error) {
	return []driver.Finding{{Problem: "a problem"}}, nil
}

func (a able) Close() error { *a.closed++; return nil }

// What a KV can do besides is what its store can do.
func TestOptionalInterfaces(t *testing.T) {
	m, closed := castest.NewMemory(time.Millisecond), 0
	for kv, can := range map[casstore.KV]bool{struct{ casstore.KV }{m}: false, able{m, m, &closed}: true} {
		s := open(t, kv)
		_, err := s.Extent(t.Context())
		require.Equal(t, !can, errors.Is(err, errors.ErrUnsupported), "%v", err)
		_, err = s.Check(t.Context())
		require.Equal(t, !can, errors.Is(err, errors.ErrUnsupported), "%v", err)
		before := closed
		require.NoError(t, s.Close())
		require.Equal(t, can, closed == before+1)
	}
}

// pages is a KV that lists one page: what it has counted, and what it has read.
type pages struct {
	*castest.Memory
	page casstore.Page
}

func (p pages) List(_ context.Context, _ string, page func(casstore.Page) error) error {
	return page(p.page)
}

// An entry that the store cannot read is counted, and so is what the KV cannot read.
func TestListCountsWhatIsDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := castest.NewMemory(time.Millisecond)
		lease := take(t, open(t, m), time.Minute)
		entry, now, err := m.Read(t.Context(), "k", true)
		require.NoError(t, err)
		foreign := casstore.Entry{Value: []byte("hello"), Version: "v", WrittenAt: now}
		s := open(t, pages{m, casstore.Page{
			Entries: []casstore.Listed{{Key: "a", Name: "row a", Entry: foreign}, {Key: "k", Name: "row k", Entry: entry}},
			Now:     now.Add(time.Second), Damaged: 2, DamagedNames: []string{"row b"},
		}})
		enough := errors.New("enough")
		var page lockstore.Page
		require.Equal(t, enough, s.List(t.Context(), "", func(p lockstore.Page) error { page = p; return enough }))
		require.Len(t, page.Keys, 1)
		require.InDelta(t, 59*time.Second, page.Keys[0].Remaining, float64(2*time.Millisecond), "a clock of 1 ms")
		require.Len(t, page.Keys[0].Holders, 1)
		page.Keys[0].Remaining, page.Keys[0].Holders = 0, nil
		require.Equal(t, lockstore.Page{
			Keys:    []lockstore.Status{{Key: "k", State: lockstore.Held, Fence: lease.Fence}},
			Damaged: 3, DamagedNames: []string{"row b", "row a"}, Requests: 1,
		}, page)
	})
}

// In the second half of a lease a joiner makes room for the holder's renewal. Nobody renews
// a revoked lease.
func TestJoinsBehindARevokedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote(10 * time.Millisecond)
		lease := take(t, open(t, r), time.Second)
		<-time.After(600 * time.Millisecond)
		_, err := open(t, r).Revoke(t.Context(), lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence})
		require.NoError(t, err)
		join(t, open(t, r), time.Second)
	})
}

// hooked is a KV in which a test does something before and after a write.
type hooked struct {
	casstore.KV
	before func() error
	after  func(casstore.Entry) (casstore.Entry, error)
	old    casstore.Entry // what a read that is not fresh returns, if it has a version
}

func (h *hooked) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	if h.old.Version != "" && !fresh {
		return h.old, time.Time{}, nil
	}
	return h.KV.Read(ctx, key, fresh)
}

func (h *hooked) Write(ctx context.Context, key string, value []byte, ifVersion string) (casstore.Entry, error) {
	if h.before != nil {
		if err := h.before(); err != nil {
			return casstore.Entry{}, err
		}
	}
	e, err := h.KV.Write(ctx, key, value, ifVersion)
	if err == nil && h.after != nil {
		return h.after(e)
	}
	return e, err
}

// A hand-over is applied 5 s after its stamp, so its turn is over then. Its owner was refused meanwhile, and must
// not take the hand-over for one of a moment ago: another may be granted the key.
func TestHandOverThatIsAppliedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := castest.NewMemory(time.Millisecond)
		late := &hooked{KV: m, before: func() error {
			<-time.After(5 * time.Second)
			m.Shift(-5 * time.Second)
			return nil
		}, after: func(e casstore.Entry) (casstore.Entry, error) {
			m.Shift(0)
			return e, nil
		}}
		_, _, lease, req := waits(t, m)
		go func() { _ = open(t, late).Release(t.Context(), lease) }()
		<-time.After(4 * time.Second)
		waiter := open(t, m) // the owner goes on in another process
		var refused *lockstore.Refused
		_, err := waiter.Acquire(t.Context(), req)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 1, refused.QueuePosition)
		req.Hint = refused.Hint
		news, err := waiter.AwaitTurn(t.Context(), req, 0)
		require.NoError(t, err)
		take(t, open(t, m), time.Minute) // the turn is over
		require.Zero(t, news.Lease.TTL, "two owners trust their leases")
	})
}

// The holder and the first in line do not pause after their first conflicts.
func TestWhoDoesNotPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conflicts := 0 // others write the entry, so many writes find another version
		s := open(t, &hooked{KV: castest.NewMemory(time.Millisecond), before: func() error {
			if conflicts == 0 {
				return nil
			}
			conflicts--
			<-time.After(10 * time.Millisecond)
			return casstore.ErrConflict
		}})
		lease := take(t, s, time.Minute)
		waits, _ := join(t, s, time.Minute)
		for _, call := range []func() error{
			func() error { _, err := s.Renew(t.Context(), lease, time.Minute); return err },
			func() error { return s.MarkStarted(t.Context(), lease) },
			func() error { return s.Release(t.Context(), lease) },
			func() error { _, err := s.Acquire(t.Context(), waits); return err },
		} {
			conflicts = 5
			began := time.Now()
			require.NoError(t, call())
			require.Equal(t, 5*10*time.Millisecond, time.Since(began))
		}
	})
}

// A service that answers each write with a conflict gets no endless row of requests.
func TestEndlessConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := castest.NewMemory(time.Millisecond)
		lease, r := take(t, open(t, m), time.Minute), request(time.Minute)
		r.Owner = lease.Owner
		for what, call := range map[string]func(context.Context, *lockstore.Store) error{
			"Acquire": func(ctx context.Context, s *lockstore.Store) error { _, err := s.Acquire(ctx, r); return err },
			"Renew": func(ctx context.Context, s *lockstore.Store) error {
				_, err := s.Renew(ctx, lease, time.Minute)
				return err
			},
			"MarkStarted": func(ctx context.Context, s *lockstore.Store) error { return s.MarkStarted(ctx, lease) },
			"Release":     func(ctx context.Context, s *lockstore.Store) error { return s.Release(ctx, lease) },
			"Abandon":     func(ctx context.Context, s *lockstore.Store) error { return s.Abandon(ctx, lease.Key, lease.Owner) },
		} {
			writes := 0
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := call(ctx, open(t, &hooked{KV: m, before: func() error {
				if writes++; writes > 10_000 {
					return lockstore.ErrUnavailable // no time passes in the bubble
				}
				return casstore.ErrConflict
			}}))
			cancel()
			require.ErrorIs(t, err, lockstore.ErrContended, what)
			require.Less(t, writes, 5000, what)
		}
	})
}

// The error of a release that only meets others says so: the guard gives it more time then.
func TestContendedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := castest.NewMemory(time.Millisecond)
		lease := take(t, open(t, m), time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := open(t, &hooked{KV: m, before: func() error {
			<-time.After(10 * time.Millisecond)
			return casstore.ErrConflict
		}}).Release(ctx, lease)
		require.ErrorIs(t, err, lockstore.ErrContended)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		isUnknown(t, err)
	})
}

// timeless is a KV whose reads never say the time.
type timeless struct{ *castest.Memory }

func (r timeless) Read(ctx context.Context, key string, fresh bool) (casstore.Entry, time.Time, error) {
	e, _, err := r.Memory.Read(ctx, key, fresh)
	return e, time.Time{}, err
}

func TestFreshReadWithoutATime(t *testing.T) {
	_, err := open(t, timeless{castest.NewMemory(time.Millisecond)}).Acquire(t.Context(), request(time.Minute))
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "a fresh read has no time")
}

// The service's reply to a write does not show that it has written anything.
func TestWrongReplies(t *testing.T) {
	m := castest.NewMemory(time.Millisecond)
	lease := take(t, open(t, m), time.Minute)
	for what, reply := range map[string]func(e, old casstore.Entry) casstore.Entry{
		"the old version": func(e, old casstore.Entry) casstore.Entry { e.Version = old.Version; return e },
		"no version":      func(e, _ casstore.Entry) casstore.Entry { e.Version = ""; return e },
		"no time":         func(e, _ casstore.Entry) casstore.Entry { e.WrittenAt = time.Time{}; return e },
	} {
		old, _, err := m.Read(t.Context(), "k", true)
		require.NoError(t, err)
		_, err = open(t, &hooked{KV: m, after: func(e casstore.Entry) (casstore.Entry, error) {
			return reply(e, old), nil
		}}).Renew(t.Context(), lease, time.Minute)
		t.Log(what)
		isUnknown(t, err)
	}
}

// The client sends a write twice. The first copy was applied, and then more owners had the key than the
// entry remembers. "Lost" would say that it came too late, and nobody knows that.
func TestRepeatedWriteThatIsForgotten(t *testing.T) {
	for what, call := range map[string]func(context.Context, *lockstore.Store, lockstore.Lease) error{
		"Release": func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error { return s.Release(ctx, l) },
		"Complete": func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
			return s.Complete(ctx, l, nil, time.Second)
		},
		"Revoke": func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
			_, err := s.Revoke(ctx, lockstore.RevokeRequest{Key: l.Key, Fence: l.Fence})
			return err
		},
		"Revoke at once": func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
			_, err := s.Revoke(ctx, lockstore.RevokeRequest{Key: l.Key, Fence: l.Fence, OpenAtOnce: true})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := castest.NewMemory(time.Millisecond)
				others := open(t, m)
				lease := take(t, others, time.Minute)
				isUnknown(t, call(t.Context(), open(t, &hooked{KV: m, after: func(casstore.Entry) (casstore.Entry, error) {
					<-time.After(2 * time.Second)          // the end of the Complete
					_ = others.Release(t.Context(), lease) // its owner ends what is revoked
					for range 17 {
						require.NoError(t, others.Release(t.Context(), take(t, others, time.Minute)))
					}
					return casstore.Entry{}, casstore.ErrConflict
				}}), lease))
			})
		})
	}
}

// The first copy of a Revoke was applied, and the lease is over when the store reads the entry again.
func TestRepeatedRevokeOfALeaseThatIsOver(t *testing.T) {
	release := func(t *testing.T, others *lockstore.Store, l lockstore.Lease) {
		require.ErrorIs(t, others.Release(t.Context(), l), lockstore.ErrLost)
	}
	for name, c := range map[string]struct {
		ends  func(*testing.T, *lockstore.Store, lockstore.Lease)
		knows bool
	}{
		"its owner releases it": {release, true},
		"its time ends":         {func(*testing.T, *lockstore.Store, lockstore.Lease) { <-time.After(time.Hour) }, true},
		"its owner abandons it": {func(t *testing.T, others *lockstore.Store, l lockstore.Lease) {
			require.NoError(t, others.Abandon(t.Context(), l.Key, l.Owner))
		}, false},
		"its owner releases it, and many abandon what they do not have": {func(t *testing.T, others *lockstore.Store, l lockstore.Lease) {
			release(t, others, l)
			for range 17 {
				require.NoError(t, others.Abandon(t.Context(), l.Key, lockstore.NewOwner()))
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := castest.NewMemory(time.Millisecond)
				others := open(t, m)
				lease := take(t, others, time.Minute)
				kv := &hooked{KV: m}
				kv.after = func(casstore.Entry) (casstore.Entry, error) {
					kv.after = nil
					c.ends(t, others, lease)
					return casstore.Entry{}, casstore.ErrConflict
				}
				status, err := open(t, kv).Revoke(t.Context(), lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence})
				if !c.knows {
					isUnknown(t, err)
					return
				}
				require.NoError(t, err)
				require.Equal(t, lockstore.Free, status.State)
			})
		})
	}
}

// Two operators revoke a lease. When the second one comes, the lease is over, and a waiter is granted
// the key before the store knows the time.
func TestRevokeThatIsLostAfterAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &hooked{KV: castest.NewMemory(time.Millisecond)}
		lease := take(t, open(t, r), time.Second)
		revoke := lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence}
		_, err := open(t, r).Revoke(t.Context(), revoke)
		require.NoError(t, err)
		<-time.After(2 * time.Second)
		r.before = func() error {
			r.before = nil
			_, err := open(t, r).Acquire(t.Context(), request(time.Minute))
			return err
		}
		_, err = open(t, r).Revoke(t.Context(), revoke)
		require.ErrorIs(t, err, lockstore.ErrLost)
		require.Nil(t, r.before, "somebody wrote meanwhile")
	})
}

// The client sends the first write twice, which is a conflict, and a plain read is older than it. The caller would be
// told that another has the key, and nobody would end its lease.
func TestOldReadAfterARepeatedWrite(t *testing.T) {
	m := castest.NewMemory(time.Millisecond)
	other := open(t, m)
	lease := take(t, other, time.Minute)
	held, _, err := m.Read(t.Context(), "k", true)
	require.NoError(t, err)
	require.NoError(t, other.Release(t.Context(), lease))
	kv := &hooked{KV: m}
	kv.after = func(casstore.Entry) (casstore.Entry, error) {
		kv.after, kv.old = nil, held
		return casstore.Entry{}, casstore.ErrConflict
	}
	_, err = open(t, kv).Acquire(t.Context(), request(time.Minute))
	require.NoError(t, err, "its first write has taken it")
}

func isUnknown(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err, "want an unknown outcome")
	for _, wrong := range []error{lockstore.ErrUnavailable, lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt} {
		require.NotErrorIs(t, err, wrong, "want an unknown outcome")
	}
}
