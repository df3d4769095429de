// Package lockstore is for authors of stores, and for tools that look at locks; programs use package
// guard. It is the contract between a guard and the place where its locks live. [Store], a struct, has all
// methods of this contract. Below it is the driver of a store's package, which sends the requests.
//
// # Words
//
//	key            names the resource
//	owner          the secret id of one acquisition
//	lease          the grant of a key to an owner, for a limited time: its TTL
//	fence          the number of a lease ([Fence]); it only grows for its key
//	holder         who has the lock, as a text for people
//	takeover       the grant of a key whose lease has expired, to another owner
//	abandon        to release an acquire whose outcome is unknown
//	state          what is true of a key, in one word, see [State]
//	hand-over      a request that makes room also makes the first in the queue the holder, see [TurnTime]
//	seat           the number of a holder among those who hold a key at once, see [MaxHolders]
//	result         what the work returned, stored in the key's entry: the answer to a refused Acquire has it
//	in doubt       the lease has ended under work that had started; nobody knows how the work ended
//
// # What every store promises
//
// Package storetest checks each of these on each store.
//
//  1. At most n leases of a key are live, by the store's own time. n is the smallest
//     Request.MaxHolders of their requests, normally 1. Every new grant has a
//     larger Fence than every earlier grant of the same key: also after a release, an
//     expiry, a deleted entry, a restart or a restored older entry. The rule is
//     fence = max(previous+1, now in microseconds since 1970). It fails only if the
//     previous fence is lost and the clock that decides is behind the last grant: then
//     the next fence can be equal to an earlier one, or smaller.
//  2. Acquire is idempotent per owner. The same request again, after a lost reply,
//     returns the same lease with the time that is left. If the owner's lease has
//     expired, and was no hand-over, Acquire returns [ErrLost] for as long as the store
//     remembers the owner; the caller then needs a new owner. A store compares the owners themselves, not a hash or a part of them.
//  3. Renew extends a lease only if this owner holds it with this Fence. It never
//     re-creates a lease and never shortens one. The same Renew again, after a lost
//     reply, is no error.
//  4. Release frees only the lease of its owner: with another owner or fence it is
//     [ErrLost]. The same release again is nil for as long as the store remembers the
//     first one. If another owner has the key by then, the second release may be
//     ErrLost; it does not touch the other lease. Abandon compares the owner only, and it leaves a mark. An acquire
//     of the same owner that arrives after the mark takes no lock. Each store documents
//     how long it remembers owners.
//  5. Errors have one meaning each, found with errors.Is: see [ErrRefused], [ErrLost],
//     [ErrInvalid], [ErrCorrupt], [ErrUnavailable]. [ErrContended] only adds why. Context errors stay matchable. If the
//     context has ended before the store sends anything, the call changes nothing, and
//     its error matches both ErrUnavailable and the context's error. Leave can also
//     return [StillHolds]. Every other error means that the outcome is unknown: the
//     server may have applied the request. After an unknown outcome a caller must not
//     act as if it held the lock.
//  6. A store refuses an entry of another type or shape and does not change it. A store
//     never treats a corrupt entry as free.
//  7. Keys are 1 to 1024 bytes of UTF-8 without control characters. Two different keys
//     never share an entry, whatever characters they have. A store writes what
//     [HolderInfo.Encode] writes: clean text, cut to 256 bytes.
//  8. The TTL of a returned Lease is the time for which the caller may trust the lease,
//     counted from before the request was sent. A caller that counts this way stops
//     trusting the lease before the store grants the key to another owner.
//
// # What a store does not promise
//
// A lock stops overlap, not repetition. A holder that stalls past its lease does not
// know it; only a resource that compares fences can refuse the holder's late write.
// Fences of different keys cannot be compared.
//
// # Cost
//
// For a free key with MaxHolders 1, Acquire is one request and Release is one request, and the first one of a process may be one more. A process
// that knows the lease sends no extra read: the refusal has all that it needs.
// A database that can only compare and swap needs one read more, unless
// the same process wrote the entry last.
//
// # For authors of stores
//
// A store's package makes a driver, and its constructor returns [New] of it. The Store checks
// arguments and contexts, so that no bad one reaches the driver. Package memstore shows the
// promises in the fewest lines, and storetest checks them. What neither shows:
//
//   - Reads. If a store answers [ErrLost] or a [Status] from a read, the read has to be
//     linearizable: it sees every write that ended before the read began. [ErrRefused],
//     and the [ErrLost] of an acquire that has ended, may come from an older read: ErrRefused only delays the caller.
//   - Time. The server's clock decides about a takeover, never a client's clock. A clock
//     that shows whole seconds is up to a second behind: wait for this second after the
//     lease's end. If the store rounds the end of a lease down, let the holder trust the
//     lease for that much less. A takeover may be late, and the store documents how late.
//     It is never early.
//   - Unknown outcomes. If a store reads before it writes, only the write can leave an
//     unknown outcome: an error before the write matches [ErrUnavailable]. After a write
//     whose reply is lost the outcome stays unknown, also when a later read fails.
//   - Opening. The openers of this project send nothing. The first call connects; when the
//     server is down, that call returns [ErrUnavailable]. An opener that needs a session
//     may connect, within its context. When a session has ended, for example while Lambda
//     had frozen the process, the store itself makes a new one.
//   - Closing. A driver that holds a session implements [io.Closer]. Package boot closes nothing,
//     because Lambda ends a process without a warning. So no promise may depend on a
//     call of Close: leases end by their TTL.
//   - Errors about options and URLs. Return [Invalidf]; the guard calls them invalid.
package lockstore
