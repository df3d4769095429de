package lockstore

import (
	"context"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// The queue's rule, the same for every [Queuer]: a free key is granted to an owner if n
// is 0, or if the key has been free for n times Turn. n is the number of places before
// the owner's place, or of all places if the owner has none, and at most MaxTurns.
//
// So the first in the queue gets a free key at once. An owner that died while it waited
// delays those behind it by one Turn. And a queue whose owners all died keeps a key from
// a new owner for at most MaxTurns times Turn.
const (
	Turn     = driver.Turn // on the store's clock; a clock with whole seconds may add up to 2 s
	MaxTurns = driver.MaxTurns
)

// ErrGranted is what Leave returns if the owner does not wait: it holds the key.
var ErrGranted = errors.New("the owner that leaves the queue holds the lock")

// Queuer is implemented by stores that keep a queue for each key: owners that wait, in the
// order in which the store gave them their places. [Request.Queue] asks for a place.
//
// The queue can only refuse. Each grant passes all conditions of a grant without a queue.
// If the queue of an entry is missing or damaged, the store goes on as if there were no
// queue. A full queue takes no more owners.
//
// A grant ends the owner's place and all places before it. A grant to an owner without a
// place ends all places. A Complete ends the whole queue: nobody waits for a key that is kept.
// Leave ends the owner's place, and so does Release by this owner, also one that abandons
// its Acquire. ResolveEffect ends the whole queue. Time alone ends no place.
//
// So an owner that had fewer than MaxTurns places before it, and that asks as soon as its
// turn has come, is not overtaken, whatever the other owners do.
//
// Both methods return an error matching ErrInvalid for a key or an owner that
// [Lease.Validate] refuses.
type Queuer interface {
	// AwaitTurn returns nil when an Acquire by this owner may be granted, when the owner has
	// no place any more, or when the key is in doubt. It may return nil earlier. If ctx ends first, the error
	// matches the context's. It is for an owner with a place.
	AwaitTurn(ctx context.Context, key string, owner Owner) error

	// Leave ends the owner's place and changes nothing else. It ends no lease, and the
	// store may still grant the key to a late request of this owner. If the owner has no
	// place, Leave returns nil. If the owner holds the key, it returns ErrGranted.
	Leave(ctx context.Context, key string, owner Owner) error
}

// UntilTurn says how much longer an owner must wait for a free key. The number of places
// before the owner's is before, and free is for how long the key has been free. If free is
// negative, because a clock was set back, the owner need not wait.
func UntilTurn(before int, free time.Duration) time.Duration {
	if free < 0 {
		return 0
	}
	return max(0, time.Duration(min(before, MaxTurns))*Turn-free)
}

// FreeAfterLeave says for how long a key counts as free after an owner has left its queue.
// free is for how long it counted as free before, and before is the number of places
// before the owner's place. The owners behind it are one place nearer now. Without this
// rule two of them could have their turns at once.
//
//	the owner's turn has not begun  nothing changes; those behind have their turns earlier
//	it is the owner's turn          the turn of the next owner begins now
//	the owner's turn is over        those behind keep the turns that they had
func FreeAfterLeave(before int, free time.Duration) time.Duration {
	begins := time.Duration(min(before, MaxTurns)) * Turn
	if free < begins {
		return free
	}
	return max(begins, free-Turn)
}
