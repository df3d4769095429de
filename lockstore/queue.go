package lockstore

import "github.com/lambdalock/lambdalock/internal/lib/driver"

// TurnTime is for how long whatever makes room hands the key to the first in the queue. The state is Reserved then. The owner may
// work under this lease, see [AwaitedTurn], and its next Acquire or Renew makes the lease as long as its TTL. If it does not come within
// its turn, it has lost its place and nothing else.
//
// So an owner is not overtaken if it asks as soon as its turn has come, and has fewer than five places before it, with turns of less
// than 60 s together. (If somebody before it leaves the queue of a free key, its turn comes early: until it asks, an owner behind it
// may get the key.) An owner that died while it waited delays those behind it by one turn. A queue
// whose owners all died keeps a key from a new owner for at most six turns, or for 60 s and MaxParkedTurn if some are parked, see
// [Request.Parked]. A full, missing or damaged queue does not harm the lock: its owners just have no place.
//
// The rule in full, which is the same for every store, is the documentation of package internal/lib/rules.
const TurnTime = driver.TurnTime // 2 s on the store's clock; a clock with whole seconds may add up to 3.5 s

// AwaitedTurn is what an owner in a queue has learned.
type AwaitedTurn struct {
	// Lease, if its Fence is not 0, is the lease that was handed over to the owner. Its TTL is at
	// most a Turn: work that is longer has to extend it, see [Store.Extend].
	Lease Lease

	// Ask says that an Acquire of the owner may have another answer now than before: its turn
	// may have come, it may have lost its place, or the key may be in doubt.
	Ask bool

	Hint Hint
}
