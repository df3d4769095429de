package guard_test

import (
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// TestSimulation runs guards over a faulty way to the store in memory, see package leasesim.
func TestSimulation(t *testing.T) {
	leasesim.Sim{
		Part: leasesim.Part{
			Name: "simulated guards in memory", Few: 50, Full: 3000, Must: []string{"early wake-ups", leasesim.HandOvers, leasesim.Extended},
			Limits: []string{
				"No process can notice a wall clock that is set back while the process is frozen (P2). The simulated process reads its clocks before the change, so this case is not simulated.",
				"An acquire may be refused as busy while a duplicate of it is still on its way. If the duplicate arrives when the key is free, it takes the key until its TTL ends.",
			},
		},
		// AwaitTurn, an acquire that was sent before the turn, a pause of the guard, and an acquire.
		Slack: 600 * time.Millisecond,
		Open: func(*leasesim.World) func(*leasesim.Process) *lockstore.Store {
			s := memstore.New(nil)
			return func(p *leasesim.Process) *lockstore.Store { return lockstore.New("sim", leasesim.Over(p, s.Driver())) }
		},
	}.Run(t)
}
