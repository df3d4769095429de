package lockstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// fake is a driver that answers what a test wants, and counts its calls.
type fake struct {
	answer driver.Answer
	err    error
	calls  int
	closed int
	last   driver.Request
}

func (f *fake) Do(_ context.Context, _ string, r driver.Request) (driver.Answer, error) {
	f.calls++
	f.last = r
	return f.answer, f.err
}

func (f *fake) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return f.Do(ctx, key, r)
}

func (f *fake) Close() error {
	f.closed++
	return errClose
}

var errClose = errors.New("cannot close")

// lister is a driver that lists, checks and keeps addresses, too.
type lister struct{ *fake }

func (l lister) List(ctx context.Context, prefix string, page func(driver.Page) error) error {
	l.calls++
	held := driver.Status{State: driver.Held, Fence: 7, Holder: lockstore.HolderInfo{Name: "f"}.Encode(), Remaining: time.Second, Waiting: 2}
	free := held
	free.State = driver.Free // what a driver says more about it is not true
	return page(driver.Page{
		Keys:    []driver.Listed{{Key: prefix + "held", Status: held}, {Key: prefix + "free", Status: free}},
		Damaged: 1, DamagedNames: []string{"x"},
	})
}

func (l lister) Extent(context.Context) (driver.Extent, error) {
	l.calls++
	return driver.Extent{Entries: 9}, nil
}

func (l lister) Check(context.Context) ([]driver.Finding, error) {
	l.calls++
	return []driver.Finding{{Problem: "p", Fix: "f"}}, nil
}

func (l lister) PutAddress(context.Context, string, driver.Owner, driver.HiddenBytes, time.Duration) error {
	l.calls++
	return nil
}

func (l lister) TakeAddress(context.Context, string, driver.Owner) (driver.HiddenBytes, error) {
	l.calls++
	return nil, nil
}

// wrapper is a driver around another one.
type wrapper struct{ driver.Driver }

func (w wrapper) Unwrap() driver.Driver { return w.Driver }

// a call of a method of a store, about this lease.
type call struct {
	name string
	kind driver.Kind
	do   func(context.Context, *lockstore.Store, lockstore.Lease) error
}

// calls are the methods that send requests about one key.
var calls = []call{
	{"Acquire", driver.Acquire, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return alone(s.Acquire(ctx, lockstore.Request{Key: l.Key, Owner: l.Owner, TTL: time.Minute}))
	}},
	{"Extend", driver.Acquire, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return alone(s.Extend(ctx, l, time.Minute, lockstore.HolderInfo{}))
	}},
	{"Renew", driver.Renew, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return alone(s.Renew(ctx, l, time.Minute))
	}},
	{"Release", driver.Release, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error { return s.Release(ctx, l) }},
	{"Abandon", driver.Abandon, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return s.Abandon(ctx, l.Key, l.Owner)
	}},
	{"Leave", driver.Leave, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return s.Leave(ctx, l.Key, l.Owner)
	}},
	{"AwaitTurn", driver.AwaitTurn, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return alone(s.AwaitTurn(ctx, lockstore.Request{Key: l.Key, Owner: l.Owner}, 0))
	}},
	{"MarkStarted", driver.MarkStarted, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error { return s.MarkStarted(ctx, l) }},
	{"Complete", driver.Complete, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return s.Complete(ctx, l, nil, time.Minute)
	}},
	{"Inspect", driver.Inspect, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return alone(s.Inspect(ctx, l.Key))
	}},
	{"Revoke", driver.Revoke, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return alone(s.Revoke(ctx, lockstore.RevokeRequest{Key: l.Key, Fence: l.Fence}))
	}},
	{"ResolveEffect", driver.Resolve, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return s.ResolveEffect(ctx, l.Key, l.Fence, nil, time.Minute)
	}},
	{"ResolveNoEffect", driver.Resolve, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return s.ResolveNoEffect(ctx, l.Key, l.Fence)
	}},
}

// optional are the methods for which a driver needs an interface more.
var optional = []call{
	{"List", 0, func(ctx context.Context, s *lockstore.Store, _ lockstore.Lease) error {
		return s.List(ctx, "", func(lockstore.Page) error { return nil })
	}},
	{"Extent", 0, func(ctx context.Context, s *lockstore.Store, _ lockstore.Lease) error { return alone(s.Extent(ctx)) }},
	{"Check", 0, func(ctx context.Context, s *lockstore.Store, _ lockstore.Lease) error { return alone(s.Check(ctx)) }},
	{"Acquire of a parked place", driver.Acquire, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return alone(s.Acquire(ctx, lockstore.Request{Key: l.Key, Owner: l.Owner, TTL: time.Minute, JoinQueue: true, Parked: lockstore.TurnTime, Address: lockstore.TaskToken("t")}))
	}},
	{"TakeAddress", 0, func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
		return alone(s.TakeAddress(ctx, l.Key, l.Owner))
	}},
}

// alone wants no value beside an error.
func alone[T any](got T, err error) error {
	if err != nil && !reflect.ValueOf(&got).Elem().IsZero() {
		return fmt.Errorf("a value beside the error %v", err)
	}
	return err
}

var good = lockstore.Lease{Key: "k", Owner: "o", Fence: 7}

var named = []error{
	lockstore.ErrRefused, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable,
}

func matches(err error) (all []error) {
	return slices.DeleteFunc(slices.Clone(named), func(one error) bool { return !errors.Is(err, one) })
}

func TestStoreThatNewHasNotMade(t *testing.T) {
	for says, s := range map[string]*lockstore.Store{
		"lockstore: the store is nil":              nil,
		"lockstore: the store was not made by New": {},
		"mystore: the driver is nil":               lockstore.New("mystore", nil),
		"typed: the driver is nil":                 lockstore.New("typed", (*fake)(nil)),
	} {
		t.Run("F51 "+says, func(t *testing.T) {
			require.EqualError(t, s.Validate(), says)
			for _, c := range slices.Concat(calls, optional) {
				err := c.do(t.Context(), s, good)
				assert.EqualError(t, err, says, c.name)
				assert.Equal(t, []error{lockstore.ErrInvalid}, matches(err), c.name)
			}
			assert.Nil(t, s.Driver())
			assert.NoError(t, s.Close(), "there is nothing to close")
			assert.EqualError(t, s.WrapDriver(func(d driver.Driver) driver.Driver { return wrapper{d} }).Validate(), says, "with a wrapper")
		})
	}
	assert.Equal(t, "mystore", lockstore.New("mystore", nil).Name())
	assert.NoError(t, memstore.New(nil).Validate())
	assert.Equal(t, "memstore", memstore.New(nil).Name())
}

// A call whose context is over was certainly not applied.
func TestContextThatIsOver(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, late} {
		for _, c := range slices.Concat(calls, optional) {
			t.Run(fmt.Sprintf("F22 %s, %v", c.name, ctx.Err()), func(t *testing.T) {
				f := &fake{answer: driver.Answer{Outcome: driver.Done}}
				err := c.do(ctx, lockstore.New("mystore", lister{f}), good)
				require.ErrorIs(t, err, ctx.Err())
				assert.Equal(t, []error{lockstore.ErrUnavailable}, matches(err))
				assert.ErrorContains(t, err, "mystore: not applied")
				assert.Zero(t, f.calls)
			})
		}
	}
	f := &fake{}
	requireInvalid(t, calls[0].do(cancelled, lockstore.New("mystore", f), lockstore.Lease{}), "Key")
}

// An answer that cannot be true is an unknown outcome: the request may have been applied.
func TestDriverThatLies(t *testing.T) {
	may := map[driver.Kind][]driver.Outcome{
		driver.Inspect:     {driver.Done},
		driver.Acquire:     {driver.Granted, driver.Refused, driver.Lost},
		driver.Renew:       {driver.Granted, driver.Lost},
		driver.Release:     {driver.Done, driver.Lost},
		driver.Abandon:     {driver.Done},
		driver.Leave:       {driver.Done, driver.Holding},
		driver.MarkStarted: {driver.Done, driver.Lost, driver.Exclusive},
		driver.Complete:    {driver.Done, driver.Lost, driver.Exclusive},
		driver.Resolve:     {driver.Done, driver.Refused, driver.Lost},
		driver.Revoke:      {driver.Done, driver.Refused, driver.Lost},
	}
	means := map[driver.Outcome]error{
		driver.Refused: lockstore.ErrRefused, driver.Lost: lockstore.ErrLost, driver.Exclusive: lockstore.ErrInvalid,
	}
	for _, c := range calls {
		if c.kind == driver.AwaitTurn {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for o := driver.Outcome(-1); o <= driver.Ask+1; o++ {
				answer := driver.Answer{Outcome: o, Fence: 7, TTL: time.Minute, Why: "so it is", Status: driver.Status{State: driver.Held, Remaining: time.Second}}
				f := &fake{answer: answer}
				err := c.do(t.Context(), lockstore.New("mystore", f), good)
				assert.Equal(t, c.kind, f.last.Kind)
				switch {
				case !slices.Contains(may[c.kind], o):
					unknown(t, err, fmt.Sprintf(`gave the outcome %d to the request "%v"`, o, c.kind))
				case o == driver.Holding:
					assert.ErrorAs(t, err, new(*lockstore.StillHolds))
				case means[o] == nil:
					assert.NoError(t, err)
				default:
					assert.Equal(t, []error{means[o]}, matches(err), "outcome %d", o)
				}

				f.err = errors.New("no answer")
				assert.Equal(t, f.err, c.do(t.Context(), lockstore.New("mystore", f), good), "the error counts")
			}
		})
	}

	for _, c := range []struct {
		fence lockstore.Fence
		ttl   time.Duration
		seat  int
		says  string
	}{
		{0, time.Minute, 0, "granted a lease with fence 0"},
		{-1, time.Minute, 0, "granted a lease with fence -1"},
		{7, time.Minute + 1, 0, "granted a lease with fence 7 and seat 0 for 1m0.000000001s"},
		{7, math.MaxInt64, 0, "granted a lease with fence 7 and seat 0 for 2"},
		{7, time.Minute, -1, "granted a lease with fence 7 and seat -1"},
		{7, time.Minute, lockstore.MaxHolders, "granted a lease with fence 7 and seat 32"},
		{7, time.Minute, lockstore.MaxHolders - 1, ""},
		{7, time.Minute, 0, ""},
		{7, -time.Hour, 0, ""}, // the answer may be late
	} {
		s := lockstore.New("mystore", &fake{answer: driver.Answer{Outcome: driver.Granted, Fence: c.fence, TTL: c.ttl, Seat: c.seat}})
		lease, err := s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "o", TTL: time.Minute})
		if c.says != "" {
			unknown(t, err, c.says)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, lockstore.Lease{Key: "k", Owner: "o", Fence: 7, TTL: c.ttl, Seat: c.seat}, lease)
	}
	for answered, want := range map[time.Duration]time.Duration{
		lockstore.MaxTTL + time.Minute: lockstore.MaxTTL, // a tolerance for clocks makes leases longer
		time.Hour:                      time.Hour,        // a renewal for less than the TTL of the lease is for this TTL
	} {
		renewed, err := lockstore.New("mystore", &fake{answer: driver.Answer{Outcome: driver.Granted, TTL: answered}}).Renew(t.Context(), good, time.Second)
		require.NoError(t, err)
		assert.Equal(t, want, renewed.TTL)
	}
}

// unknown wants an unknown outcome, which is a mistake in the driver.
func unknown(t *testing.T, err error, says string) {
	t.Helper()
	require.ErrorContains(t, err, `mystore: key "k": a mistake in the driver: it `+says)
	assert.Empty(t, matches(err))
}

// What a method makes of an answer, and what it sends.
func TestStoreAndDriver(t *testing.T) {
	f := &fake{}
	s := lockstore.New("mystore", f)
	by := lockstore.HolderInfo{Name: "f", ID: "1"}
	status := driver.Status{State: driver.Held, Fence: 7, Holder: by.Encode(), Remaining: time.Second, Waiting: 3, Result: driver.HiddenBytes("r")}
	sent := func(want driver.Request, err error) {
		t.Helper()
		require.NoError(t, err)
		assert.Equal(t, want, f.last)
	}
	f.answer = driver.Answer{Outcome: driver.Granted, Fence: 7, TTL: time.Second}
	_, err := s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "o", TTL: time.Minute, HolderInfo: by, JoinQueue: true})
	sent(driver.Request{Kind: driver.Acquire, Owner: "o", TTL: time.Minute, MaxHolders: 1, Holder: by.Encode(), Join: true}, err)
	_, err = s.Extend(t.Context(), lockstore.Lease{Key: "k", Owner: "o", Fence: 7, Hint: "n"}, time.Minute, by)
	sent(driver.Request{Kind: driver.Acquire, Owner: "o", Fence: 7, TTL: time.Minute, MaxHolders: 1, Holder: by.Encode(), Hint: "n"}, err)
	renewed, err := s.Renew(t.Context(), lockstore.Lease{Key: "k", Owner: "o", Fence: 7, Seat: 2, Hint: "n"}, time.Minute)
	sent(driver.Request{Kind: driver.Renew, Owner: "o", Fence: 7, TTL: time.Minute, Hint: "n"}, err)
	want := lockstore.Lease{Key: "k", Owner: "o", Fence: 7, TTL: time.Second, Seat: 2, Hint: "n"}
	assert.Equal(t, want, renewed, "an answer without a note ends none")
	f.answer.Hint, want.Hint = "m", "m"
	renewed, err = s.Renew(t.Context(), renewed, time.Minute)
	require.NoError(t, err)
	assert.Equal(t, want, renewed)
	f.answer = driver.Answer{Outcome: driver.Done, Status: status}
	sent(driver.Request{Kind: driver.Release, Owner: "o", Fence: 7}, s.Release(t.Context(), good))
	sent(driver.Request{Kind: driver.Abandon, Owner: "o"}, s.Abandon(t.Context(), "k", "o"))
	sent(driver.Request{Kind: driver.Leave, Owner: "o"}, s.Leave(t.Context(), "k", "o"))
	sent(driver.Request{Kind: driver.MarkStarted, Owner: "o", Fence: 7}, s.MarkStarted(t.Context(), good))
	result := driver.HiddenBytes("result")
	sent(driver.Request{Kind: driver.Complete, Owner: "o", Fence: 7, Result: result, TTL: time.Hour}, s.Complete(t.Context(), good, result, time.Hour))
	sent(driver.Request{Kind: driver.Resolve, Fence: 7, Effect: true, Result: result, TTL: time.Hour}, s.ResolveEffect(t.Context(), "k", 7, result, time.Hour))
	sent(driver.Request{Kind: driver.Resolve, Fence: 7}, s.ResolveNoEffect(t.Context(), "k", 7))

	held := lockstore.Status{Key: "k", State: lockstore.Held, Fence: 7, Holder: by, Remaining: time.Second, Waiting: 3}
	got, err := s.Inspect(t.Context(), "k")
	sent(driver.Request{Kind: driver.Inspect}, err)
	assert.Equal(t, held, got)
	got, err = s.Revoke(t.Context(), lockstore.RevokeRequest{Key: "k", Fence: 7, By: by})
	sent(driver.Request{Kind: driver.Revoke, Fence: 7, Holder: by.Encode()}, err)
	assert.Equal(t, held, got)
	f.answer.Status.State = driver.Free
	got, err = s.Revoke(t.Context(), lockstore.RevokeRequest{Key: "k", Fence: 7, By: by, OpenAtOnce: true})
	sent(driver.Request{Kind: driver.Revoke, Fence: 7, Holder: by.Encode(), AtOnce: true}, err)
	assert.Equal(t, lockstore.Status{Key: "k", Fence: 7, Holder: by, Remaining: time.Second, Waiting: 3}, got, "for how long the old holder may be at work")
	got, err = s.Inspect(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, lockstore.Status{Key: "k", Fence: 7, Waiting: 3}, got, "a free key has no holder")

	f.answer = driver.Answer{Outcome: driver.Refused, Position: 4, Status: status}
	refused := lockstore.Refused{Key: "k", State: lockstore.Held, Holder: by, QueuePosition: 4, Fence: 7, StateEndsIn: time.Second, Result: lockstore.HiddenBytes("r")}
	_, err = s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "o", TTL: time.Minute})
	assert.Equal(t, &refused, err)
	_, err = s.Revoke(t.Context(), lockstore.RevokeRequest{Key: "k", Fence: 7, OpenAtOnce: true})
	require.ErrorIs(t, err, lockstore.ErrRefused)
	assert.EqualError(t, err, `lock "k" cannot be opened at once: its work has started (f (1)). When the lease has ended, after at most 1s more, somebody has to resolve the key`)

	f.answer = driver.Answer{Outcome: driver.Lost, Why: "the lease has expired"}
	_, err = s.Renew(t.Context(), good, time.Minute)
	assert.EqualError(t, err, `mystore: key "k": the lease has expired: lock is lost`)
	f.answer = driver.Answer{Outcome: driver.Exclusive}
	assert.EqualError(t, s.MarkStarted(t.Context(), good), `mystore: key "k": mark started needs a lease with MaxHolders 1`)
	f.answer = driver.Answer{Outcome: driver.Holding}
	assert.EqualError(t, s.Leave(t.Context(), "k", "o"), `mystore: key "k": the owner that leaves the queue holds the lock`)
}

// AwaitTurn asks the driver once, and an answer that cannot be true is an error.
func TestAwaitTurn(t *testing.T) {
	req := lockstore.Request{Key: "k", Owner: "o", Hint: "n"}
	for _, c := range []struct {
		answer driver.Answer
		want   lockstore.AwaitedTurn
		err    string
	}{
		{answer: driver.Answer{Outcome: driver.NotYet, Hint: "m"}, want: lockstore.AwaitedTurn{Hint: "m"}},
		{answer: driver.Answer{Outcome: driver.Ask}, want: lockstore.AwaitedTurn{Ask: true}},
		{
			answer: driver.Answer{Outcome: driver.Granted, Fence: 7, TTL: time.Second, Hint: "m"},
			want:   lockstore.AwaitedTurn{Lease: lockstore.Lease{Key: "k", Owner: "o", Fence: 7, TTL: time.Second, Hint: "m"}},
		},
		{answer: driver.Answer{Outcome: driver.Granted, TTL: time.Second}, err: "a mistake in the driver: it granted a lease with fence 0"},
		{answer: driver.Answer{Outcome: driver.Granted, Fence: 7, TTL: 31 * time.Second}, err: "a mistake in the driver: it granted a lease with fence 7 and seat 0 for 31s"},
		{
			answer: driver.Answer{Outcome: driver.Granted, Fence: 7, TTL: lockstore.MaxParkedTurn}, // an owner that parked and waits now
			want:   lockstore.AwaitedTurn{Lease: lockstore.Lease{Key: "k", Owner: "o", Fence: 7, TTL: lockstore.TurnTime}},
		},
		{answer: driver.Answer{Outcome: driver.Granted, Fence: 7, Seat: 32, TTL: time.Second}, err: "a mistake in the driver: it granted a lease with fence 7 and seat 32 for 1s"},
		{answer: driver.Answer{Outcome: driver.Done}, err: `a mistake in the driver: it gave the outcome 2 to the request "await turn"`},
	} {
		f := &fake{answer: c.answer}
		got, err := lockstore.New("mystore", f).AwaitTurn(t.Context(), req, time.Second)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
		} else {
			require.NoError(t, err)
		}
		assert.Equal(t, c.want, got)
		assert.Equal(t, 1, f.calls)
		assert.Equal(t, driver.Request{Kind: driver.AwaitTurn, Owner: "o", Elapsed: time.Second, Hint: "n"}, f.last)
	}
	f := &fake{err: context.DeadlineExceeded}
	_, err := lockstore.New("mystore", f).AwaitTurn(t.Context(), req, time.Second)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestWrapDriver(t *testing.T) {
	inner := lister{&fake{answer: driver.Answer{Outcome: driver.Done}}}
	s := lockstore.New("mystore", inner)
	var around wrapper
	for range 3 {
		s = s.WrapDriver(func(d driver.Driver) driver.Driver {
			around = wrapper{d}
			return around
		})
	}
	assert.Equal(t, "mystore", s.Name())
	assert.Equal(t, around, s.Driver())
	require.NoError(t, s.Release(t.Context(), good))
	assert.Equal(t, 1, inner.calls)

	// What the driver inside can do is found through any number of wrappers.
	var page lockstore.Page
	stop := errors.New("stop")
	assert.Equal(t, stop, s.List(t.Context(), "a/", func(p lockstore.Page) error { page = p; return stop }))
	assert.Equal(t, lockstore.Page{
		Keys: []lockstore.Status{
			{Key: "a/held", State: lockstore.Held, Fence: 7, Holder: lockstore.HolderInfo{Name: "f"}, Remaining: time.Second, Waiting: 2},
			{Key: "a/free", Fence: 7, Waiting: 2},
		},
		Damaged: 1, DamagedNames: []string{"x"}, Requests: 1,
	}, page)
	extent, err := s.Extent(t.Context())
	require.NoError(t, err)
	assert.Equal(t, lockstore.Extent{Entries: 9}, extent)
	findings, err := s.Check(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []lockstore.Finding{{Problem: "p", Fix: "f"}}, findings)
	assert.Equal(t, errClose, s.Close())
	assert.Equal(t, 1, inner.closed)

	assert.NoError(t, memstore.New(nil).Close(), "a driver that keeps nothing open")
}

func TestUnsupported(t *testing.T) {
	f := &fake{}
	s := lockstore.New("mystore", wrapper{f})
	for _, c := range optional {
		err := c.do(t.Context(), s, good)
		require.ErrorIs(t, err, errors.ErrUnsupported, c.name)
		assert.Empty(t, matches(err))
		assert.ErrorContains(t, err, "mystore: this store cannot ")
		assert.Zero(t, f.calls, c.name)
	}
}

func TestLeaseIsWrittenDown(t *testing.T) {
	keys := []string{"k", " ", "lease1 7 o aw", "a/b", "é漢😀% \"\\{}|\u00a0\u200b", strings.Repeat("k", lockstore.MaxKeyBytes)}
	owners := []lockstore.Owner{"o", "-", "lease1", "aZ09!#$&'()*+,-./:;<=>?@[]^_`{|}~\"\\", lockstore.Owner(strings.Repeat("~", lockstore.MaxOwnerBytes)), lockstore.NewOwner()}
	texts := map[string]bool{}
	for _, key := range keys {
		for _, owner := range owners {
			for _, fence := range []lockstore.Fence{0, 1, math.MaxInt64} {
				l := lockstore.Lease{Key: key, Owner: owner, Fence: fence}
				text := l.Encode()
				assert.Regexp(t, "^[!-~ ]+$", text, "one line that can be printed")
				back, err := lockstore.ParseLease(text)
				require.NoError(t, err, "%q", text)
				require.Equal(t, l, back)
				l.TTL = time.Minute
				require.Equal(t, text, l.Encode(), "without the TTL")
				texts[text] = true
			}
		}
	}
	assert.Len(t, texts, len(keys)*len(owners)*3)
}

func TestDamagedLeases(t *testing.T) {
	const secret = "SECRETowner"
	l := lockstore.Lease{Key: "secret/key", Owner: secret, Fence: 7}
	text := l.Encode()
	damaged := []string{
		"", secret, "lease1", "lease1    ", "lease2" + text[6:], "lease1 7 " + secret, "lease1 7  c2VjcmV0", "lease1 -1 " + secret + " c2VjcmV0",
		"lease1 x " + secret + " c2VjcmV0", "lease1 9223372036854775808 " + secret + " c2VjcmV0", "lease1 7 " + secret + " ", "lease1 7 " + secret + " c2Vjc", "lease1 7 " + secret + " !",
		"lease1 7 " + secret + " AA", "lease1 7 é c2VjcmV0", "lease1 7 " + strings.Repeat("o", 65) + " c2VjcmV0", text + " " + text, text + " x", strings.ToUpper(text), " " + text, "{" + text + "}",
		strings.Replace(text, "7", "+7", 1), strings.Replace(text, "7", "007", 1), "lease1 -0 " + secret + " c2VjcmV0", text + "\n", strings.Replace(text, "c2Vj", "c2\nVj", 1),
	}
	for _, bad := range damaged {
		_, err := lockstore.ParseLease(bad)
		require.ErrorIs(t, err, lockstore.ErrInvalid, "%q", bad)
		for _, part := range []string{secret, strings.ToLower(secret), "c2Vjc", "secret/key"} {
			assert.NotContains(t, err.Error(), part)
		}
	}
	// A text that is cut, or has one byte more or less, may be that of another key, but of this owner only
	// if the owner is there.
	for i := range text {
		for _, changed := range []string{text[:i], text[:i] + text[i+1:], text[:i] + " " + text[i:]} {
			back, err := lockstore.ParseLease(changed)
			if err != nil {
				assert.NotContains(t, err.Error(), secret)
				continue
			}
			assert.NotEqual(t, l, back, "%q", changed)
		}
	}
}

// A Lease in JSON would show its owner, or lose it.
func TestLeaseIsNotJSON(t *testing.T) {
	for _, value := range []any{good, &good, map[string]lockstore.Lease{"a": good}, struct{ Lease *lockstore.Lease }{&good}, struct{ lockstore.Lease }{good}} {
		text, err := json.Marshal(value)
		require.ErrorContains(t, err, "a Lease is not JSON, because its owner is a secret; use Lease.Encode and ParseLease", "%T", value)
		assert.Empty(t, text)
	}
	var l lockstore.Lease
	require.ErrorContains(t, json.Unmarshal([]byte(`{"Key":"k","Owner":"o","Fence":7}`), &l), "use Lease.Encode and ParseLease")
	var s struct{ Lease lockstore.Lease }
	require.ErrorContains(t, json.Unmarshal([]byte(`{"Lease":{"Key":"k"}}`), &s), "use Lease.Encode and ParseLease")
	assert.Zero(t, s)
}

func TestStateIsText(t *testing.T) {
	text, err := json.Marshal(map[string]lockstore.State{"state": lockstore.InDoubt})
	require.NoError(t, err)
	assert.JSONEq(t, `{"state":"in doubt"}`, string(text))
	assert.Equal(t, "{Key:k State:held Holder:unknown Fence:7 Remaining:0s Waiting:0 Parked:0 Started:false Holders:[] OldestWait:0s Queue:[]}", fmt.Sprintf("%+v", lockstore.Status{Key: "k", State: lockstore.Held, Fence: 7}))
}

// A store tells of the parked owners to wake, also beside an error, and also through a driver around its own.
func TestOnWake(t *testing.T) {
	var told []lockstore.Owner
	f := &fake{answer: driver.Answer{Outcome: driver.Done, Wake: []driver.Owner{"p", "q"}}}
	s := lockstore.New("mystore", f).OnWake(func(_ context.Context, key string, owners []lockstore.Owner) {
		assert.Equal(t, "k", key)
		told = append(told, owners...)
	})
	require.NoError(t, s.Release(t.Context(), good))
	f.err = errors.New("no answer")
	require.Error(t, s.WrapDriver(func(d driver.Driver) driver.Driver { return wrapper{d} }).Release(t.Context(), good))
	assert.Equal(t, []lockstore.Owner{"p", "q", "p", "q"}, told)
	f.err = nil
	require.NoError(t, lockstore.New("mystore", f).Release(t.Context(), good), "nobody is to be told")
	require.ErrorIs(t, (*lockstore.Store)(nil).OnWake(nil).Validate(), lockstore.ErrInvalid)
}
