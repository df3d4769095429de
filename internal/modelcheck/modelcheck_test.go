package modelcheck

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
)

// TestHandOver searches the rules with hand-over and several holders. No store has them yet.
func TestHandOver(t *testing.T) {
	verifyrecord.SkipSearchWithRace(t)
	sizes := []Size{
		{MaxHolders: []int{1, 1}},
		{MaxHolders: []int{1, 1}, Earlier: 1, Dead: 1, States: 300_000},
		{MaxHolders: []int{1, 1}, Dead: 1, Revokes: true, States: 200_000},
		{MaxHolders: []int{1, 1, 1}, Dead: 1, States: 300_000},
		{MaxHolders: []int{1, 2, 2}, Dead: 1, States: 300_000},
		{MaxHolders: []int{1, 64, 64}, Dead: 1, States: 300_000},
	}
	result := verifyrecord.Result{
		Kind: verifyrecord.Search, Name: "every state of a few clients under the rules with hand-over and several holders", Counts: map[string]int64{},
		Limits: []string{"The search has one key, a turn of two ticks and a TTL of four. Only the first of its sizes is searched to the end; it is no proof."},
	}
	began := time.Now()
	for i, size := range sizes {
		if !verifyrecord.Full() {
			size.States = 30_000
		}
		r := Search(size, None)
		t.Logf("%v: %d states, %d steps deep, to the end: %t", size, r.States, r.Depth, r.Closed)
		if r.Bad != "" {
			t.Fatalf("%s:\n%s", r.Bad, r.Trace)
		}
		if i == 0 && verifyrecord.Full() && !r.Closed {
			t.Errorf("the search of %v did not come to its end", size)
		}
		result.Counts[fmt.Sprintf("states with %v", size)] = int64(r.States)
		result.Counts[fmt.Sprintf("steps with %v", size)] = int64(r.Depth)
	}
	for _, c := range []struct {
		bug  Bug
		want string
	}{
		{TrustFromWakeUp, "trusts its lease for longer than it lasts"},
		{HandOverForTTL, "trusts its lease for longer than it lasts"},
		{StaleElement, "trusts a lease that it does not have"},
		{PlaceStays, "a holder has a place"},
		{NoHandOver, "waits for a key that nobody holds"},
		{ReleaseFreesAnybody, "trusts a lease that it does not have"},
	} {
		r := Search(Size{MaxHolders: []int{1, 1}}, c.bug)
		if !strings.Contains(r.Bad, c.want) {
			t.Errorf("%s: found %q; want %q", c.bug, r.Bad, c.want)
		}
		result.Controls = append(result.Controls, verifyrecord.Control{What: string(c.bug), Shown: true, Saw: fmt.Sprintf("%s, after %d steps", r.Bad, r.Depth)})
	}
	result.Took = time.Since(began)
	verifyrecord.Write(t, result)
}
