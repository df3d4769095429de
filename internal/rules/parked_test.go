package rules_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

func park(o driver.Owner) driver.Request {
	r := acquire(o)
	r.Parked = driver.MaxParked
	return r
}

// A parked place is handed the key for its own turn, and the answer says whom to wake. What is woken late
// has lost the place, and the next gets the key after this turn.
func TestParkedPlaceIsWoken(t *testing.T) {
	k := newKey(t)
	k.Places = 16
	a := k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(0, 0), park("parked"))
	k.wants(driver.Refused, between(0, 0), acquire("waits"))
	answer := k.wants(driver.Done, between(1, 1), by(driver.Release, "a", a.Fence))
	assert.Equal(t, []driver.Owner{"parked"}, answer.Wake)
	assert.Empty(t, answer.HandedOver)
	assert.Equal(t, driver.MaxParked, k.Holders[0].TTL)
	k.wants(driver.Refused, between(30, 30), acquire("waits"))
	again := k.granted(between(31, 31), acquire("waits"))
	assert.Greater(t, again.Fence, a.Fence+1)
	assert.Equal(t, driver.Refused, k.wants(driver.Refused, between(31, 31), park("parked")).Outcome, "its owner asks like any other")
}

func TestParkedOwnerThatIsWokenExtends(t *testing.T) {
	k := newKey(t)
	k.Places = 16
	a := k.granted(between(0, 0), acquire("a"))
	k.wants(driver.Refused, between(0, 0), park("parked"))
	k.wants(driver.Done, between(1, 1), by(driver.Release, "a", a.Fence))
	lease := k.granted(between(20, 20), acquire("parked"))
	assert.Greater(t, lease.Fence, a.Fence)
	assert.Equal(t, acquire("").TTL, lease.TTL)
	assert.False(t, k.Holders[0].HandedOver)
}

// The places before it keep a free key from an owner for their turns, and for no longer than MaxDelay.
func TestParkedPlacesDelayOthers(t *testing.T) {
	for parked, want := range []time.Duration{0, driver.MaxParked, driver.MaxDelay, driver.MaxDelay} {
		k := newKey(t)
		k.Places = 16
		k.granted(between(0, 0), acquire("a"))
		for n := range parked {
			k.wants(driver.Refused, between(0, 0), park(driver.Owner(fmt.Sprint("parked", n))))
		}
		k.wants(driver.Refused, between(0, 0), acquire("waits"))
		end := k.Holders[0].TTL.Seconds()
		if want > 0 {
			k.wants(driver.Refused, between(end+want.Seconds()-0.001, end+want.Seconds()-0.001), acquire("waits"))
		}
		k.granted(between(end+want.Seconds(), end+want.Seconds()), acquire("waits"))
	}
}

// Who closes the key wakes all parked owners: they learn the result.
func TestParkedOwnersOfAClosedKeyAreWoken(t *testing.T) {
	for _, kind := range []driver.Kind{driver.Complete, driver.Resolve} {
		k := newKey(t)
		k.Places = 16
		a := k.granted(between(0, 0), acquire("a"))
		for _, r := range []driver.Request{park("p1"), acquire("waits"), park("p2")} {
			k.wants(driver.Refused, between(0, 0), r)
		}
		now, r := 0.0, by(driver.Complete, "a", a.Fence)
		r.TTL = time.Minute
		if kind == driver.Resolve {
			k.start(0, "a", a.Fence)
			now, r = k.Holders[0].TTL.Seconds(), driver.Request{Kind: driver.Resolve, Fence: a.Fence, Effect: true, TTL: time.Minute}
		}
		assert.Equal(t, []driver.Owner{"p1", "p2"}, k.wants(driver.Done, between(now, now), r).Wake)
		assert.Empty(t, k.Queue)
	}
}

// At most half of the places are parked, so that those who wait find some.
func TestParkedPlacesAreHalfOfTheQueue(t *testing.T) {
	k := newKey(t)
	k.Places = 4
	k.granted(between(0, 0), acquire("a"))
	for n, want := range []int{1, 2, 0} {
		assert.Equal(t, want, k.wants(driver.Refused, between(0, 0), park(driver.Owner(fmt.Sprint("p", n)))).Position)
	}
	assert.Equal(t, 3, k.wants(driver.Refused, between(0, 0), acquire("waits")).Position)
	assert.Equal(t, 2, k.wants(driver.Done, between(0, 0), driver.Request{Kind: driver.Inspect}).Status.Parked)
}
