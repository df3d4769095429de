package processes

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore"
)

// TestCheck has one run for each thing that Check finds.
func TestCheck(t *testing.T) {
	try := func(number int, element string, fence lockstore.Fence, acknowledged bool) Try {
		return Try{Event: Event{Try: number, List: "l", Holders: 1, Element: element}, Fence: fence, Acknowledged: acknowledged}
	}
	killed, refused := try(1, "a", 5, false), try(1, "a", 5, false)
	refused.RefusedTrusted = true
	reader := refused
	reader.Reads = true
	for _, c := range []struct {
		name  string
		tries []Try
		list  Content
		want  Verdict
	}{
		{"one after the other",
			[]Try{try(1, "a", 5, true), try(2, "b", 6, true)},
			Content{[]string{"a", "b"}, []Stamp{{5, 1}, {5, 1}, {6, 2}, {6, 2}}}, Verdict{}},
		{"added and not acknowledged",
			[]Try{killed}, Content{[]string{"a"}, []Stamp{{5, 1}}}, Verdict{}},
		{"an acknowledged element is gone",
			[]Try{try(1, "a", 5, true)}, Content{nil, []Stamp{{5, 1}}},
			Verdict{Lost: []string{"l a was acknowledged and is not there"}}},
		{"an element twice, and one that nobody sent",
			[]Try{try(1, "a", 5, true)}, Content{[]string{"a", "a", "x"}, []Stamp{{5, 1}}},
			Verdict{Twice: []string{"l a is there 2 times", "l x was never sent"}}},
		{"a stale write",
			[]Try{killed, try(2, "b", 6, true)}, Content{[]string{"b"}, []Stamp{{5, 1}, {6, 2}, {5, 1}}},
			Verdict{Stale: []string{"l: fence 5 of try 1 was accepted after 6 of try 2"}}},
		{"M01 a live key is granted to another",
			[]Try{refused, try(2, "b", 6, true)}, Content{[]string{"b"}, []Stamp{{5, 1}, {6, 2}, {6, 2}}},
			Verdict{RefusedTrusted: []string{"l: fence 5 of try 1 was refused while the lease was trusted"}}},
		{"M01 a writer beside a reader",
			[]Try{reader, try(2, "b", 6, true)}, Content{[]string{"b"}, []Stamp{{5, 1}, {6, 2}, {6, 2}}},
			Verdict{RefusedTrusted: []string{"l: fence 5 of try 1 saw a change while the lease was trusted"}}},
		{"M28 two tries with one fence",
			[]Try{try(1, "a", 5, true), try(2, "a", 5, true)}, Content{[]string{"a"}, []Stamp{{5, 1}, {5, 2}}},
			Verdict{Shared: []string{"l: fence 5 belongs to try 1 and to try 2"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, Check(c.tries, map[string][]Content{"l": {c.list}}))
		})
	}
}
