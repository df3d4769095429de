package storetest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// insideHarness is that of a store without a mistake, whose calls are two requests if the reply to the first is lost.
func insideHarness(t *testing.T) Harness {
	d := newWrong("")
	h := d.harness()
	h.Inside = func(n int, lost bool, do func()) {
		d.locked(func() { d.left, d.inside, d.twice = n, do, lost })
	}
	return h
}

// A revocation hands the key over to two, and its reply is lost. The first of them abandons before the revocation
// comes again, so that its answer names the second alone. Or the owner whose lease is revoked releases it meanwhile.
func TestTheComparisonPassesARepeatThatFindsAnotherState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := []step{
			{kind: driver.Acquire, owner: 0, most: 1, ttl: time.Minute},
			{kind: driver.Revoke, owner: 3, fence: 1, inside: &step{kind: driver.Release, owner: 0, fence: 1}, at: 2, again: true},
		}
		if _, d := newCheck(t, t, insideHarness(t), true).compare(steps, nil); d != "" {
			t.Error(d)
		}
	})
	for _, inside := range []step{{kind: driver.Abandon, owner: 1}, {kind: driver.Leave, owner: 1}, {kind: driver.Acquire, owner: 1, most: 2, ttl: time.Minute}} {
		synctest.Test(t, func(t *testing.T) {
			steps := []step{
				{kind: driver.Acquire, owner: 0, most: 1, ttl: time.Minute},
				{kind: driver.Acquire, owner: 1, most: 2, ttl: time.Minute, join: true},
				{kind: driver.Acquire, owner: 2, most: 2, ttl: time.Minute, join: true},
				{kind: driver.Revoke, owner: 3, fence: 1, join: true, inside: &inside, at: 2, again: true},
				{kind: driver.Acquire, owner: 1, most: 2, ttl: time.Minute},
				{kind: driver.Acquire, owner: 2, most: 2, ttl: time.Minute},
			}
			if ran, d := newCheck(t, t, insideHarness(t), true).compare(steps, nil); d != "" || len(ran) < len(steps) {
				t.Errorf("%v inside, after %d steps: %s", inside, len(ran), d)
			}
		})
	}
}

// Requests that meet are compared, too, and a right store passes.
func TestTheComparisonPassesRequestsThatMeet(t *testing.T) {
	Sequences(t, insideHarness, 0, sequences)
}
