// Package guard runs work only while a lock is held. [Guard.Do] is the whole
// life cycle; [Wrap] gives it to a Lambda handler; the packages below this one
// adapt it to one event source each. It uses the standard library only and
// knows nothing of AWS: a Lambda's deadline arrives as the context's.
//
// # States of a run
//
//	         key refused, deadline too near
//	 start ─────────────────────────────────────────▶ invalid, deadline
//	   │
//	   ▼        another holds it, Wait is over
//	asking ─────────────────────────────────────────▶ busy
//	 │  ▲ │     store down, answers lost
//	 │  │ └─────────────────────────────────────────▶ unavailable, unknown
//	 │  └─ waiting: look, pause, look again
//	 ▼
//	holding ──── work returns ────▶ releasing ──────▶ ok, error
//	 │    │ ▲
//	 │    └─┘ renew after each third of a lease
//	 │
//	 │ store says lost, or the trust window ends
//	 ▼
//	losing: work's context is cancelled ── work returns ──▶ lost
//
// Asking ends as deadline too, when the caller leaves, Shutdown is called or the
// lease comes too late, and as corrupt when the entry is not a lock. A panic or
// runtime.Goexit in the work goes through releasing as well, and then on with
// its own stack. Work that never returns is never released under: its lease ends
// by its TTL. [Guard.Closing] leaves the key closed for a while when it releases
// after good work.
//
// # The trust window
//
// The store decides, by its own clock, when another may have the key. The guard
// decides, by the local clocks, until when it believes in its own lease, and is
// always the one to give up first:
//
//	request sent                                     store may grant to another
//	     │  reply                                                     │
//	     ├────┼──────────────────────────────────────┬────────────────┤
//	     │    │  work may run                        │ margin 250 ms  │
//	     └────┴──────────────────────────────────────┴────────────────┘
//	     window = TTL that the store lets us trust, counted from before the
//	     request; a slow reply makes the work's part shorter, never the lease longer
//
// The window is measured on the monotonic and on the wall clock, and between two
// looks the longer answer counts: a frozen Lambda environment may stop the one,
// and only the other then shows that time has passed. The clocks are looked at
// whenever the work looks at its context (Err, Done), and once a second besides
// when it waits for Done or renews. A wall clock that is set back between two
// looks hides as much of a freeze between the same two, and a store's clock that
// runs faster than the local ones by more than the margin's part of a lease
// (0.4 % of a minute) ends it before the guard does; only the fence helps there.
//
// # The work's context
//
// It ends at the earliest of: Reserve (300 ms) before the caller's deadline,
// MaxHold after the grant, the end of the trust window, Shutdown, the return of
// the work. context.Cause tells which: ErrDeadline, an error that matches
// lockstore.ErrLost, ErrShutdown. At ErrDeadline the context itself says
// context.DeadlineExceeded, but contexts that the work derived from it before
// say context.Canceled: ask for the cause. Work that does not look at its
// context runs on; then the fence that it wrote with is what protects the
// resource.
//
// # How long a lease is
//
// What the caller's context has left and one second more, but at most TTL
// (60 s). A holder that crashes blocks others for at most TTL and the store's own
// tolerance. A run renews its lease if the trust in it may end before the work's
// time does: after each third of the lease, inside the invocation only, and at
// most until MaxHold (15 min).
//
// A run whose deadline is at most TTL less one second away (59 s) does not renew,
// if the store lets the guard trust all of the lease but its last second. A run
// with exactly 60 s does not renew on Redis. On DynamoDB, which lets 250 ms less
// be trusted, it renews once, 20 s after it began, if the work is not done by
// then.
//
// # When the store does not answer
//
// A lost answer means that the outcome is unknown: the same request is repeated
// by the same owner, which the store answers with the same lease. When the time
// for that is over the attempt is abandoned, so that nothing of it is left
// behind; when that fails too, the outcome is unknown. A store that says it applied
// nothing is asked again after a pause.
// After five seconds of either, or Wait when that is longer, but at most half of
// what the context had left, the run ends as *LockStoreUnavailable; one call
// takes at most two seconds. Release and abandon have one second with all
// repeats, less when the deadline is near or Shutdown was called.
//
// What a repeat is told says nothing about a request whose reply was lost before
// it. So a renewal or a release stays unknown when the store goes down after the
// lost reply, and the error is that of the lost reply.
//
// # What is not promised
//
// A lock stops overlap, not repetition: an event that Lambda delivers twice
// runs twice, one after the other. And no lock can stop work that has stalled:
// pass Lock.Fence to the resource and let it refuse a smaller one.
package guard
