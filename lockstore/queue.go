package lockstore

import (
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// An entry may have a queue: owners that wait, in the order in which the store gave them
// their places. [Request.JoinQueue] asks for a place, and [Store.AwaitTurn] waits there.
//
// An Acquire that a queue lets pass has to pass all conditions of an Acquire without a queue, too. And an owner
// is handed the key only when there is room for it, as for an Acquire of its own. If the queue of an
// entry is missing or damaged, the store goes on as if there were no queue. A full queue takes no more
// owners.
//
// The request that makes room also makes the first in the queue the holder, for one turn, and the
// next ones as long as there is room. The state is Reserved then. The owner may work under this lease, see
// [Awaited]. Its next Acquire or Renew has the same fence and makes the lease as long as its TTL. If the
// owner does not come within its turn, the hand-over lapses: the owner has lost its place and nothing
// else. It may ask again, and is the last then.
//
// A grant ends the owner's place and all places before it, and so does a hand-over. A grant to an owner without a
// place ends all places. Leave ends the owner's place, and so does Release by this owner, also
// one that abandons its Acquire. A Complete and a ResolveEffect end the whole queue: nobody
// waits for work that is done. Time alone ends no place.
//
// Nobody waits at a parked place, see [Request.Parked]. Its turn is as long as the request says. Whoever hands the key over to
// it, or closes the key, learns which owner to wake, and finds its address with [Store.TakeAddress]. The end of a lease by time
// hands over to nobody, so it wakes nobody. Who waits behind a parked place is then granted the key after the turn of this place,
// and this grant ends the place. The parked owner asks again after a time of its own, and is the last then. At most half of the
// places are parked.
//
// So an owner that had fewer than MaxTurns places before it, whose turns together are less than 60 s, and that asks as
// soon as its turn has come, is not overtaken. There is one exception: the key is free, the first does not come for
// it, and somebody between the first and the owner leaves. Then the turn of the owner may come earlier than it
// knows, and until it asks again, an owner behind it may be granted the key.
//
// The queue's rule, the same for every store: a key that has room is granted to an owner if n is 0, or if
// there has been room, for the owner and for those before it, for n turns. n is the number of
// places before the owner's place, or of all places if the owner has none, and at most MaxTurns. The turns are those
// of the first n places, and together at most 60 s. There is room if fewer hold the key than the MaxHolders of each
// of those before the owner and of the request; with 1 that is a key whose lease or hand-over has ended.
//
// So the first in the queue gets a free key at once. An owner that died while it waited
// delays those behind it by one Turn. And a queue whose owners all died keeps a key from
// a new owner for at most MaxTurns times Turn and one Turn more, or for 60 s and MaxParked if some are parked: there is room when the turn of
// the first of them, who was handed the key, has ended.
const (
	Turn     = driver.Turn // on the store's clock; a clock with whole seconds may add up to 3.5 s
	MaxTurns = driver.MaxTurns
)

// Place is an owner's place in a queue, for [Store.AwaitTurn].
type Place struct {
	Key     string
	Owner   Owner
	Elapsed time.Duration // since the owner's last Acquire that was refused was sent, by clocks that see a freeze of the process
	Note    Note          // of the last Refused or Awaited
}

// Awaited is what an owner in a queue has learned.
type Awaited struct {
	// Lease, if its Fence is not 0, is the lease that was handed over to the owner. Its TTL is at
	// most a Turn: work that is longer has to extend it, with an Acquire that has this Fence.
	Lease Lease

	// Ask says that an Acquire of the owner may have another answer now than before: its turn
	// may have come, it may have lost its place, or the key may be in doubt.
	Ask bool

	Note Note
}
