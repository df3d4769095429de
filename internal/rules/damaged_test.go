package rules_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// A damaged state has room for the first in the queue, and nothing says since when. Nobody passes those who wait.
func TestRoomWithoutATime(t *testing.T) {
	reader := rules.Holder{Owner: "reader", Fence: 7, MaxHolders: 2, Since: sec(0), TTL: 10 * time.Second}
	w, r, p := rules.Waiter{Owner: "w", MaxHolders: 1}, rules.Waiter{Owner: "r", MaxHolders: 2}, rules.Waiter{Owner: "p", MaxHolders: 2, Parked: 30 * time.Second}
	for what, c := range map[string]struct {
		holders []rules.Holder
		queue   []rules.Waiter
		asks    driver.Owner
		most    int
		want    driver.Outcome
		holds   []driver.Owner // after it
		waits   int
		wake    []driver.Owner
	}{
		"free, the first asks":              {nil, []rules.Waiter{w, r}, "w", 1, driver.Granted, []driver.Owner{"w"}, 1, nil},
		"free, the second asks":             {nil, []rules.Waiter{w, r}, "r", 2, driver.Refused, []driver.Owner{"w"}, 1, nil},
		"free, a newcomer asks":             {nil, []rules.Waiter{w, r}, "new", 1, driver.Refused, []driver.Owner{"w"}, 1, nil},
		"held, the first asks":              {[]rules.Holder{reader}, []rules.Waiter{r}, "r", 2, driver.Granted, []driver.Owner{"reader", "r"}, 0, nil},
		"held, a newcomer asks":             {[]rules.Holder{reader}, []rules.Waiter{r}, "new", 2, driver.Refused, []driver.Owner{"reader", "r"}, 0, nil},
		"held, a newcomer asks for one":     {[]rules.Holder{reader}, []rules.Waiter{r, w}, "new", 1, driver.Refused, []driver.Owner{"reader", "r"}, 1, nil},
		"held, the first place is parked":   {[]rules.Holder{reader}, []rules.Waiter{p, w}, "new", 2, driver.Refused, []driver.Owner{"reader", "p"}, 1, []driver.Owner{"p"}},
		"held, the second finds room, too":  {[]rules.Holder{{Owner: "reader", Fence: 7, MaxHolders: 3, Since: sec(0), TTL: 10 * time.Second}}, []rules.Waiter{{Owner: "x", MaxHolders: 3}, {Owner: "r", MaxHolders: 3}}, "r", 3, driver.Granted, []driver.Owner{"reader", "x", "r"}, 0, nil},
		"no room: the state is not damaged": {[]rules.Holder{reader}, []rules.Waiter{w, r}, "new", 2, driver.Refused, []driver.Owner{"reader"}, 2, nil},
	} {
		for _, join := range []bool{false, true} {
			t.Run(what, func(t *testing.T) {
				k := newKey(t)
				k.State = rules.State{LastFence: 7, Holders: c.holders, Queue: c.queue}
				asks := driver.Request{Kind: driver.Acquire, Owner: c.asks, TTL: 10 * time.Second, MaxHolders: c.most, Join: join}
				a := k.wants(c.want, between(1, 1), asks)
				assert.Equal(t, c.wake, a.Wake)
				var holds []driver.Owner
				for _, h := range k.Holders {
					holds = append(holds, h.Owner)
				}
				assert.Equal(t, c.holds, holds)
				if join && c.asks == "new" && len(k.Queue) > 0 {
					assert.Equal(t, driver.Owner("new"), k.Queue[len(k.Queue)-1].Owner)
					assert.Equal(t, len(k.Queue), a.Position)
				} else {
					assert.Len(t, k.Queue, c.waits)
				}
				if c.want == driver.Refused { // if nobody asks for what was handed over, the others have their turns
					k.granted(between(100, 100), asks)
				}
			})
		}
	}
}
