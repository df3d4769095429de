package rules_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
)

// What TestInduction does not see: what an answer says of the key, how long one waits, and memory. An example of each rule is a case of
// storetest, lock/..., which memstore runs.

// now is the time of the first request of a key; sec is a time later than that by so many seconds.
var now = time.Unix(1_800_000_000, 0)

func sec(s float64) time.Time { return now.Add(time.Duration(s * float64(time.Second))) }

// at is a clock that knows the time.
func at(s float64) rules.Clock { return rules.At(sec(s)) }

// between is a clock that knows that the time is at or after the first and at or before the second.
func between(early, late float64) rules.Clock {
	return rules.Clock{Early: sec(early), Late: sec(late), Sure: true}
}

// key is a state and the decisions about it.
type key struct {
	t *testing.T
	rules.State
	rules.Book
	changed bool
	basis   rules.Basis
}

func newKey(t *testing.T) *key { return &key{t: t, Book: rules.Book{Places: 16, Marks: 4}} }

func (k *key) do(c rules.Clock, r driver.Request) (a driver.Answer) {
	before, text := k.State, fmt.Sprint(k.State)
	k.State, k.changed, a, k.basis = k.Decide(k.State, c, r)
	require.Equal(k.t, text, fmt.Sprint(before), "a slice is changed in place")
	if !k.changed {
		require.Equal(k.t, before, k.State)
	}
	return a
}

// wants does the request and looks at the outcome.
func (k *key) wants(want driver.Outcome, c rules.Clock, r driver.Request) driver.Answer {
	k.t.Helper()
	a := k.do(c, r)
	require.Equal(k.t, want, a.Outcome, "%+v", a)
	return a
}

func (k *key) granted(c rules.Clock, r driver.Request) driver.Answer {
	k.t.Helper()
	return k.wants(driver.Granted, c, r)
}

func (k *key) inspect(s float64) driver.Status {
	return k.do(at(s), driver.Request{Kind: driver.Inspect}).Status
}

// queue are the owners that wait.
func (k *key) queue() (owners []driver.Owner) {
	for _, w := range k.Queue {
		owners = append(owners, w.Owner)
	}
	return owners
}

func acquire(o driver.Owner) driver.Request {
	return driver.Request{Kind: driver.Acquire, Owner: o, TTL: 10 * time.Second, MaxHolders: 1, Holder: "holder " + string(o), Join: true}
}

// sharing is for so many holders.
func sharing(o driver.Owner, most int) driver.Request {
	r := acquire(o)
	r.MaxHolders = most
	return r
}

func park(o driver.Owner) driver.Request {
	r := acquire(o)
	r.Parked = driver.MaxParkedTurn
	return r
}

func by(kind driver.Kind, o driver.Owner, f driver.Fence) driver.Request {
	return driver.Request{Kind: kind, Owner: o, Fence: f, TTL: 10 * time.Second}
}

func TestClocks(t *testing.T) {
	k, c := newKey(t), between(0, 3)
	c.Fences = sec(1)
	a := k.granted(c, acquire("a"))
	assert.Equal(t, driver.Fence(sec(1).UnixMicro()), a.Fence)
	assert.Equal(t, sec(13), k.Holders[0].End(), "it begins at the latest time")
	assert.Equal(t, 8*time.Second, k.granted(between(4, 5), acquire("a")).TTL, "it is trusted for what is left at the latest time")
	k.wants(driver.Refused, between(12.9, 14), acquire("b")) // at the earliest time it is not over
	k.granted(between(12.9, 14), by(driver.Renew, "a", a.Fence))
	assert.Equal(t, sec(24), k.Holders[0].End())
	k.wants(driver.Refused, rules.Clock{Early: sec(0), Late: sec(0)}, acquire("b"))
	assert.Equal(t, sec(24), k.Holders[0].End(), "a guess does not know")
	k.wants(driver.Refused, between(0, 1), acquire("c"))
	assert.Equal(t, sec(11), k.Holders[0].End(), "a clock was set back, so it begins now")
}

// What a refusal and an Inspect say around the end of a lease, and of several leases.
func TestStatus(t *testing.T) {
	k := newKey(t)
	a := k.granted(at(0), acquire("a"))
	k.wants(driver.Refused, at(1), acquire("b"))
	for _, c := range []struct {
		at     time.Time
		state  driver.State
		holder string
		left   time.Duration
	}{{sec(10).Add(-1), driver.Held, "holder a", 1}, {sec(10), driver.Reserved, "", 2 * time.Second}, {sec(12).Add(-1), driver.Reserved, "", 1}} {
		r := acquire("c")
		r.Join = false
		got := k.wants(driver.Refused, rules.At(c.at), r).Status
		assert.Equal(t, driver.Status{State: c.state, Fence: a.Fence, Holder: c.holder, Remaining: c.left, Waiting: 1, OldestWait: c.at.Sub(sec(1)), Holders: got.Holders}, got)
		got.Queue = []driver.Place{{Waited: c.at.Sub(sec(1))}}
		assert.Equal(t, got, k.do(rules.At(c.at), driver.Request{Kind: driver.Inspect}).Status)
	}
	assert.Equal(t, driver.Status{Fence: a.Fence, Waiting: 1, OldestWait: 11 * time.Second, Queue: []driver.Place{{Waited: 11 * time.Second}}}, k.inspect(12))

	k = newKey(t)
	a = k.granted(at(0), sharing("a", 2))
	b := k.granted(at(1), sharing("b", 2))
	k.granted(at(5), by(driver.Renew, "a", a.Fence))
	refused := k.wants(driver.Refused, at(6), sharing("c", 2)).Status
	assert.Equal(t, 5*time.Second, refused.Remaining, "b's lease ends first")
	assert.Equal(t, []driver.LiveLease{
		{Fence: a.Fence, MaxHolders: 2, Text: "holder a", Remaining: 9 * time.Second, State: driver.Held},
		{Fence: b.Fence, Seat: 1, MaxHolders: 2, Text: "holder b", Remaining: 5 * time.Second, State: driver.Held},
	}, refused.Holders)
	assert.Equal(t, 9*time.Second, k.inspect(6).Remaining, "of the longest lease")
	assert.Equal(t, "holder b", k.inspect(6).Holder, "the last one")
	refused = k.wants(driver.Refused, at(11.5), sharing("d", 2)).Status
	assert.Equal(t, []any{driver.Reserved, "", 1500 * time.Millisecond}, []any{refused.State, refused.Holder, refused.Remaining}, "the room is for c")
	k.wants(driver.Done, at(12), by(driver.Release, "b", b.Fence))
	assert.Equal(t, []any{driver.Held, "holder a"}, []any{k.inspect(12).State, k.inspect(12).Holder}, "who was handed the key is not at work yet")
}

// What is said of a key in doubt, of a closed one, and after a revocation.
func TestStatusOfWhatHasEnded(t *testing.T) {
	k := newKey(t)
	a := k.granted(at(0), acquire("a"))
	k.wants(driver.Refused, at(0), acquire("b"))
	k.wants(driver.Done, at(0), by(driver.MarkStarted, "a", a.Fence))
	assert.True(t, k.wants(driver.Refused, at(1), driver.Request{Kind: driver.Revoke, Fence: a.Fence, AtOnce: true}).Status.Started)
	assert.Equal(t, driver.Status{State: driver.InDoubt, Fence: a.Fence, Holder: "holder a", Waiting: 1, OldestWait: 11 * time.Second, Started: true}, k.wants(driver.Refused, at(11), acquire("b")).Status)

	for result, want := range map[string]driver.State{"": driver.Cooldown, "r": driver.Completed} {
		k = newKey(t)
		r := by(driver.Complete, "a", k.granted(at(0), acquire("a")).Fence)
		r.Result = []byte(result)
		k.wants(driver.Done, at(1), r)
		copy(r.Result, "x") // the caller may use its memory again
		assert.Equal(t, driver.Status{State: want, Fence: r.Fence, Holder: "holder a", Remaining: time.Second, Result: k.Closed.Result}, k.wants(driver.Refused, at(10), acquire("b")).Status)
		assert.Equal(t, result, string(k.Closed.Result))
	}

	k = newKey(t)
	a = k.granted(at(0), acquire("a"))
	k.wants(driver.Refused, at(1), acquire("b"))
	revoke := driver.Request{Kind: driver.Revoke, Fence: a.Fence, Holder: "operator"}
	status := k.wants(driver.Done, at(2), revoke).Status
	assert.Equal(t, []any{driver.Revoked, "operator", 8 * time.Second}, []any{status.State, status.Holder, status.Remaining})
	revoke.Holder, revoke.AtOnce = "another", true
	status = k.wants(driver.Done, at(4), revoke).Status
	assert.Equal(t, []any{driver.Reserved, "operator", 6 * time.Second}, []any{status.State, status.Holder, status.Remaining}, "those of the lease that was revoked")
	assert.Equal(t, driver.Reserved, k.wants(driver.Done, at(5), revoke).Status.State, "again")
}

func TestWait(t *testing.T) {
	k := newKey(t)
	k.granted(at(0), acquire("a"))
	for _, o := range []driver.Owner{"b", "c", "d"} {
		k.wants(driver.Refused, at(1), acquire(o))
	}
	for _, o := range []driver.Owner{"a", "another"} {
		assert.Zero(t, k.Wait(k.State, at(1), o), "it has no place")
	}
	assert.Equal(t, 9*time.Second, k.Wait(k.State, at(1), "d"), "its turn may come nearer until then")
	assert.Equal(t, 4*time.Second, k.Wait(k.State, at(10), "d"))
	for _, o := range []driver.Owner{"p1", "p2"} {
		k.wants(driver.Refused, at(1), park(o))
	}
	k.wants(driver.Refused, at(1), acquire("last"))
	assert.Equal(t, driver.MaxDelay, k.Wait(k.State, at(10), "last"), "all turns together are more")
}

// Until the time that Wait says, an Acquire of a waiter is refused. The first in the queue is granted the key
// then, and the others if it is now.
func TestWaitIsTheTurn(t *testing.T) {
	c := &chance{Rand: rand.New(rand.NewPCG(1, 3)), now: now, owners: people[:6], holders: 3, places: 5, long: 8 * time.Second}
	book := rules.Book{Places: 8, Marks: 4}
	waits, grants := 0, 0
	for range 20_000 {
		s := c.state()
		inFuture := func(h rules.Holder) bool { return h.Since.After(now) } // it begins when somebody looks
		if s.Broken() != "" || slices.ContainsFunc(s.Holders, inFuture) {
			continue
		}
		for i, w := range s.Queue {
			outcome := func(at time.Time) (driver.Outcome, driver.State) {
				_, _, a, _ := book.Decide(s, rules.At(at), driver.Request{Kind: driver.Acquire, Owner: w.Owner, TTL: time.Second, MaxHolders: w.MaxHolders})
				return a.Outcome, a.Status.State
			}
			left := book.Wait(s, rules.At(now), w.Owner)
			then, state := outcome(now.Add(max(0, left)))
			if state == driver.InDoubt {
				continue
			}
			if left > 0 {
				waits++
				before, _ := outcome(now.Add(left - 1))
				require.Equal(t, driver.Refused, before, "%v before its turn: %s", w, show(s, now))
			}
			if left <= 0 || i == 0 {
				grants++
				require.Equal(t, driver.Granted, then, "%v at its turn, after %v: %s", w, left, show(s, now))
			}
		}
	}
	t.Logf("%d waits, %d grants", waits, grants)
	require.Greater(t, min(waits, grants), 500)
}

// Two decisions on one state do not see each other's slices.
func TestDecisionsShareNoMemory(t *testing.T) {
	k := newKey(t)
	a := k.granted(at(0), acquire("a"))
	k.wants(driver.Refused, at(0), acquire("b"))
	k.Queue = append(make([]rules.Waiter, 0, 8), k.Queue...)
	k.Ended = append(make([]rules.Ended, 0, 8), k.Ended...)
	c, _, _, _ := k.Decide(k.State, at(0), acquire("c"))
	k.Decide(k.State, at(0), acquire("d"))
	assert.Equal(t, driver.Owner("c"), c.Queue[1].Owner)
	released, _, _, _ := k.Decide(k.State, at(0), by(driver.Release, "a", a.Fence))
	k.Decide(k.State, at(0), by(driver.Abandon, "b", 0))
	assert.Equal(t, driver.Owner("a"), released.Ended[0].Owner)
}
