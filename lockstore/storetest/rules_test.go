package storetest

import "testing"

// insideHarness is that of a store without a mistake, whose calls are two requests if the reply to the first is lost.
func insideHarness(t *testing.T) Harness {
	d := newWrong("")
	h := d.harness()
	h.Inside = func(n int, lost bool, do func()) {
		d.locked(func() { d.left, d.inside, d.twice = n, do, lost })
	}
	return h
}

// Requests that meet are compared, too, and a right store passes.
func TestTheComparisonPassesRequestsThatMeet(t *testing.T) {
	Sequences(t, insideHarness, 0, sequences)
}
