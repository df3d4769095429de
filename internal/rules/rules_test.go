package rules_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

var book = rules.Book{Places: 3, Marks: 4}

// now is the time of the first request of a key; sec is a time later than that by so many seconds.
var now = time.Unix(1_800_000_000, 0)

func sec(s float64) time.Time { return now.Add(time.Duration(s * float64(time.Second))) }

// between is a clock that knows that the time is at or after the first and at or before the second.
func between(early, late float64) rules.Clock {
	return rules.Clock{Early: sec(early), Late: sec(late), Sure: true}
}

func guess(s float64) rules.Clock { return rules.Clock{Early: sec(s), Late: sec(s)} }

// key is a state and the decisions about it.
type key struct {
	t *testing.T
	rules.State
	rules.Book
	changed bool
	basis   rules.Basis
}

func (k *key) do(c rules.Clock, r driver.Request) (a driver.Answer) {
	before, text := k.State, fmt.Sprint(k.State)
	k.State, k.changed, a, k.basis = k.Decide(k.State, c, r)
	require.Equal(k.t, text, fmt.Sprint(before), "a slice is changed in place")
	if !k.changed {
		require.Equal(k.t, before, k.State)
	}
	return a
}

func newKey(t *testing.T) *key { return &key{t: t, Book: book} }

func acquire(o driver.Owner) driver.Request {
	return driver.Request{Kind: driver.Acquire, Owner: o, TTL: 10 * time.Second, MaxHolders: 1, Holder: "holder " + string(o), Join: true}
}

func by(kind driver.Kind, o driver.Owner, f driver.Fence) driver.Request {
	return driver.Request{Kind: kind, Owner: o, Fence: f, TTL: 10 * time.Second}
}

// granted acquires the key.
func (k *key) granted(c rules.Clock, r driver.Request) driver.Answer {
	k.t.Helper()
	a := k.do(c, r)
	require.Equal(k.t, driver.Granted, a.Outcome, "%v", a)
	return a
}

// wants does the request and looks at the outcome.
func (k *key) wants(want driver.Outcome, c rules.Clock, r driver.Request) driver.Answer {
	k.t.Helper()
	a := k.do(c, r)
	require.Equal(k.t, want, a.Outcome, "%+v", a)
	return a
}

// unchanged does the request, which changes nothing.
func (k *key) unchanged(want driver.Outcome, c rules.Clock, r driver.Request) driver.Answer {
	k.t.Helper()
	before := k.State
	a := k.wants(want, c, r)
	assert.Equal(k.t, before, k.State)
	assert.False(k.t, k.changed)
	return a
}

func (k *key) start(at float64, o driver.Owner, f driver.Fence) {
	k.t.Helper()
	k.wants(driver.Done, between(at, at), by(driver.MarkStarted, o, f))
}

func withoutPlace(o driver.Owner) driver.Request {
	r := acquire(o)
	r.Join = false
	return r
}

// A lease begins at the latest time that it may be now.
func TestBeginsLate(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(0, 3), acquire("a"))
	assert.Equal(t, 10*time.Second, a.TTL)
	assert.Equal(t, driver.Fence(sec(0).UnixMicro()), a.Fence, "a clock that is ahead makes no fence of the future")
	assert.Equal(t, sec(13), k.Holders[0].End())

	k.unchanged(driver.Refused, between(1, 4), withoutPlace("b"))
	assert.Equal(t, 8*time.Second, k.granted(between(4, 5), acquire("a")).TTL, "a repeat is trusted for what is left at the latest time")
	assert.False(t, k.changed)
	assert.Equal(t, 4*time.Second, k.granted(between(4, 5), driver.Request{Kind: driver.Acquire, Owner: "a", TTL: 4 * time.Second}).TTL, "and for no longer than it asks")

	assert.Equal(t, 10*time.Second, k.granted(between(7, 8), by(driver.Renew, "a", a.Fence)).TTL)
	assert.Equal(t, sec(18), k.Holders[0].End())
	shorter := by(driver.Renew, "a", a.Fence)
	shorter.TTL = time.Second
	assert.Equal(t, 10*time.Second, k.granted(between(9, 9), shorter).TTL)
	assert.Equal(t, sec(19), k.Holders[0].End())

	k.wants(driver.Done, between(11, 12), by(driver.Complete, "a", a.Fence))
	assert.Equal(t, sec(22), k.Closed.End())
	k.unchanged(driver.Refused, between(11, 13), withoutPlace("b"))
}

// Others' leases, and all that is closed, end when it is their end at the earliest time that it may be.
func TestEndsEarly(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	b := acquire("b")
	b.Join = false
	refused := k.wants(driver.Refused, between(9.9, 12), b)
	assert.Equal(t, driver.Status{
		State: driver.Held, Fence: a.Fence, Holder: "holder a", Remaining: 100 * time.Millisecond,
		Holders: []driver.Holder{{Fence: a.Fence, MaxHolders: 1, Text: "holder a", Remaining: 100 * time.Millisecond, State: driver.Held}},
	}, refused.Status)
	assert.Equal(t, rules.OnAnything, k.basis)
	k.wants(driver.Holding, between(9.9, 12), by(driver.Leave, "a", 0))
	again := k.granted(between(9.9, 12), by(driver.Renew, "a", a.Fence))
	assert.Equal(t, rules.OnAnything, k.basis, "a write that nobody wrote before")
	assert.Equal(t, 10*time.Second, again.TTL)
	k.wants(driver.Lost, between(22, 22), by(driver.Renew, "a", a.Fence))
	assert.Equal(t, rules.OnStamp, k.basis)
	k.wants(driver.Lost, between(22, 22), by(driver.MarkStarted, "a", a.Fence))
	k.wants(driver.Lost, between(22, 22), driver.Request{Kind: driver.Revoke, Fence: a.Fence})
	k.wants(driver.Lost, between(22, 22), acquire("a"))
	next := k.granted(between(22, 30), b)
	assert.Equal(t, rules.OnStamp, k.basis)
	assert.Equal(t, []rules.Ended{{Owner: "a", Fence: a.Fence, How: rules.Expired}}, k.Ended)

	k.wants(driver.Done, between(31, 31), driver.Request{Kind: driver.Complete, Owner: "b", Fence: next.Fence, TTL: 4 * time.Second, Result: []byte("r")})
	refused = k.wants(driver.Refused, between(34.5, 36), acquire("c"))
	assert.Equal(t, driver.Status{State: driver.Completed, Fence: next.Fence, Holder: "holder b", Remaining: 500 * time.Millisecond, Result: []byte("r")}, refused.Status)
	assert.Empty(t, k.Queue)
	k.granted(between(35, 36), acquire("c"))
}

// A revocation says for how long the old holder may be at work: until the end at the earliest time.
func TestRevoke(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(1, 1), acquire("b"))
	revoke := driver.Request{Kind: driver.Revoke, Fence: a.Fence, Holder: "operator"}
	answer := k.wants(driver.Done, between(2, 3), revoke)
	assert.Equal(t, rules.OnFreshRead, k.basis)
	assert.Equal(t, driver.Revoked, answer.Status.State)
	assert.Equal(t, "operator", answer.Status.Holder)
	assert.Equal(t, 8*time.Second, answer.Status.Remaining)
	revoke.Holder, revoke.AtOnce = "another", true
	answer = k.wants(driver.Done, between(4, 5), revoke)
	assert.Equal(t, driver.Status{
		State: driver.Reserved, Fence: a.Fence + 4_000_000, Holder: "operator", Remaining: 6 * time.Second,
		Holders: []driver.Holder{{Fence: a.Fence + 4_000_000, MaxHolders: 1, Remaining: 3 * time.Second, State: driver.Reserved}},
	}, answer.Status, "it was handed over")
	assert.Equal(t, []driver.Owner{"b"}, answer.HandedOver)
	again := k.wants(driver.Done, between(5, 5), revoke)
	assert.Equal(t, rules.OnFreshRead, k.basis)
	assert.False(t, k.changed)
	assert.Equal(t, driver.Reserved, again.Status.State)
	k.wants(driver.Lost, between(5, 5), driver.Request{Kind: driver.Revoke, Fence: a.Fence})
	assert.Equal(t, rules.OnFreshRead, k.basis)
}

// A state of the future begins now, if the time is certain.
func TestClockThatWasSetBack(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(100, 100), acquire("a"))
	k.wants(driver.Refused, guess(0), acquire("b"))
	assert.Equal(t, sec(110), k.Holders[0].End(), "a guess does not know")
	k.unchanged(driver.Done, between(0, 1), driver.Request{Kind: driver.Inspect})
	assert.Equal(t, 10*time.Second, k.Wait(k.State, rules.At(sec(0)), "b"))
	k.wants(driver.Refused, between(0, 1), acquire("c"))
	assert.Equal(t, sec(11), k.Holders[0].End())
	k.wants(driver.Done, between(100, 100), by(driver.Complete, "a", a.Fence))
	k.wants(driver.Refused, between(0, 2), acquire("c"))
	assert.True(t, k.changed)
	assert.Equal(t, sec(12), k.Closed.End())
	k.wants(driver.Refused, between(3, 3), acquire("c"))
	assert.False(t, k.changed)
	k.granted(between(12, 12), acquire("c"))
	assert.Equal(t, a.Fence+1, k.LastFence, "the fence grows")
	assert.Zero(t, k.Closed)
}

// A clock may have another time for new fences.
func TestTimeOfFences(t *testing.T) {
	k, c := newKey(t), between(0, 0)
	c.Fences = sec(5)
	assert.Equal(t, driver.Fence(sec(5).UnixMicro()), k.granted(c, acquire("a")).Fence)
}

// What an answer rests on.
func TestBasis(t *testing.T) {
	fence := driver.Fence(0)
	held := func(k *key) { fence = k.granted(guess(0), acquire("a")).Fence }
	waits := func(k *key) {
		held(k)
		k.wants(driver.Refused, guess(0), acquire("b"))
	}
	twoWait := func(k *key) {
		waits(k)
		k.wants(driver.Refused, guess(0), acquire("c"))
	}
	started := func(k *key) {
		held(k)
		k.wants(driver.Done, guess(0), by(driver.MarkStarted, "a", fence))
	}
	handedOver := func(k *key) {
		waits(k)
		k.wants(driver.Done, guess(0), by(driver.Release, "a", fence))
		fence = k.LastFence
	}
	released := func(k *key) {
		held(k)
		k.wants(driver.Done, guess(0), by(driver.Release, "a", fence))
	}
	completed := func(k *key) {
		held(k)
		k.wants(driver.Done, guess(0), by(driver.Complete, "a", fence))
	}
	revoked := func(k *key) {
		held(k)
		k.wants(driver.Done, guess(0), driver.Request{Kind: driver.Revoke, Fence: fence})
	}
	free := func(*key) {}
	two := acquire("b")
	two.MaxHolders = 2
	heldByTwo := func(k *key) {
		a := acquire("a")
		a.MaxHolders = 2
		k.granted(guess(0), a)
	}
	placeWithRoom := func(k *key) { // damaged
		heldByTwo(k)
		k.Queue = []rules.Waiter{{Owner: "c", MaxHolders: 2}}
	}
	kind := func(k driver.Kind, o driver.Owner) driver.Request {
		return driver.Request{Kind: k, Owner: o, TTL: 10 * time.Second}
	}
	for _, c := range []struct {
		what  string
		state func(*key)
		at    float64
		r     driver.Request // with the fence of the last grant if it needs one
		want  rules.Basis
	}{
		{"a new key", free, 1, acquire("a"), rules.OnAnything},
		{"a released key", released, 1, acquire("b"), rules.OnAnything},
		{"an owner that has ended", released, 1, acquire("a"), rules.OnAnything},
		{"an owner whose lease was revoked", revoked, 1, acquire("a"), rules.OnAnything},
		{"a held key", held, 1, acquire("b"), rules.OnAnything},
		{"a repeat", held, 1, acquire("a"), rules.OnStamp},
		{"a repeat after the end", held, 11, acquire("a"), rules.OnStamp},
		{"a takeover", held, 11, acquire("b"), rules.OnStamp},
		{"room beside a dead holder", held, 11, two, rules.OnStamp},
		{"room beside a dead holder that leaves room", heldByTwo, 11, two, rules.OnStamp},
		{"room that another has a place for", placeWithRoom, 1, two, rules.OnAnything},
		{"room beside a holder", heldByTwo, 1, two, rules.OnAnything},
		{"a completed key", completed, 1, acquire("b"), rules.OnAnything},
		{"a key that was completed", completed, 11, acquire("b"), rules.OnStamp},
		{"a key in doubt", started, 11, acquire("b"), rules.OnStamp},
		{"a started key", started, 1, acquire("b"), rules.OnAnything},
		{"an extension", handedOver, 1, acquire("b"), rules.OnAnything},
		{"a hand-over that has lapsed", handedOver, 3, acquire("b"), rules.OnStamp},
		{"a renewal", held, 1, kind(driver.Renew, "a"), rules.OnAnything},
		{"a renewal of a hand-over", handedOver, 1, kind(driver.Renew, "b"), rules.OnAnything},
		{"a renewal after the end", held, 11, kind(driver.Renew, "a"), rules.OnStamp},
		{"a renewal by another", held, 1, kind(driver.Renew, "x"), rules.OnFreshRead},
		{"a release", held, 1, kind(driver.Release, "a"), rules.OnAnything},
		{"a release to a waiter", waits, 1, kind(driver.Release, "a"), rules.OnAnything},
		{"a release again", released, 1, kind(driver.Release, "a"), rules.OnAnything},
		{"a release by another", held, 1, kind(driver.Release, "x"), rules.OnFreshRead},
		{"an abandon", held, 1, kind(driver.Abandon, "a"), rules.OnAnything},
		{"an abandon of nothing", free, 1, kind(driver.Abandon, "a"), rules.OnAnything},
		{"a leave by the holder", held, 1, kind(driver.Leave, "a"), rules.OnFreshRead},
		{"a leave after the end", held, 11, kind(driver.Leave, "a"), rules.OnStamp},
		{"a leave", waits, 1, kind(driver.Leave, "b"), rules.OnAnything},
		{"a leave of nothing", held, 1, kind(driver.Leave, "b"), rules.OnFreshRead},
		{"a leave of nothing after the end", waits, 11, kind(driver.Leave, "x"), rules.OnFreshRead},
		{"a leave that hands over", twoWait, 11, kind(driver.Leave, "b"), rules.OnStamp},
		{"an abandon that hands over", twoWait, 11, kind(driver.Abandon, "b"), rules.OnStamp},
		{"a start", held, 1, kind(driver.MarkStarted, "a"), rules.OnItsWrite},
		{"a start after the end", held, 11, kind(driver.MarkStarted, "a"), rules.OnStamp},
		{"a start by another", held, 1, kind(driver.MarkStarted, "x"), rules.OnFreshRead},
		{"a completion", held, 1, kind(driver.Complete, "a"), rules.OnAnything},
		{"a completion again", completed, 1, kind(driver.Complete, "a"), rules.OnAnything},
		{"a completion by another", held, 1, kind(driver.Complete, "x"), rules.OnFreshRead},
		{"resolving a live lease", started, 1, kind(driver.Resolve, ""), rules.OnFreshRead},
		{"resolving", started, 11, kind(driver.Resolve, ""), rules.OnStamp},
		{"resolving what is over", completed, 11, kind(driver.Resolve, ""), rules.OnStamp},
		{"resolving what is closed", completed, 1, driver.Request{Kind: driver.Resolve, Effect: true}, rules.OnStamp},
		{"resolving what is held", held, 1, kind(driver.Resolve, ""), rules.OnFreshRead},
		{"resolving a lease that has ended", held, 11, kind(driver.Resolve, ""), rules.OnStamp},
		{"resolving what is free", released, 1, kind(driver.Resolve, ""), rules.OnFreshRead},
		{"resolving a new key", free, 1, kind(driver.Resolve, ""), rules.OnFreshRead},
		{"a revocation", held, 1, kind(driver.Revoke, ""), rules.OnFreshRead},
		{"a revocation after the end", held, 11, kind(driver.Revoke, ""), rules.OnStamp},
		{"a revocation at once, refused", started, 1, driver.Request{Kind: driver.Revoke, AtOnce: true}, rules.OnFreshRead},
		{"a revocation of nothing", free, 1, kind(driver.Revoke, ""), rules.OnFreshRead},
		{"an inspection", held, 1, kind(driver.Inspect, ""), rules.OnFreshRead},
	} {
		t.Run(c.what, func(t *testing.T) {
			k := newKey(t)
			c.state(k)
			if c.r.Kind != driver.Acquire {
				c.r.Fence = max(1, fence)
			}
			k.do(guess(c.at), c.r)
			assert.Equal(t, c.want, k.basis)
		})
	}
}

// Wait is how long an owner waits at most until a request has another answer.
func TestWait(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	for _, o := range []driver.Owner{"b", "c", "d", "none"} {
		k.wants(driver.Refused, between(1, 1), acquire(o))
	}
	require.Len(t, k.Queue, 3, "a full queue takes no more")
	wait := func(at float64, o driver.Owner) time.Duration { return k.Wait(k.State, between(at, at+1), o) }
	assert.Equal(t, 8*time.Second, wait(2, "b"))
	assert.Equal(t, 8*time.Second, wait(2, "d"), "its turn may come nearer")
	assert.Zero(t, wait(2, "none"))
	assert.Zero(t, wait(2, "a"))
	assert.Equal(t, time.Nanosecond, k.Wait(k.State, rules.At(sec(10).Add(-1)), "c"))
	assert.Zero(t, wait(10, "b"))
	assert.Equal(t, 2*time.Second, wait(10, "c"))
	assert.Equal(t, time.Second, wait(13, "d"))
	k.wants(driver.Done, between(2, 2), by(driver.MarkStarted, "a", a.Fence))
	assert.Zero(t, wait(11, "c"), "in doubt")
	k.wants(driver.Done, between(11, 11), by(driver.Complete, "a", a.Fence))
	k.Queue = []rules.Waiter{{Owner: "b", MaxHolders: 1}} // of a writer that does not know the rule
	assert.Equal(t, 9*time.Second, wait(12, "b"))
	assert.Zero(t, wait(12, "a"), "ended")
	k.State = rules.State{Queue: k.Queue}
	assert.Zero(t, wait(12, "b"), "nobody has had the key")
}

// An owner whose hand-over has lapsed waits like any other when it has asked again.
func TestWaitAfterALapsedHandOver(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	for _, o := range []driver.Owner{"b", "c"} {
		k.wants(driver.Refused, between(1, 1), acquire(o))
	}
	k.wants(driver.Done, between(2, 2), by(driver.Release, "a", a.Fence))
	assert.Zero(t, k.Wait(k.State, between(3, 3), "b"), "it was handed the key")
	assert.Equal(t, 2, k.wants(driver.Refused, between(5, 5), acquire("b")).Position)
	assert.Equal(t, time.Second, k.Wait(k.State, between(5, 5), "b"), "c has its turn until then")
	assert.Zero(t, k.Wait(k.State, between(3, 3), "b"), "by another clock it has the lease still")
	lapsed := k.State
	for _, r := range []driver.Request{acquire("b"), by(driver.Renew, "b", k.LastFence), by(driver.MarkStarted, "b", k.LastFence)} {
		k.State = lapsed
		k.do(between(3, 3), r)
		assert.Equal(t, []rules.Waiter{{Owner: "c", MaxHolders: 1}}, k.Queue, "%v: a holder has no place", r.Kind)
	}
	k.State = lapsed
	k.wants(driver.Done, between(5, 5), by(driver.Abandon, "b", 0))
	assert.Empty(t, k.Queue, "b has no place any more, and c was handed the key")
	k.State = lapsed
	k.granted(between(6, 6), acquire("b"))
}

// A holder that has a place is not handed the key again: a clock that was ahead saw its hand-over lapse, and it has asked
// again. It learns that it is the holder, and the next is one beside it.
func TestHolderIsNotHandedTheKeyAgain(t *testing.T) {
	for _, parked := range []time.Duration{0, driver.MaxParked} {
		k := newKey(t)
		k.Places = 16
		shares := func(o driver.Owner, parked time.Duration) driver.Request {
			r := acquire(o)
			r.MaxHolders, r.Parked = 2, parked
			return r
		}
		a := k.granted(between(0, 0), acquire("a"))
		k.wants(driver.Refused, between(0, 0), shares("b", parked))
		k.wants(driver.Refused, between(0, 0), acquire("w"))
		k.wants(driver.Done, between(1, 1), by(driver.Release, "a", a.Fence))
		b := k.Holders[0]
		end := b.End().Sub(now).Seconds()
		assert.Equal(t, 2, k.wants(driver.Refused, between(end, end), shares("b", parked)).Position)
		assert.Equal(t, 3, k.wants(driver.Refused, between(end, end), shares("c", 0)).Position)
		answer := k.wants(driver.Done, between(end-1, end-1), by(driver.Leave, "w", 0))
		assert.Equal(t, []driver.Owner{"b", "c"}, append(answer.Wake, answer.HandedOver...))
		assert.Equal(t, rules.OnStamp, k.basis)
		require.Len(t, k.Holders, 2)
		assert.Equal(t, b, k.Holders[0])
		assert.Equal(t, rules.Holder{Owner: "c", Fence: k.LastFence, Seat: 1, MaxHolders: 2, Since: sec(end - 1), TTL: driver.Turn, HandedOver: true}, k.Holders[1])
		assert.Empty(t, k.Queue)
	}
}

// Several may hold the key: a request counts with the smallest number among all who hold it.
func TestSeveralHolders(t *testing.T) {
	k := newKey(t)
	most := func(o driver.Owner, n int) driver.Request {
		r := acquire(o)
		r.MaxHolders = n
		return r
	}
	a := k.granted(between(0, 0), most("a", 3))
	b := k.granted(between(1, 1), most("b", 2))
	assert.Equal(t, []int{0, 1}, []int{a.Seat, b.Seat})
	k.wants(driver.Exclusive, between(1, 1), by(driver.MarkStarted, "a", a.Fence))
	k.wants(driver.Exclusive, between(1, 1), by(driver.Complete, "a", a.Fence))
	refused := k.wants(driver.Refused, between(2, 2), most("c", 3))
	assert.Equal(t, 1, refused.Position)
	assert.Equal(t, 8*time.Second, refused.Status.Remaining, "until there is room")
	assert.Equal(t, 8*time.Second, refused.Status.Holders[0].Remaining)
	assert.Equal(t, 1, refused.Status.Holders[1].Seat)
	assert.Equal(t, 1500*time.Millisecond, k.do(between(11.5, 11.5), driver.Request{Kind: driver.Inspect}).Status.Remaining, "for who wants to be alone")
	assert.Equal(t, 9*time.Second, k.do(between(2, 2), driver.Request{Kind: driver.Inspect}).Status.Remaining, "of the longest lease")
	assert.Equal(t, "holder b", k.do(between(2, 2), driver.Request{Kind: driver.Inspect}).Status.Holder, "the last one")
	k.wants(driver.Refused, between(2, 2), most("w", 1))
	k.wants(driver.Refused, between(2, 2), most("d", 3))
	done := k.wants(driver.Done, between(3, 3), by(driver.Release, "a", a.Fence))
	assert.Equal(t, []driver.Owner{"c"}, done.HandedOver, "there is room for one beside b")
	status := k.do(between(3, 3), driver.Request{Kind: driver.Inspect}).Status
	assert.Equal(t, driver.Held, status.State)
	assert.Equal(t, "holder b", status.Holder, "who was handed the key is not at work yet")
	done = k.wants(driver.Done, between(4, 4), by(driver.Release, "b", b.Fence))
	assert.Empty(t, done.HandedOver, "a writer waits for c, and no reader passes it")
	done = k.wants(driver.Done, between(4, 4), by(driver.Abandon, "c", 0))
	assert.Equal(t, []driver.Owner{"w"}, done.HandedOver)
	w := k.granted(between(4, 4), most("w", 1))
	assert.Equal(t, 0, w.Seat)
	e := k.wants(driver.Refused, between(4, 4), most("e", 3))
	assert.Equal(t, 2, e.Position)
	done = k.wants(driver.Done, between(5, 5), by(driver.Release, "w", w.Fence))
	assert.Equal(t, []driver.Owner{"d", "e"}, done.HandedOver, "both readers")
	assert.Equal(t, []int{0, 1}, []int{k.Holders[0].Seat, k.Holders[1].Seat})
	assert.Greater(t, k.Holders[1].Fence, k.Holders[0].Fence)

	k = newKey(t)
	k.granted(between(0, 0), most("a", 1))
	k.wants(driver.Refused, between(0, 0), most("b", 2))
	k.wants(driver.Refused, between(0, 0), most("c", 2))
	b = k.granted(between(11, 11), most("b", 2))
	assert.Equal(t, []driver.Owner{"c"}, b.HandedOver, "a grant that leaves room hands over, too")

	k = newKey(t)
	k.granted(between(0, 0), most("a", 1))
	k.wants(driver.Refused, between(0, 0), most("b", 2))
	parked := park("p")
	parked.MaxHolders = 2
	k.Places = 16
	k.wants(driver.Refused, between(0, 0), parked)
	assert.Equal(t, []driver.Owner{"p"}, k.granted(between(11, 11), most("b", 2)).Wake)

	k = newKey(t)
	k.granted(between(0, 0), most("a", 3))
	k.wants(driver.Refused, between(0, 0), most("w", 1))
	k.wants(driver.Refused, between(0, 0), most("c", 3))
	assert.Len(t, k.Queue, 2, "c waits behind the writer")

	k = newKey(t)
	a = k.granted(between(0, 0), most("a", 2))
	b = k.granted(between(1, 1), most("b", 2))
	k.granted(between(5, 5), by(driver.Renew, "a", a.Fence))
	refused = k.wants(driver.Refused, between(6, 6), most("c", 2))
	assert.Equal(t, 5*time.Second, refused.Status.Remaining, "b's lease ends first")
	assert.Equal(t, 9*time.Second, k.do(between(6, 6), driver.Request{Kind: driver.Inspect}).Status.Remaining, "of the longest lease")
	refused = k.wants(driver.Refused, between(11.5, 11.5), most("d", 2))
	assert.Equal(t, driver.Reserved, refused.Status.State, "a's lease leaves room, which is for c")
	assert.Empty(t, refused.Status.Holder)
	assert.Equal(t, 1500*time.Millisecond, refused.Status.Remaining)
}

// What a request is told that has to wait, at the end of the lease and around it.
func TestRefusedAroundTheEnd(t *testing.T) {
	k := newKey(t)
	k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(1, 1), acquire("b"))
	assert.Equal(t, 1, k.unchanged(driver.Refused, between(1, 1), acquire("b")).Position, "an owner has one place")
	for _, c := range []struct {
		at     time.Time
		state  driver.State
		holder string
		left   time.Duration
	}{
		{sec(10).Add(-1), driver.Held, "holder a", 1},
		{sec(10), driver.Reserved, "", 2 * time.Second},
		{sec(12).Add(-1), driver.Reserved, "", 1},
	} {
		a := k.wants(driver.Refused, rules.At(c.at), withoutPlace("c"))
		assert.Equal(t, driver.Status{State: c.state, Fence: k.LastFence, Holder: c.holder, Remaining: c.left, Waiting: 1, Holders: a.Status.Holders}, a.Status)
		assert.Equal(t, a.Status, k.do(rules.At(c.at), driver.Request{Kind: driver.Inspect}).Status)
	}
	assert.Equal(t, driver.Status{Fence: k.LastFence, Waiting: 1}, k.do(rules.At(sec(12)), driver.Request{Kind: driver.Inspect}).Status)
	k.granted(rules.At(sec(12)), withoutPlace("c"))
	assert.Empty(t, k.Queue, "b had its turn")
}

// A place that goes makes room only if it is the first, and only if nobody holds the key.
func TestPlaceThatGoes(t *testing.T) {
	for _, c := range []struct {
		owner driver.Owner
		at    time.Time
		want  []driver.Owner
	}{
		{"b", sec(10), []driver.Owner{"c"}},
		{"b", sec(10).Add(-1), nil},
		{"c", sec(10), nil},
		{"none", sec(10), nil},
	} {
		for _, kind := range []driver.Kind{driver.Leave, driver.Abandon} {
			k := newKey(t)
			k.granted(between(0, 0), acquire("a"))
			for _, o := range []driver.Owner{"b", "c", "d"} {
				k.wants(driver.Refused, between(1, 1), acquire(o))
			}
			a := k.wants(driver.Done, rules.At(c.at), by(kind, c.owner, 0))
			assert.Equal(t, c.want, a.HandedOver, "%v by %s", kind, c.owner)
			assert.Equal(t, kind == driver.Abandon || c.owner != "none", k.changed)
			for _, w := range k.Queue {
				assert.NotEqual(t, c.owner, w.Owner)
			}
			if kind == driver.Abandon {
				assert.Contains(t, k.Ended, rules.Ended{Owner: c.owner, How: rules.Released})
			}
		}
	}
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(0, 0), acquire("b"))
	k.wants(driver.Refused, between(0, 0), acquire("c"))
	assert.Equal(t, a.Fence, k.wants(driver.Holding, between(0, 0), by(driver.Leave, "a", 0)).Fence)
	k.start(0, "a", a.Fence)
	assert.Empty(t, k.wants(driver.Done, between(11, 11), by(driver.Leave, "b", 0)).HandedOver, "the key is in doubt")
}

// Only the owner of a lease with its fence does something with it.
func TestStrangers(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	for _, kind := range []driver.Kind{driver.Renew, driver.Release, driver.MarkStarted, driver.Complete} {
		k.unchanged(driver.Lost, between(1, 1), by(kind, "b", a.Fence))
		assert.NotEmpty(t, k.unchanged(driver.Lost, between(1, 1), by(kind, "a", a.Fence+1)).Why)
	}
	longer := by(driver.Renew, "a", a.Fence)
	longer.TTL = time.Minute
	assert.Equal(t, time.Minute, k.granted(between(1, 1), longer).TTL)
	k.wants(driver.Done, between(2, 2), driver.Request{Kind: driver.Revoke, Fence: a.Fence})
	for _, kind := range []driver.Kind{driver.Acquire, driver.Renew, driver.MarkStarted, driver.Complete} {
		k.unchanged(driver.Lost, between(2, 2), by(kind, "a", a.Fence))
	}
	k.unchanged(driver.Lost, between(2, 2), acquire("a"))
	k.unchanged(driver.Done, between(2, 2), by(driver.Leave, "a", 0))
	k.granted(between(70, 70), acquire("b"))
	assert.Equal(t, []rules.Ended{{Owner: "a", Fence: a.Fence, How: rules.Revoked}}, k.Ended)
}

// An owner that has ended is told how if it asks again.
func TestEndedOwnerAsks(t *testing.T) {
	for how, released := range map[rules.How]driver.Outcome{
		rules.Released: driver.Done, rules.Expired: driver.Lost, rules.Completed: driver.Done, rules.Resolved: driver.Done, rules.Revoked: driver.Lost,
	} {
		k := newKey(t)
		k.LastFence, k.Ended = 5, []rules.Ended{{Owner: "a", Fence: 5, How: how}}
		k.unchanged(driver.Lost, between(0, 0), acquire("a"))
		k.unchanged(released, between(0, 0), by(driver.Release, "a", 5))
		k.unchanged(driver.Done, between(0, 0), by(driver.Abandon, "a", 0))
		completed := driver.Lost
		if how == rules.Completed {
			completed = driver.Done
		}
		k.unchanged(completed, between(0, 0), by(driver.Complete, "a", 5))
	}
}

// A key remembers the last owners that have ended, and how.
func TestMarks(t *testing.T) {
	k := newKey(t)
	var want []rules.Ended
	for _, o := range []driver.Owner{"a", "b", "c", "d", "e", "f"} {
		a := k.granted(between(0, 0), acquire(o))
		k.wants(driver.Done, between(0, 0), by(driver.Release, o, a.Fence))
		want = append(want, rules.Ended{Owner: o, Fence: a.Fence, How: rules.Released})
	}
	assert.Equal(t, want[2:], k.Ended)
	g := k.granted(between(0, 0), acquire("g"))
	k.wants(driver.Done, between(0, 0), by(driver.Abandon, "g", 0))
	assert.Equal(t, rules.Ended{Owner: "g", Fence: g.Fence, How: rules.Released}, k.Ended[3])
}

// A release and an abandon end a revoked lease, unless its work has started.
func TestRevokedLeaseEnds(t *testing.T) {
	for _, kind := range []driver.Kind{driver.Release, driver.Abandon} {
		for _, revoked := range []bool{false, true} {
			for _, started := range []bool{false, true} {
				k := newKey(t)
				k.Places = 16
				a := k.granted(between(0, 0), acquire("a"))
				if started {
					k.start(0, "a", a.Fence)
				}
				if revoked {
					k.wants(driver.Done, between(1, 1), driver.Request{Kind: driver.Revoke, Fence: a.Fence})
				}
				two := acquire("b")
				two.MaxHolders = 2
				parked := park("p")
				parked.MaxHolders = 2
				k.wants(driver.Refused, between(1, 1), two)
				k.wants(driver.Refused, between(1, 1), parked)
				want, how := driver.Done, rules.Released
				if kind == driver.Release && revoked {
					want, how = driver.Lost, rules.Revoked
				}
				if revoked && started {
					k.unchanged(want, between(2, 2), by(kind, "a", a.Fence))
					continue
				}
				answer := k.wants(want, between(2, 2), by(kind, "a", a.Fence))
				assert.Equal(t, []driver.Owner{"b"}, answer.HandedOver)
				assert.Equal(t, []driver.Owner{"p"}, answer.Wake)
				assert.Equal(t, []rules.Ended{{Owner: "a", Fence: a.Fence, How: how}}, k.Ended)
			}
		}
	}
}

// Work that has started is not revoked at once. A hand-over that is revoked is one no more.
func TestRevokeStartedAndHandedOver(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(0, 0), acquire("b"))
	k.start(0, "a", a.Fence)
	refused := k.unchanged(driver.Refused, between(1, 1), driver.Request{Kind: driver.Revoke, Fence: a.Fence, AtOnce: true})
	assert.Equal(t, driver.Held, refused.Status.State)
	assert.True(t, refused.Status.Started)
	k.wants(driver.Done, between(1, 1), driver.Request{Kind: driver.Revoke, Fence: a.Fence})

	k = newKey(t)
	a = k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(0, 0), acquire("b"))
	k.wants(driver.Done, between(1, 1), by(driver.Release, "a", a.Fence))
	k.wants(driver.Done, between(2, 2), driver.Request{Kind: driver.Revoke, Fence: k.LastFence})
	assert.False(t, k.Holders[0].HandedOver)

	k = newKey(t)
	a = k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(0, 0), acquire("b"))
	k.wants(driver.Done, between(1, 1), by(driver.Release, "a", a.Fence))
	k.granted(between(2, 2), by(driver.Renew, "b", k.LastFence))
	assert.False(t, k.Holders[0].HandedOver, "a renewal extends it")
}

// A key in doubt is resolved once.
func TestResolve(t *testing.T) {
	doubt := func(t *testing.T) (*key, driver.Fence) {
		k := newKey(t)
		a := k.granted(between(0, 0), acquire("a"))
		k.wants(driver.Refused, between(0, 0), acquire("b"))
		k.start(0, "a", a.Fence)
		return k, a.Fence
	}
	resolve := func(f driver.Fence, effect bool) driver.Request {
		return driver.Request{Kind: driver.Resolve, Fence: f, Effect: effect, TTL: 10 * time.Second}
	}
	for _, effect := range []bool{false, true} {
		k, f := doubt(t)
		live := k.unchanged(driver.Refused, between(9, 9), resolve(f, effect))
		assert.Equal(t, driver.Held, live.Status.State)
		k.unchanged(driver.Lost, between(11, 11), resolve(f+1, effect))
		refused := k.unchanged(driver.Refused, between(11, 11), acquire("c"))
		assert.Equal(t, driver.Status{State: driver.InDoubt, Fence: f, Holder: "holder a", Waiting: 1, Started: true}, refused.Status)
		a := k.wants(driver.Done, between(11, 11), resolve(f, effect))
		if effect {
			assert.Empty(t, a.HandedOver)
			assert.Equal(t, []rules.Ended{{Owner: "a", Fence: f, How: rules.Released}}, k.Ended)
			assert.Equal(t, driver.Cooldown, k.do(between(12, 12), driver.Request{Kind: driver.Inspect}).Status.State)
			k.unchanged(driver.Lost, between(12, 12), resolve(f, false))
		} else {
			assert.Equal(t, []driver.Owner{"b"}, a.HandedOver)
			assert.Equal(t, []rules.Ended{{Owner: "a", Fence: f, How: rules.Resolved}}, k.Ended)
			k.unchanged(driver.Refused, between(12, 12), resolve(f, true))
		}
		k.unchanged(driver.Done, between(12, 12), resolve(f, effect))
	}

	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	assert.NotEmpty(t, k.unchanged(driver.Lost, between(11, 11), resolve(a.Fence, true)).Why, "its work has not started")
}

// What a resolution finds when nobody has a lease.
func TestResolveWhatIsOver(t *testing.T) {
	const fence = 5
	closed := rules.Closed{Since: sec(0), For: time.Minute}
	mark := func(how rules.How) []rules.Ended { return []rules.Ended{{Owner: "a", Fence: fence, How: how}} }
	for _, c := range []struct {
		what    string
		state   rules.State
		without driver.Outcome // effect
		with    driver.Outcome
	}{
		{"resolved", rules.State{LastFence: fence, Ended: mark(rules.Resolved)}, driver.Done, driver.Lost},
		{"resolved, and others had the key", rules.State{LastFence: 9, Ended: mark(rules.Resolved)}, driver.Done, driver.Lost},
		{"released", rules.State{LastFence: fence, Ended: mark(rules.Released)}, driver.Done, driver.Lost},
		{"released, and others had the key", rules.State{LastFence: 9, Ended: mark(rules.Released)}, driver.Done, driver.Lost},
		{"released, and others completed", rules.State{LastFence: 9, Ended: mark(rules.Released), Closed: closed}, driver.Done, driver.Lost},
		{"expired", rules.State{LastFence: 9, Ended: mark(rules.Expired)}, driver.Lost, driver.Lost},
		{"revoked", rules.State{LastFence: 9, Ended: mark(rules.Revoked)}, driver.Lost, driver.Lost},
		{"completed", rules.State{LastFence: fence, Ended: mark(rules.Completed), Closed: closed}, driver.Lost, driver.Done},
		{"resolved with effect", rules.State{LastFence: fence, Ended: mark(rules.Released), Closed: closed}, driver.Lost, driver.Done},
		{"nothing is known but the fence", rules.State{LastFence: fence}, driver.Done, driver.Lost},
		{"nothing is known", rules.State{LastFence: 9}, driver.Lost, driver.Lost},
		{"another was released", rules.State{LastFence: 9, Ended: []rules.Ended{{Owner: "b", Fence: 9}}}, driver.Lost, driver.Lost},
		{"others completed", rules.State{LastFence: 9, Closed: closed}, driver.Lost, driver.Lost},
	} {
		for effect, want := range map[bool]driver.Outcome{false: c.without, true: c.with} {
			t.Run(fmt.Sprint(c.what, ", effect ", effect), func(t *testing.T) {
				k := newKey(t)
				k.State = c.state
				k.unchanged(want, between(1, 1), driver.Request{Kind: driver.Resolve, Fence: fence, Effect: effect, TTL: time.Minute})
			})
		}
	}
}

// A key without a result is in its cooldown. The caller may use the memory of the result again.
func TestResult(t *testing.T) {
	for result, want := range map[string]driver.State{"": driver.Cooldown, "r": driver.Completed} {
		k := newKey(t)
		r := by(driver.Complete, "a", k.granted(between(0, 0), acquire("a")).Fence)
		r.Result = []byte(result)
		k.wants(driver.Done, between(1, 1), r)
		status := k.do(between(1, 1), driver.Request{Kind: driver.Inspect}).Status
		assert.Equal(t, want, status.State)
		copy(r.Result, "x")
		assert.Equal(t, result, string(k.Closed.Result))
	}
}

// Two decisions on one state do not see each other's slices.
func TestDecisionsShareNoMemory(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(0, 0), acquire("b"))
	k.Queue = append(make([]rules.Waiter, 0, 8), k.Queue...)
	k.Ended = append(make([]rules.Ended, 0, 8), k.Ended...)
	c, _, _, _ := k.Decide(k.State, between(0, 0), acquire("c"))
	k.Decide(k.State, between(0, 0), acquire("d"))
	assert.Equal(t, driver.Owner("c"), c.Queue[1].Owner)
	released, _, _, _ := k.Decide(k.State, between(0, 0), by(driver.Release, "a", a.Fence))
	k.Decide(k.State, between(0, 0), by(driver.Abandon, "b", 0))
	assert.Equal(t, driver.Owner("a"), released.Ended[0].Owner)
}

// An extension names the fence of the hand-over.
func TestExtension(t *testing.T) {
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(0, 0), acquire("b"))
	k.wants(driver.Refused, between(0, 0), acquire("c"))
	k.wants(driver.Done, between(1, 2), by(driver.Release, "a", a.Fence))
	require.True(t, k.Holders[0].HandedOver)
	assert.Equal(t, sec(4), k.Holders[0].End(), "a turn from the latest time on")
	extend := acquire("b")
	extend.Fence = k.LastFence + 1
	k.wants(driver.Lost, between(2, 2), extend)
	assert.Equal(t, rules.OnFreshRead, k.basis)
	extend.Fence = k.LastFence
	extended := k.granted(between(2, 3), extend)
	assert.Equal(t, 10*time.Second, extended.TTL)
	assert.Equal(t, rules.Holder{Owner: "b", Fence: k.LastFence, MaxHolders: 1, Since: sec(3), TTL: 10 * time.Second, Text: "holder b"}, k.Holders[0])
	k.wants(driver.Done, between(3, 3), by(driver.Release, "b", extended.Fence))
	extend = acquire("c")
	extend.Fence = k.LastFence
	k.wants(driver.Lost, between(6, 6), extend)
	assert.Equal(t, rules.OnStamp, k.basis, "it has lapsed")
	again := k.granted(between(6, 6), acquire("c"))
	assert.Greater(t, again.Fence, extend.Fence, "the owner may ask again")
	k.wants(driver.Refused, between(6, 6), acquire("d"))
	k.wants(driver.Done, between(7, 7), by(driver.Release, "c", again.Fence))
	extend = acquire("d")
	extend.TTL = time.Second
	assert.Equal(t, time.Second, k.granted(between(7, 7), extend).TTL, "no more than it asks")
	assert.Equal(t, sec(9), k.Holders[0].End(), "but it gets no shorter")
	x := acquire("x")
	x.Fence = 5
	k.wants(driver.Lost, between(6, 6), x)
}

// A simulation by clocks that are off by up to a second, with several holders: who trusts a lease has
// it, and no more trust it than the smallest number among them allows. This rests on no mark: half of the keys
// remember one owner only.
func TestClocksThatAreOff(t *testing.T) {
	grants, handOvers := 0, 0
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 1))
		limits := [][]int{{1, 1, 1}, {1, 2, 2}, {2, 3, 64}}[seed%3]
		k := newKey(t)
		k.Marks = []int{4, 1}[seed%2]
		type trust struct {
			until time.Time
			fence driver.Fence
			most  int
		}
		trusts := map[driver.Owner]trust{}
		at, last := 0.0, driver.Fence(0)
		clock := func() rules.Clock { return between(at-random.Float64(), at+random.Float64()) }
		check := func(what string) {
			count, least := 0, 1<<30
			for o, tr := range trusts {
				if !tr.until.After(sec(at)) {
					continue
				}
				count, least = count+1, min(least, tr.most)
				has := false
				for _, h := range k.Holders {
					has = has || h.Owner == o && h.Fence == tr.fence && !h.End().Before(tr.until)
				}
				require.True(t, has, "seed %d: %s: %s trusts a lease that it does not have: %+v", seed, what, o, k.State)
			}
			require.LessOrEqual(t, count, least, "seed %d: %s: %+v", seed, what, k.State)
		}
		owners := 0
		for range 60 {
			at += random.Float64() * []float64{0, 0.2, 3}[random.IntN(3)]
			n := max(0, owners-random.IntN(6))
			owners = max(owners, n+1)
			o := driver.Owner(fmt.Sprint(n))
			tr := trusts[o]
			r := by([]driver.Kind{driver.Acquire, driver.Acquire, driver.Acquire, driver.Renew, driver.Release, driver.Abandon, driver.Leave}[random.IntN(7)], o, max(1, tr.fence))
			switch r.Kind {
			case driver.Acquire:
				r.Fence, r.MaxHolders, r.Join = 0, limits[n%3], true
				r.TTL = time.Second + time.Duration(random.Int64N(int64(4*time.Second)))
			case driver.Abandon, driver.Leave:
				r.Fence = 0
			}
			before := k.LastFence
			a := k.do(clock(), r)
			switch {
			case a.Outcome == driver.Granted:
				grants++
				trusts[o] = trust{sec(at).Add(a.TTL), a.Fence, limits[n%3]}
			case r.Kind == driver.Release || r.Kind == driver.Abandon || a.Outcome == driver.Lost:
				delete(trusts, o)
			}
			require.GreaterOrEqual(t, k.LastFence, before)
			for _, h := range k.Holders { // a waiter reads that it was handed the key. A later request may make what begins in the future begin earlier
				c := clock()
				if h.HandedOver && h.Fence > last {
					handOvers++
					n := 0
					_, err := fmt.Sscan(string(h.Owner), &n)
					require.NoError(t, err)
					trusts[h.Owner] = trust{sec(at).Add(min(driver.Turn, h.End().Sub(c.Late))), h.Fence, limits[n%3]}
				}
				last = max(last, h.Fence)
			}
			check(fmt.Sprint(r.Kind, " by ", o))
		}
	}
	t.Logf("%d grants, %d hand-overs", grants, handOvers)
	require.Greater(t, handOvers, 200)
}
