package rules_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// TestDeadPlacesWhileOthersComeAndGo: many have died in the queue, and the runs that come now wait for three
// seconds each, and leave. One of them is granted the key within six turns. F02.
func TestDeadPlacesWhileOthersComeAndGo(t *testing.T) {
	k := newKey(t)
	k.Places = 64
	first := k.granted(between(0, 0), acquire("first"))
	for n := range 20 {
		k.do(between(0, 0), acquire(driver.Owner(fmt.Sprint("dead", n))))
	}
	assert.Equal(t, driver.Done, k.do(between(0, 0), by(driver.Release, "first", first.Fence)).Outcome)
	const waits, step = 3, 0.25
	turns := driver.Turn.Seconds() * (driver.MaxTurns + 1)
	for now := 0.0; now <= turns+step; now += step {
		for came := 0; float64(came) <= now; came++ { // one a second
			owner := driver.Owner(fmt.Sprint("run", came))
			switch {
			case now < float64(came+waits):
				if k.do(between(now, now), acquire(owner)).Outcome == driver.Granted {
					return
				}
			case now < float64(came+waits)+step:
				k.do(between(now, now), by([]driver.Kind{driver.Leave, driver.Abandon}[came%2], owner, 0))
			}
		}
	}
	t.Errorf("nobody was granted the key in %v s", turns)
}
