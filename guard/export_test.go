package guard

import "time"

// SetRandom gives the guard another source of random pauses, so that a seed can be replayed.
func (g *Guard) SetRandom(upTo func(time.Duration) time.Duration) { g.random = upTo }
