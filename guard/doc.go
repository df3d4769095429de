// Package guard starts work only when it has the lock, and cancels the work's context before
// another can get the lock. [Guard.Do] is the whole life cycle: acquire, work, release.
// [Guard.DoAll] does the same for several locks. [Guard.Acquire], [Guard.Renew] and [Guard.Release] are for a lease that
// outlives the call. [Wrap] makes a Lambda handler of [Guard.Do]; packages httpapi, httpguard, schedule, sqsbatch and stream
// adapt it to event sources, and package idempotency gives a repeat the first result. Package guard knows nothing of AWS:
// a Lambda's deadline is the deadline of its context.
//
// # States of a run
//
// A run is one call for one key, until the release.
//
//	         key invalid, deadline too near
//	 start ─────────────────────────────────────────▶ invalid, deadline
//	   │
//	   ▼        the store refuses the lock, Wait is over
//	asking ─────────────────────────────────────────▶ busy
//	 │  ▲ │     store unavailable, answers lost
//	 │  │ └─────────────────────────────────────────▶ unavailable, unknown
//	 │  └─ waiting for its turn in the queue; if the queue is full: for 1 to 2 s
//	 ▼
//	holding ──── work returns ────▶ releasing ──────▶ ok, error
//	 │    │ ▲
//	 │    └─┘ renew after each third of a lease
//	 │
//	 │ the store says lost, or the trust window ends
//	 ▼
//	losing: the work's context is cancelled ── work returns ──▶ lost
//
// Asking also ends as deadline when the caller leaves, at Shutdown, or if too little time is left for
// the work; as covered if another run of the same work waits, see Options.Coalesce; as corrupt if the entry is no lock; as unknown if the
// store may still have something of the run.
//
// With Options.Wait a run waits in the queue of the key. A run that is handed the key starts its work at once, under a lease that lasts for a turn.
// After 50 ms the guard asks for a full lease. Some ask before their work: runs that can trust the turn for less than half a second, runs of package
// idempotency or with a cooldown, Acquire, and DoAll for all keys but the last. No run waits for a key in doubt. For a key that is completed or in a
// cooldown a run waits only if the key opens in time.
//
// # The trust window
//
// The store decides when another owner may have the key. The guard decides by the local clocks how long it trusts its
// lease, and stops first:
//
//	request sent                                     store may grant to another
//	     │  reply                                                     │
//	     ├────┼──────────────────────────────────────┬────────────────┤
//	     │    │  work may run                        │ margin 250 ms  │
//	     └────┴──────────────────────────────────────┴────────────────┘
//
// The store returns the trusted time in Lease.TTL. The guard asks for Options.TTL or, if that is less, for the time left and a
// second, but at least for 1 s. The time left is the time until the deadline or the end of MaxHold. The guard renews a lease only
// if the trust window may end before that moment. So most functions never renew.
//
// The guard reads the monotonic clock and the wall clock, and takes the one on which more time has passed: a frozen
// Lambda environment may stop the monotonic clock. It reads them before the work begins, whenever the work asks its
// context (Err, Done), and once a second. It notices three things too late. Then only the fence helps:
//
//   - The process is frozen, and the wall clock set back by the same time, between two readings.
//   - The store's clock gains more than the margin during a lease.
//   - The store loses the lease in a failover, or somebody deletes it or revokes it with OpenAtOnce.
//
// The work's context ends at the earliest of these moments. [context.Cause] says which. Err is context.DeadlineExceeded for ErrDeadline, and
// context.Canceled for all others:
//
//	DeadlineMargin before the caller's deadline           ErrDeadline
//	MaxHold after the grant                               ErrDeadline
//	the lease is lost, or the trust window ends           an error that matches lockstore.ErrLost
//	Shutdown                                              the text "guard is shut down"
//	the caller's context is cancelled                     the caller's cause
//	the work returns                                      context.Canceled
//
// # When the store does not answer
//
// After a lost answer the guard repeats the same request with the same owner, and the store answers with the same
// lease. When the time for repeats is over, it abandons an acquire whose owner it has chosen itself: then no late request of it takes the
// lock. If the abandon fails, too, the outcome is unknown.
//
//	one call to the store, but not a wait for a turn     at most 2 s
//	acquire, with all repeats                            5 s or Wait, whichever is longer, but at most half of the time left
//	Guard.Renew, with all repeats                        5 s, but at most half of the time left
//	release, abandon or leave, with all repeats          1 s; 5 s if the answers match lockstore.ErrContended
//	storing a result, or a release after the work was
//	marked as started, with all repeats                  1 minute, or MaxHold if that is less
//
// Releases and results end 100 ms before the deadline, or 300 ms after Shutdown, but have at least 100 ms.
//
// # What is not promised
//
// A lock stops overlap, not repetition: an event that Lambda delivers twice runs twice. For this see package idempotency.
// And no lock can stop work that stands still and then goes on: pass Lock.Fence to the data, and let the data refuse a
// smaller fence. If the program has a mistake, such as nil work, Wrap returns a handler nevertheless. Each of its
// invocations returns an error, and no work runs.
package guard
