package processes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore"
)

// TestCheck has one run for each thing that Check finds. Times are in seconds.
func TestCheck(t *testing.T) {
	try := func(number int, element string, fence lockstore.Fence, asked, granted, signalled, ended time.Duration, outcome string) Try {
		return Try{
			Event: Event{Try: number, List: "l", Holders: 1, Element: element}, Fence: fence, Outcome: outcome,
			Asked: asked * time.Second, Granted: granted * time.Second, Signalled: signalled * time.Second, Ended: ended * time.Second,
		}
	}
	const bound = 3 * time.Second
	refused := try(1, "a", 5, 1, 1, 0, 3, "errorString")
	refused.RefusedTrusted = true
	killed := try(1, "a", 5, 1, 1, 2, 2, "Runtime.ExitError")
	reads := func(t Try) Try {
		t.Reads, t.Holders = true, lockstore.MaxHolders
		return t
	}
	for _, c := range []struct {
		name  string
		tries []Try
		list  Content
		want  Verdict
	}{
		{"one after the other",
			[]Try{try(1, "a", 5, 1, 1, 0, 2, ""), try(2, "b", 6, 1, 2, 0, 3, "")},
			Content{[]string{"a", "b"}, []Stamp{{5, 1}, {5, 1}, {6, 2}, {6, 2}}},
			Verdict{}},
		{"added and not acknowledged",
			[]Try{killed}, Content{[]string{"a"}, []Stamp{{5, 1}}}, Verdict{}},
		{"an acknowledged element is gone",
			[]Try{try(1, "a", 5, 1, 1, 0, 2, "")}, Content{nil, []Stamp{{5, 1}}},
			Verdict{Lost: []string{"l a was acknowledged and is not there"}}},
		{"an element twice, and one that nobody sent",
			[]Try{try(1, "a", 5, 1, 1, 0, 2, "")}, Content{[]string{"a", "a", "x"}, []Stamp{{5, 1}}},
			Verdict{Twice: []string{"l a is there 2 times", "l x was never sent"}}},
		{"a stale write",
			[]Try{killed, try(2, "b", 6, 1, 4, 0, 5, "")}, Content{[]string{"b"}, []Stamp{{5, 1}, {6, 2}, {5, 1}}},
			Verdict{Stale: []string{"l: fence 5 of try 1 was accepted after 6 of try 2"}, Waits: 1, Longest: 2 * time.Second}},
		{"M01 a live key is granted to another",
			[]Try{refused, try(2, "b", 6, 1, 2, 0, 3, "")}, Content{[]string{"b"}, []Stamp{{5, 1}, {6, 2}, {6, 2}}},
			Verdict{RefusedTrusted: []string{"l: fence 5 of try 1 was refused while the lease was trusted"}}},
		{"M28 two tries with one fence",
			[]Try{try(1, "a", 5, 1, 1, 0, 3, ""), try(2, "a", 5, 1, 2, 0, 3, "")}, Content{[]string{"a"}, []Stamp{{5, 1}, {5, 2}}},
			Verdict{Shared: []string{"l: fence 5 belongs to try 1 and to try 2"}}},
		{"a dead holder blocks for too long",
			[]Try{killed, try(2, "b", 6, 1, 6, 0, 7, "")}, Content{[]string{"b"}, []Stamp{{5, 1}, {6, 2}}},
			Verdict{Late: []string{"l: try 2 got the key after 4s, 4s of which somebody asked for it; want at most 3s"}, Waits: 1, Longest: 4 * time.Second}},
		{"others asked and did not get it",
			[]Try{killed, try(2, "b", 0, 2, 0, 0, 5, "LockBusy"), try(3, "c", 6, 4, 6, 0, 7, "")}, Content{[]string{"c"}, []Stamp{{6, 3}}},
			Verdict{Late: []string{"l: try 3 got the key after 4s, 4s of which somebody asked for it; want at most 3s"}, Waits: 1, Longest: 4 * time.Second}},
		{"F02 one that died in the queue",
			[]Try{killed, try(2, "b", 0, 2, 0, 3, 3, "Runtime.ExitError"), try(3, "c", 6, 2, 7, 0, 8, "")}, Content{[]string{"c"}, []Stamp{{6, 3}}},
			Verdict{Waits: 1, Longest: 4 * time.Second}},
		{"F02 one that died in the queue of an earlier holder",
			[]Try{try(2, "b", 0, 1, 0, 2, 2, "Runtime.ExitError"), try(3, "c", 6, 2, 3, 4, 4, "Runtime.ExitError"), try(4, "d", 7, 3, 8, 0, 9, "")}, Content{[]string{"d"}, []Stamp{{6, 3}, {7, 4}}},
			Verdict{Late: []string{"l: try 4 got the key after 4s, 4s of which somebody asked for it; want at most 3s"}, Waits: 2, Longest: 4 * time.Second}},
		{"nobody asked for most of the time",
			[]Try{killed, try(2, "b", 6, 8, 9, 0, 10, "")}, Content{[]string{"b"}, []Stamp{{6, 2}}},
			Verdict{Waits: 1, Longest: time.Second}},
		{"a stopped process does not ask",
			[]Try{killed, try(2, "b", 6, 1, 9, 3, 10, "")}, Content{[]string{"b"}, []Stamp{{6, 2}}},
			Verdict{Waits: 1, Longest: time.Second}},
		{"one that died while it asked may have been granted the key",
			[]Try{killed, try(2, "b", 0, 1, 0, 4, 4, "Runtime.ExitError"), try(3, "c", 6, 2, 6, 0, 7, "")}, Content{[]string{"c"}, []Stamp{{6, 3}}},
			Verdict{Waits: 1, Longest: 2 * time.Second}},
		{"readers beside each other, then a writer",
			[]Try{reads(try(1, "a", 5, 1, 1, 0, 4, "")), reads(try(2, "b", 6, 1, 2, 0, 3, "")), try(3, "c", 7, 2, 4, 0, 5, "")},
			Content{[]string{"c"}, []Stamp{{5, 1}, {6, 2}, {7, 3}, {7, 3}}},
			Verdict{}},
		{"M01 a writer beside a reader",
			[]Try{reads(refused), try(2, "b", 6, 1, 2, 0, 3, "")}, Content{[]string{"b"}, []Stamp{{5, 1}, {6, 2}, {6, 2}}},
			Verdict{RefusedTrusted: []string{"l: fence 5 of try 1 saw a change while the lease was trusted"}}},
		{"a dead reader blocks a writer for too long",
			[]Try{reads(killed), try(2, "b", 6, 1, 6, 0, 7, "")}, Content{[]string{"b"}, []Stamp{{5, 1}, {6, 2}}},
			Verdict{Late: []string{"l: try 2 got the key after 4s, 4s of which somebody asked for it; want at most 3s"}, Waits: 1, Longest: 4 * time.Second}},
		{"a reader behind a writer that died in the queue, beside another reader",
			[]Try{reads(try(1, "a", 5, 1, 1, 0, 9, "")), try(2, "b", 0, 1, 0, 2, 2, "Runtime.ExitError"), reads(try(3, "c", 6, 1, 8, 0, 9, ""))},
			Content{nil, []Stamp{{5, 1}, {6, 3}}},
			Verdict{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, Check(c.tries, map[string][]Content{"l": {c.list}}, bound, 2*time.Second))
		})
	}
	// Two may hold the key: try 2 has it all the time, try 1 is killed, and try 3 comes instead.
	for at, want := range map[time.Duration]Verdict{
		5: {Waits: 1, Longest: 3 * time.Second},
		6: {Waits: 1, Longest: 4 * time.Second, Late: []string{"l: try 3 got the key after 4s, 4s of which somebody asked for it; want at most 3s"}},
	} {
		tries := []Try{killed, try(2, "b", 6, 1, 1, 0, 7, ""), try(3, "a", 7, 2, at, 0, 8, ""), try(4, "c", 8, 2, 7, 0, 8, "")}
		for i := range tries {
			tries[i].Holders = 2
		}
		list := []Content{{[]string{"a", "c"}, []Stamp{{5, 1}, {7, 3}, {8, 4}}}, {[]string{"b", "a"}, []Stamp{{6, 2}, {6, 2}}}}
		assert.Equal(t, want, Check(tries, map[string][]Content{"l": list}, bound, 2*time.Second))
	}
}
