// Package lockstore is the contract between a guard and the place where its
// locks live. Programs use package guard; this package is for authors of
// stores and for tools that look at locks.
//
// # Words
//
// A key names the resource. An owner is the opaque id of one acquisition. A
// lease is a grant of a key to an owner for a time, its TTL. A fencing token,
// [Fence], is a number that comes with a lease and only ever grows for its
// key. A holder says, for people, who has the lock. Takeover is the grant of
// an expired lease's key to another owner. To abandon is to release an
// acquire whose outcome is unknown.
//
// # What every store promises
//
// Package storetest checks each of these on each store.
//
//  1. At most one lease of a key is live, by the store's own time. Every new
//     grant has a larger Fence than every earlier grant of that key: after a
//     release, an expiry, a deleted entry, a restart or a restored older entry.
//     The rule is fence = max(previous+1, now in microseconds), see
//     [NextFence]. Its limit: when the previous value is lost and the clock
//     that decides is behind the moment of the last grant, a fence can repeat.
//  2. Acquire is idempotent per owner. The same request again (after a lost
//     reply) returns the same lease with the time that is left of it. An own
//     lease that has expired is lost ([ErrLost]) for as long as the store
//     remembers the owner; the next try takes a new owner. Owners are compared
//     whole.
//  3. Renew extends only a lease that this owner holds with this Fence. It
//     never re-creates a lease and never shortens one. Renew again after a lost
//     reply still says held.
//  4. Release frees only the owner's lease. Release again is nil for as long as
//     the store remembers the first one; after another's grant it may be
//     [ErrLost], and the other's lease is untouched. A Release with Fence 0
//     abandons: it matches by owner alone and leaves a mark, so that an acquire
//     of that owner that arrives later takes no lock. How long a store
//     remembers is in its own documentation.
//  5. Errors have one meaning each, found with errors.Is: see [ErrHeld],
//     [ErrLost], [ErrInvalid], [ErrCorrupt], [ErrUnavailable]. Context errors
//     stay matchable. A call whose context is over before anything is sent
//     changes nothing and matches both ErrUnavailable and the context's error.
//     Every other error means that the outcome is unknown: the request may or
//     may not have been applied, and it must not be taken for held or for busy.
//  6. An entry of another type or shape is refused and left as it is. A corrupt
//     entry is never treated as free.
//  7. Keys are 1 to 1024 bytes of UTF-8 without control characters, and two
//     different keys never meet, whatever characters they have. A store keeps
//     what [Holder.Encode] writes: clean text, cut to 256 bytes.
//  8. The TTL of a returned Lease is the time for which it may be trusted,
//     counted from before the request was sent. A caller that counts so stops
//     trusting before the store grants the key to another.
//
// # What it does not promise
//
// A lock stops overlap, not repetition. A holder that stalls past its lease
// does not know it until it looks; only a resource that compares fences can
// refuse its late write. Fences of different keys cannot be compared.
//
// # Cost
//
// A free key takes one request to acquire and one to release. Acquire, Renew
// and Release read nothing on the side: a refusal brings what it needs. A database
// that can only compare and swap takes a read more for each.
//
// # For authors of stores
//
// Package memstore shows the promises in the fewest lines, and storetest checks them.
// What neither shows:
//
//   - Reads. A store that answers [ErrLost] or [Status] from a read takes one that
//     is linearizable: it sees every write that ended before it began. [ErrHeld] may
//     come from an older one, because it only delays.
//   - Time. The server's clock decides about a takeover, never a client's. Each
//     clock that tells whole seconds is up to a second behind: wait for that second
//     on top of the lease's end. What is cut off an end that is kept is cut off the
//     trust too. A store may be late, which its documentation says; it is never early.
//   - Applied or not. A store that reads before it writes has sent nothing that
//     counts until it writes: an error before that matches [ErrUnavailable]. After a write
//     whose reply is lost the outcome stays unknown, also when a later read fails.
//   - Opening. The openers of this project send nothing: the first call does, and a
//     server that is down is [ErrUnavailable] there. An opener that needs a session may
//     connect, within its context. A session must be made anew by the store itself when it
//     has ended, for example while Lambda had frozen the process.
//   - Closing. A store that holds a session implements [io.Closer]. Whoever opened it
//     closes it, when no call is under way. Package boot closes nothing, because Lambda
//     ends a process without asking. So no promise may need a Close: leases end by
//     their TTL.
package lockstore
