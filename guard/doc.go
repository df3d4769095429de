// Package guard starts work only when it has the lock, and cancels the work's context before
// another can get the lock. [Guard.Do] is the whole life cycle: acquire, work, release.
// [Guard.DoAll] does the same for several locks. [Guard.Acquire], [Guard.Renew] and
// [Guard.Release] are for a lease that outlives the call. [Wrap] makes a Lambda handler of
// [Guard.Do]. Packages httpapi, httpguard, schedule, sqsbatch and stream adapt it to event sources. The
// package uses the standard library only and knows nothing of AWS: a Lambda's deadline is the
// deadline of its context.
//
// # Words
//
//	lease         the lock, for a limited time: its TTL
//	fence         the number of a lease; it only grows for its key
//	owner         the secret id of one acquisition
//	run           one call for one key, from asking for the lock to its release
//	trust window  the time for which the guard relies on its lease; see below
//	place         a waiting run's position in the key's queue
//	hand-over     the release of one run makes the first in the queue the holder, for a turn
//	turn          how long a hand-over lasts: lockstore.Turn (2 s), or the turn of a parked place (up to 30 s)
//	seat          the number of a holder among those who hold a key at once, see WithMaxHolders
//	poll          to ask the store whether a held key is free
//	abandon       to give up an acquire whose outcome is unknown: the store frees the key, and
//	              refuses requests of this acquire that arrive later
//
// # States of a run
//
//	         key invalid, deadline too near
//	 start ─────────────────────────────────────────▶ invalid, deadline
//	   │
//	   ▼        the store refuses the lock, Wait is over
//	asking ─────────────────────────────────────────▶ busy
//	 │  ▲ │     store unavailable, answers lost
//	 │  │ └─────────────────────────────────────────▶ unavailable, unknown
//	 │  └─ waiting for its turn in the queue; if the queue is full: pause, poll the key
//	 ▼
//	holding ──── work returns ────▶ releasing ──────▶ ok, error
//	 │    │ ▲
//	 │    └─┘ renew after each third of a lease
//	 │
//	 │ the store says lost, or the trust window ends
//	 ▼
//	losing: the work's context is cancelled ── work returns ──▶ lost
//
// The diagram leaves out these:
//
//   - Asking also ends as deadline in three cases: the context of the caller ends, Shutdown
//     is called, or the lease comes so late that too little time is left for the work. It
//     ends as corrupt when the entry is no lock.
//   - A run that would end as busy or deadline ends as unknown if the store may still have a lease of it,
//     or a place that it could not leave. [Guard.Acquire] with LeaseRequest.Owner keeps its lease and its place
//     when it fails, because the caller asks again. If the lease of this owner has ended, the outcome is lost.
//   - If too little of the lease or of the time is left after the grant, because Trace took long or the process
//     was frozen, the work does not run, and the run ends as unavailable or deadline.
//   - If the work panics or calls runtime.Goexit, the lease is released (not if the work was
//     marked as started, see OnceOptions), and the panic goes on with its own stack.
//   - While the work runs, its lease is never released. If the work never returns, the
//     lease ends by its TTL.
//   - After work that returned nil, [Guard.WithCooldown] leaves the key unavailable for a while.
//   - [Guard.DoOnce] stores the result of the work, which ends the lease. A later DoOnce of the
//     key gets this result, and its work does not run. A Do of the key runs only after the result's
//     time is over: until then it waits or is busy. Package idempotency is built on DoOnce.
//
// # Waiting
//
// With Options.Wait or LeaseRequest.Wait a run waits for a lock that another owner holds. It
// waits in the queue of the key:
//
//   - The runs get the lock in the order of their arrival. When several in front have died, a newcomer may
//     get it before those who wait behind them.
//   - The place belongs to the run's owner. A run that has to take a new owner, because its lease came too
//     late or was lost, is the last.
//   - A run that learns from its store that it was handed the key starts its work at once, under this
//     lease, which lasts for at most one turn. After 50 ms, or at once if less than 1 s of trust is left, the
//     guard asks for a full lease, if the work still runs and may outlast the lease. Until
//     the store has answered, the work has only what is left of the turn.
//     These make the lease a full one before the work begins: a run that will complete its key or mark its
//     start, a cooldown, Acquire, a DoAll with more keys to come, and a run that the store last refused
//     more than 1.65 s (ZooKeeper) or 1.4 s (Redis, Datastore, Cosmos DB, PostgreSQL with Options.Listen) ago.
//   - A run that was handed the key and cannot use it, because its caller has left or too little time
//     is left for its work, releases the key with the fence of the hand-over, or abandons it if an answer was
//     lost. With LeaseRequest.Owner it keeps it.
//   - A run leaves the queue when its wait is over, its caller leaves, or Shutdown is
//     called. A run with LeaseRequest.Owner does not: its place is for the next call.
//   - A run that dies while it waits delays those behind it by one turn: 2 s, up to 3 s on PostgreSQL,
//     ZooKeeper and Datastore, and up to 5.5 s on DynamoDB and Cosmos DB, whose clocks have whole seconds.
//   - A run that does not wait is behind all runs that wait. While others wait it is refused (except as above), also
//     if nobody holds the lock: State of its LockBusy is then lockstore.Reserved.
//   - If the queue is full, the run polls the key, and asks for a place again when a poll finds the key free, or
//     after four times as long as its last Acquire took, but at least 1 s and at most 2 s (and the time of the
//     poll that is under way then). If answers are slow, it polls less often, too. Runs without a place have no order.
//   - When its wait is over, the run ends as busy. If its last request failed, because the pool or the
//     store is overloaded, it ends as busy only if the store has said within the last 5 s what is in the
//     way, and no answer was lost; otherwise as unavailable. If the run cannot leave the queue, the
//     outcome is unknown: its owner may still be handed the key.
//
// A parked owner, see [Guard.Park], waits in no process. A run whose request hands the key over to
// it, or completes the key, wakes it with Options.Wake: at most 8 owners at once. The wake-ups have 1 s, or
// what the release has left if that is less. A store that is used without a guard wakes nobody: the owner then
// asks again after a time of its own. lockctl wakes with the rights of its user.
//
// A run does not wait for a key in doubt. If a key is completed or in a cooldown, a run of Do, DoAll
// or Acquire waits if the key is sure to open in time. DoOnce and WithCooldown do not wait for it.
//
// # The trust window
//
// The store decides, by its own clock, when another owner may have the key. (On DynamoDB the holder writes
// the end of its lease by its local clock, with a tolerance for the error of this clock. DynamoDB's time
// says when this end has come.) The guard decides, by the local clocks, how long it trusts its own lease.
// The guard stops first, with the exceptions below:
//
//	request sent                                     store may grant to another
//	     │  reply                                                     │
//	     ├────┼──────────────────────────────────────┬────────────────┤
//	     │    │  work may run                        │ margin 250 ms  │
//	     └────┴──────────────────────────────────────┴────────────────┘
//
//	end of the window = time of the request + trusted time - margin
//
// The store returns the trusted time in Lease.TTL, counted from before the request. It can be less than the
// TTL of the request, on DynamoDB by 250 ms or more. If the reply is slow, the work gets less
// time; the window does not get longer. For a run that waits, the window begins with the first
// try of the request that brought the lease: the last Acquire, or the last AwaitTurn. If the process was frozen meanwhile and too little
// of the window is left, the run sends an Acquire before it works.
//
// The guard measures the window on two clocks: the monotonic clock and the wall clock. A
// frozen Lambda environment may stop the monotonic clock; only the wall clock then shows
// that time has passed. At each check the guard takes the clock that shows more time; differences
// that add up to less than 10 ms do not count.
// The guard checks the clocks
//
//   - before the work begins,
//   - whenever the work asks its context (Err, Done),
//   - once a second, if the work waits for Done, or if the lease still needs renewals.
//
// Three things the guard notices too late, or never. Then only the fence helps:
//
//   - The process is frozen, and the wall clock is set back by as much, between two
//     checks.
//   - The store's clock runs faster than the local clocks, and gains more than the margin
//     during a lease: 250 ms in 60 s, which is 0.4 %.
//   - The store gives the key away before the end of the lease: a failover lost the
//     lease, somebody deleted it or revoked it with OpenAtOnce, or the store's clock jumped
//     ahead. The guard learns that at the next renewal or at the release.
//
// # The work's context
//
// The context ends at the earliest of these moments. [context.Cause] says which:
//
//	DeadlineMargin (300 ms) before the caller's deadline  ErrDeadline
//	MaxHold after the grant                               ErrDeadline
//	the lease is lost, or the trust window ends           an error that matches lockstore.ErrLost
//	Shutdown                                              ErrShutdown
//	the caller's context is cancelled                     the caller's cause
//	the work returns                                      context.Canceled
//
// Ask for the cause, not for Err: at ErrDeadline, Err of this context is context.DeadlineExceeded, and Err of
// a context that the work has made of it (WithCancel, WithTimeout, WithDeadline) is context.Canceled. Work that
// does not ask its context runs on. Then the fence protects the resource: the resource
// refuses a write with a smaller fence than it has seen.
//
// # How long a lease is
//
//	TTL of the request = min(Options.TTL, time left + 1 s)
//
// The time left is the time until the deadline or the end of MaxHold, whichever is first. A TTL is
// never less than 1 s. Options.TTL is 60 s by default, or MaxHold if that is less. A LeaseRequest
// has a TTL of its own. A holder that crashes blocks others for at most the longest TTL that it asked for and the store's own
// tolerance, unless its work was marked as started: then the key is in doubt. The guard
// renews a lease if the trust window may end before the work's time does. It renews after each
// third of the lease, inside the invocation only, and at most until MaxHold (15 min).
//
// So most functions never renew. With the default TTL:
//
//	time left when Do is called   renewals
//	up to 59 s                    none, on all stores here
//	60 s, Redis, PostgreSQL,
//	ZooKeeper                     none
//	60 s, the cloud services      one after 20 s, if the work still runs: the trusted time is 250 ms less
//	longer                        one every 20 s. The last one is sent when 40 s to 60 s are left:
//	                              the lease then lasts until the end of the time
//
// # When the store does not answer
//
// A lost answer means that the outcome is unknown. The guard repeats the same request with
// the same owner, and the store answers with the same lease. When the time for repeats is
// over, the guard abandons the acquire. If the abandon fails, too, the outcome is unknown. If the caller has chosen the owner
// (LeaseRequest.Owner), the guard abandons nothing: the caller repeats the request. If the store
// says that it has applied nothing, the guard asks again after a pause.
//
//	one call to the store                          at most 2 s
//	the wait for a turn in the queue               until Wait is over
//	acquire, with all repeats                      5 s or Wait, whichever is longer, but at most
//	                                               half of the time left; the last call
//	                                               may end 200 ms later
//	release, abandon or leave, with all repeats    1 s after the last answer that matches
//	                                               lockstore.ErrContended, or 1 s if there is none;
//	                                               at most 5 s
//	storing a result, or a release after the work
//	was marked as started, with all repeats        1 minute, or MaxHold if that is less
//	Renew, with all repeats                        5 s, but at most half of the time left;
//	                                               the last call may end 200 ms later
//
// All releases, and the storing of a result, end at the latest 100 ms before the deadline, or 300 ms after
// Shutdown. If less than 100 ms is left until then, they still have 100 ms (not a second release of a run after Shutdown).
// The releases of a DoAll share this time.
//
// After the time for acquire the run ends as *LockStoreUnavailable, or as *LockBusy if the store has
// refused the lock less than 5 s ago, no answer was lost, and leaving the queue has not failed.
//
// A renewal inside Do is tried again until the trust window or the work's time ends. The guard repeats a
// release and a [Guard.Renew] until their time is over. After a lost answer the outcome is known
// only by a repeat that returns nil, that of a Renew also by one that returns ErrLost, ErrCorrupt or ErrInvalid.
// Otherwise it is unknown, and the error is that of the lost answer.
//
// # Mistakes in the program
//
// Wrap, here and in the packages below except httpguard, always returns a handler. If the program has a
// mistake, every invocation returns the same error: no lock is taken, and no work runs. Such mistakes are
//
//   - a guard or an idempotency.Once that its New has not made, or an option out of its bounds,
//   - a nil key function, or nil work,
//   - a result type that is an io.Reader.
//
// Wrap and Once of httpguard, and sqsbatch.WrapWith return the error
// at once. Do and DoAll return it, too.
//
// A handler that is wrapped twice locks its own key again. With the same guard the inner
// handler then returns a *LockInvalid, with another guard a *LockBusy (a second seat if both have MaxHolders above 1).
//
// # What is not promised
//
// A lock stops overlap, not repetition: an event that Lambda delivers twice runs twice, one
// run after the other. For this see package idempotency. And no lock can stop work that stands
// still and then goes on: pass Lock.Fence to the resource, and let the resource refuse a smaller fence.
package guard
