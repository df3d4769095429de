package rules_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// unchanged does the request, which changes nothing.
func (k *key) unchanged(want driver.Outcome, c rules.Clock, r driver.Request) driver.Answer {
	k.t.Helper()
	before := k.State
	a := k.wants(want, c, r)
	assert.Equal(k.t, before, k.State)
	assert.False(k.t, k.changed)
	return a
}

// handsOver does the request, which makes this owner the last holder.
func (k *key) handsOver(to driver.Owner, want driver.Outcome, c rules.Clock, r driver.Request) {
	k.t.Helper()
	assert.Equal(k.t, []driver.Owner{to}, k.wants(want, c, r).HandedOver)
	last := k.Holders[len(k.Holders)-1]
	assert.Equal(k.t, to, last.Owner)
	assert.True(k.t, last.HandedOver)
	assert.Negative(k.t, k.place(to))
}

func (k *key) place(o driver.Owner) int {
	for i, w := range k.Queue {
		if w.Owner == o {
			return i
		}
	}
	return -1
}

// withQueue is a key that a holds from 0 to 10, and for which b and c wait.
func withQueue(t *testing.T) (*key, driver.Fence) {
	k := newKey(t)
	a := k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(0, 0), acquire("b"))
	k.wants(driver.Refused, between(0, 0), acquire("c"))
	return k, a.Fence
}

func (k *key) start(at float64, o driver.Owner, f driver.Fence) {
	k.t.Helper()
	k.wants(driver.Done, between(at, at), by(driver.MarkStarted, o, f))
}

func (k *key) revoke(at float64, f driver.Fence) {
	k.t.Helper()
	k.wants(driver.Done, between(at, at), driver.Request{Kind: driver.Revoke, Fence: f, Holder: "operator"})
}

func TestRelease(t *testing.T) {
	k, a := withQueue(t)
	k.unchanged(driver.Lost, between(1, 1), by(driver.Release, "a", a+1))
	k.unchanged(driver.Lost, between(1, 1), by(driver.Release, "x", a))
	k.handsOver("b", driver.Done, between(1, 1), by(driver.Release, "a", a))
	k.unchanged(driver.Done, between(1, 1), by(driver.Release, "a", a))

	k, a = withQueue(t)
	k.handsOver("b", driver.Done, between(20, 20), by(driver.Release, "a", a)) // nobody was granted the key since

	k, a = withQueue(t)
	k.granted(between(12, 12), acquire("c"))
	k.unchanged(driver.Lost, between(12, 12), by(driver.Release, "a", a))

	k, a = withQueue(t)
	k.revoke(1, a)
	k.handsOver("b", driver.Lost, between(2, 2), by(driver.Release, "a", a)) // the owner is done
	assert.Equal(t, []rules.Ended{{Owner: "a", Fence: a, How: rules.Revoked}}, k.Ended)
	k.unchanged(driver.Lost, between(2, 2), by(driver.Release, "a", a))

	k, a = withQueue(t)
	k.start(1, "a", a)
	k.revoke(1, a)
	k.unchanged(driver.Lost, between(2, 2), by(driver.Release, "a", a))
}

func TestAbandon(t *testing.T) {
	k, a := withQueue(t)
	k.handsOver("b", driver.Done, between(1, 1), by(driver.Abandon, "a", 0))
	assert.Equal(t, []rules.Ended{{Owner: "a", Fence: a}}, k.Ended)
	k.unchanged(driver.Done, between(1, 1), by(driver.Abandon, "a", 0))

	k, _ = withQueue(t)
	k.wants(driver.Done, between(11, 11), by(driver.Abandon, "x", 0))
	assert.Equal(t, driver.Owner("a"), k.Holders[0].Owner, "nothing has made room: it hands over to nobody")
	k.handsOver("c", driver.Done, between(11, 11), by(driver.Abandon, "b", 0)) // the lease of a has ended
	k.unchanged(driver.Lost, between(11, 11), acquire("b"))

	k, _ = withQueue(t)
	assert.Empty(t, k.wants(driver.Done, between(11, 11), by(driver.Abandon, "c", 0)).HandedOver, "it was not the first")

	k, a = withQueue(t)
	k.revoke(1, a)
	k.handsOver("b", driver.Done, between(2, 2), by(driver.Abandon, "a", 0))

	k, a = withQueue(t)
	k.start(1, "a", a)
	k.handsOver("b", driver.Done, between(2, 2), by(driver.Abandon, "a", 0))

	k, a = withQueue(t)
	k.start(1, "a", a)
	k.revoke(1, a)
	k.unchanged(driver.Done, between(2, 2), by(driver.Abandon, "a", 0))
}

func TestLeave(t *testing.T) {
	k, a := withQueue(t)
	assert.Equal(t, a, k.unchanged(driver.Holding, between(1, 1), by(driver.Leave, "a", 0)).Fence)
	assert.Equal(t, 1, k.unchanged(driver.Refused, between(1, 1), acquire("b")).Position, "a repeat keeps its place")
	k.unchanged(driver.Done, between(1, 1), by(driver.Leave, "x", 0))
	k.wants(driver.Done, between(1, 1), by(driver.Leave, "b", 0))
	assert.Equal(t, []rules.Waiter{{Owner: "c", MaxHolders: 1}}, k.Queue)
	assert.Empty(t, k.Ended)
	assert.Equal(t, 2, k.wants(driver.Refused, between(1, 1), acquire("b")).Position, "it may ask again")
	k.unchanged(driver.Done, between(11, 11), by(driver.Leave, "a", 0))
	k.handsOver("b", driver.Done, between(11, 11), by(driver.Leave, "c", 0))

	k, a = withQueue(t)
	k.revoke(1, a)
	k.unchanged(driver.Done, between(1, 1), by(driver.Leave, "a", 0))
}

// An owner whose hand-over has lapsed takes the last place, and may leave, be granted or be handed the key again.
func TestLapsedHandOver(t *testing.T) {
	lapsed := func() (*key, driver.Fence) {
		k, a := withQueue(t)
		k.handsOver("b", driver.Done, between(1, 1), by(driver.Release, "a", a))
		fence := k.LastFence
		assert.Equal(t, 2, k.wants(driver.Refused, between(3, 3), acquire("b")).Position)
		return k, fence
	}
	k, _ := lapsed()
	assert.Empty(t, k.wants(driver.Done, between(4, 4), by(driver.Leave, "b", 0)).HandedOver, "it was not the first")
	assert.Equal(t, []rules.Waiter{{Owner: "c", MaxHolders: 1}}, k.Queue)
	k, fence := lapsed()
	assert.Greater(t, k.granted(between(5, 5), acquire("b")).Fence, fence)
	assert.Empty(t, k.Queue)
	k, fence = lapsed()
	k.handsOver("c", driver.Done, between(4, 4), by(driver.Release, "b", fence))
	assert.Negative(t, k.place("b"), "an owner that has ended has no place")
	k, fence = lapsed()
	k.unchanged(driver.Lost, between(4, 4), by(driver.Renew, "b", fence))
	k.granted(between(2, 2), by(driver.Renew, "b", fence)) // by a clock for which it has not lapsed
	assert.Negative(t, k.place("b"), "a holder has no place")
	k, fence = lapsed()
	k.start(2, "b", fence)
	assert.Negative(t, k.place("b"))
	k.unchanged(driver.Refused, between(4, 4), acquire("c")) // in doubt
	k.handsOver("c", driver.Done, between(4, 4), driver.Request{Kind: driver.Resolve, Fence: fence})
}

// A key whose lease has ended is kept for those who wait, until all turns have passed.
func TestInspectReserved(t *testing.T) {
	k, a := withQueue(t)
	for at, left := range map[float64]time.Duration{10: 4 * time.Second, 13: time.Second} {
		status := k.unchanged(driver.Done, between(at, at), driver.Request{Kind: driver.Inspect}).Status
		assert.Equal(t, driver.Status{State: driver.Reserved, Fence: a, Remaining: left, Waiting: 2}, status)
	}
	assert.Equal(t, driver.Free, k.unchanged(driver.Done, between(14, 14), driver.Request{Kind: driver.Inspect}).Status.State)
}

func TestComplete(t *testing.T) {
	k, a := withQueue(t)
	complete := func(o driver.Owner, f driver.Fence) driver.Request {
		r := by(driver.Complete, o, f)
		r.Result = driver.Secret("result")
		return r
	}
	k.unchanged(driver.Lost, between(1, 1), complete("a", a+1))
	k.unchanged(driver.Lost, between(1, 1), complete("b", a))
	k.wants(driver.Done, between(20, 21), complete("a", a)) // nobody was granted the key since
	assert.Equal(t, rules.State{
		LastFence: a, Ended: []rules.Ended{{Owner: "a", Fence: a, How: rules.Completed}},
		Closed: rules.Closed{Since: sec(21), For: 10 * time.Second, Result: driver.Secret("result"), Text: "holder a"},
	}, k.State)
	k.unchanged(driver.Done, between(22, 22), complete("a", a))
	k.unchanged(driver.Done, between(22, 22), by(driver.Release, "a", a))
	k.unchanged(driver.Lost, between(22, 22), acquire("a"))
	refused := k.unchanged(driver.Refused, between(22, 22), acquire("b"))
	assert.Zero(t, refused.Position)
	assert.Equal(t, driver.Completed, refused.Status.State)
	assert.Equal(t, driver.Secret("result"), refused.Status.Result)
	k.wants(driver.Done, between(22, 22), by(driver.Abandon, "b", 0))
	k.granted(between(31, 31), acquire("c"))
	assert.Zero(t, k.Closed)

	k, a = withQueue(t)
	k.revoke(1, a)
	k.unchanged(driver.Lost, between(1, 1), complete("a", a))

	k, a = withQueue(t)
	none := complete("a", a)
	none.Result = driver.Secret{}
	k.wants(driver.Done, between(1, 1), none)
	assert.Equal(t, driver.Cooldown, k.do(between(1, 1), driver.Request{Kind: driver.Inspect}).Status.State)
}

// Who joins a key that is closed, as a store that writes less than the whole state may let it, is
// told that the key is closed, and is the first when it opens.
func TestPlaceAtAClosedKey(t *testing.T) {
	k, a := withQueue(t)
	k.wants(driver.Done, between(1, 1), by(driver.Complete, "a", a))
	k.Queue = []rules.Waiter{{Owner: "b", MaxHolders: 1}}
	assert.Equal(t, driver.Cooldown, k.unchanged(driver.Refused, between(2, 2), acquire("b")).Status.State)
	assert.Equal(t, driver.Cooldown, k.unchanged(driver.Refused, between(2, 2), acquire("x")).Status.State)
	assert.Equal(t, 9*time.Second, k.Wait(k.State, between(2, 2), "b"))
	k.wants(driver.Done, between(3, 3), by(driver.Abandon, "x", 0))
	assert.Empty(t, k.Holders, "it hands over to nobody")
	assert.Equal(t, driver.Reserved, k.unchanged(driver.Refused, between(12, 12), withoutPlace("c")).Status.State)
	k.granted(between(12, 12), acquire("b"))
}

func withoutPlace(o driver.Owner) driver.Request {
	r := acquire(o)
	r.Join = false
	return r
}

func TestResolve(t *testing.T) {
	resolve := func(f driver.Fence, effect bool) driver.Request {
		return driver.Request{Kind: driver.Resolve, Fence: f, Effect: effect, TTL: 10 * time.Second, Result: driver.Secret("result")}
	}
	inDoubt := func() (*key, driver.Fence) {
		k, a := withQueue(t)
		k.start(1, "a", a)
		assert.Equal(t, driver.Held, k.unchanged(driver.Refused, between(2, 2), resolve(a, true)).Status.State)
		status := k.unchanged(driver.Refused, between(11, 11), acquire("b")).Status
		assert.Equal(t, driver.Status{State: driver.InDoubt, Fence: a, Holder: "holder a", Started: true, Waiting: 2}, status)
		k.unchanged(driver.Refused, between(11, 11), acquire("x"))
		k.unchanged(driver.Lost, between(11, 11), resolve(a+1, true))
		k.unchanged(driver.Lost, between(11, 11), resolve(a-1, false))
		return k, a
	}

	k, a := inDoubt()
	k.wants(driver.Done, between(12, 13), resolve(a, true))
	assert.Equal(t, rules.State{
		LastFence: a, Ended: []rules.Ended{{Owner: "a", Fence: a}},
		Closed: rules.Closed{Since: sec(13), For: 10 * time.Second, Result: driver.Secret("result"), Text: "holder a"},
	}, k.State)
	k.unchanged(driver.Done, between(14, 14), resolve(a, true))
	k.unchanged(driver.Lost, between(14, 14), resolve(a, false))
	k.unchanged(driver.Lost, between(14, 14), resolve(a-1, true))
	k.unchanged(driver.Lost, between(14, 14), resolve(a-1, false))
	k.unchanged(driver.Lost, between(14, 14), by(driver.Complete, "a", a))
	k.unchanged(driver.Done, between(23, 23), resolve(a, false))
	k.unchanged(driver.Lost, between(23, 23), resolve(a, true))

	k, a = inDoubt()
	k.handsOver("b", driver.Done, between(12, 12), resolve(a, false))
	assert.Equal(t, []rules.Ended{{Owner: "a", Fence: a, How: rules.Resolved}}, k.Ended)
	k.unchanged(driver.Done, between(12, 12), resolve(a, false))
	assert.Equal(t, driver.Reserved, k.unchanged(driver.Refused, between(12, 12), resolve(a, true)).Status.State)
	k.unchanged(driver.Lost, between(15, 15), resolve(a, true))
	b := k.LastFence
	k.unchanged(driver.Lost, between(15, 15), resolve(b, true))
	k.unchanged(driver.Lost, between(15, 15), resolve(b, false))

	k, a = inDoubt() // its owner comes back
	k.handsOver("b", driver.Done, between(12, 12), by(driver.Release, "a", a))
	k.unchanged(driver.Done, between(12, 12), resolve(a, false))

	k = newKey(t) // without a mark
	a = k.granted(between(0, 0), acquire("a")).Fence
	k.wants(driver.Done, between(1, 1), by(driver.Complete, "a", a))
	k.unchanged(driver.Done, between(11, 11), resolve(a, false))
	k.unchanged(driver.Lost, between(11, 11), resolve(a-1, false))
}

func TestRevokeAtOnce(t *testing.T) {
	atOnce := func(f driver.Fence) driver.Request {
		return driver.Request{Kind: driver.Revoke, Fence: f, Holder: "operator", AtOnce: true}
	}
	k, a := withQueue(t)
	k.unchanged(driver.Lost, between(1, 1), atOnce(a+1))
	k.start(1, "a", a)
	assert.Equal(t, driver.Held, k.unchanged(driver.Refused, between(2, 2), atOnce(a)).Status.State)
	k.revoke(2, a)
	assert.Equal(t, driver.Revoked, k.unchanged(driver.Refused, between(2, 2), atOnce(a)).Status.State)
	k.unchanged(driver.Lost, between(3, 3), by(driver.Renew, "a", a))
	k.unchanged(driver.Lost, between(3, 3), acquire("a"))
	assert.Equal(t, driver.InDoubt, k.unchanged(driver.Refused, between(11, 11), acquire("b")).Status.State)
	k.handsOver("b", driver.Done, between(11, 11), driver.Request{Kind: driver.Resolve, Fence: a})

	k, a = withQueue(t)
	k.handsOver("b", driver.Done, between(1, 1), by(driver.Release, "a", a))
	b := k.LastFence
	k.revoke(2, b)
	k.unchanged(driver.Lost, between(2, 2), acquire("b"))
	assert.Equal(t, driver.Revoked, k.do(between(2, 2), driver.Request{Kind: driver.Inspect}).Status.State)
	k.granted(between(3, 3), acquire("c"))
	assert.Equal(t, []rules.Ended{{Owner: "a", Fence: a}, {Owner: "b", Fence: b, How: rules.Revoked}}, k.Ended)
}
