package rules_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
)

// A damaged state has room for the first in the queue, and nothing says since when. Nobody passes those who wait.
func TestRoomWithoutATime(t *testing.T) {
	reader := []rules.Holder{{Owner: "reader", Fence: 7, MaxHolders: 2, Since: sec(0), TTL: 10 * time.Second}}
	w, r, p := rules.Waiter{Owner: "w", MaxHolders: 1}, rules.Waiter{Owner: "r", MaxHolders: 2}, rules.Waiter{Owner: "p", MaxHolders: 2, Parked: 30 * time.Second}
	for what, c := range map[string]struct {
		state rules.State
		asks  driver.Request
		want  driver.Outcome
		holds []driver.Owner // after it
		waits []driver.Owner
		wakes []driver.Owner
	}{
		"free, the first asks":            {rules.State{Queue: []rules.Waiter{w, r}}, acquire("w"), driver.Granted, []driver.Owner{"w"}, []driver.Owner{"r"}, nil},
		"free, the second asks":           {rules.State{Queue: []rules.Waiter{w, r}}, sharing("r", 2), driver.Refused, []driver.Owner{"w"}, []driver.Owner{"r"}, nil},
		"free, a newcomer asks":           {rules.State{Queue: []rules.Waiter{w, r}}, acquire("new"), driver.Refused, []driver.Owner{"w"}, []driver.Owner{"r", "new"}, nil},
		"held, a newcomer asks":           {rules.State{Holders: reader, Queue: []rules.Waiter{r}}, sharing("new", 2), driver.Refused, []driver.Owner{"reader", "r"}, []driver.Owner{"new"}, nil},
		"held, the first place is parked": {rules.State{Holders: reader, Queue: []rules.Waiter{p, w}}, sharing("new", 2), driver.Refused, []driver.Owner{"reader", "p"}, []driver.Owner{"w", "new"}, []driver.Owner{"p"}},
		"no room: it is not damaged":      {rules.State{Holders: reader, Queue: []rules.Waiter{w, r}}, sharing("new", 2), driver.Refused, []driver.Owner{"reader"}, []driver.Owner{"w", "r", "new"}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			k := newKey(t)
			k.State = c.state
			k.LastFence = 7
			assert.Equal(t, c.wakes, k.wants(c.want, at(1), c.asks).Wake)
			var holds []driver.Owner
			for _, h := range k.Holders {
				holds = append(holds, h.Owner)
			}
			assert.Equal(t, c.holds, holds)
			assert.Equal(t, c.waits, k.queue())
			if c.want == driver.Refused { // if nobody asks for what was handed over, the others have their turns
				k.granted(at(100), c.asks)
			}
		})
	}
}
