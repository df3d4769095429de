// Package seam is how the simulator gives a guard other clocks and other random numbers, so that a seed can be
// replayed. No option of the guard does: nobody else needs one.
package seam

import "time"

// Guard gives g, a *guard.Guard that has not run yet, its two local clocks and its random pauses. Package guard sets it.
var Guard func(g any, clocks func() (mono, wall time.Duration), upTo func(time.Duration) time.Duration)
