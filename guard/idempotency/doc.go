// Package idempotency answers a repeat of an event with the first result. A lock stops overlap;
// with this package a repeat gets the result that was stored, and the work does not run again.
//
// [Do] runs work under the lock of a key, and stores the result in the key's entry. The
// write that stores the result is the one that ends the lease. For Options.ResultTime
// nobody gets the key, and other calls with this key and input return the result, if they can read it.
//
//	the key is free                        the work runs, and its result is stored for Options.ResultTime
//	another run works                      *guard.LockBusy; with Options.Wait of the guard, its result
//	                                       within about two seconds after it is stored, if Wait is
//	                                       long enough
//	the result is stored                   the result and a *Replay; the work does not run
//	the result is stored, for other input  *RepeatMismatch
//	done, but there is no result to read   *RepeatNoAnswer
//	in doubt, with AtMostOnce              *RepeatInDoubt
//
// # What is promised
//
// Once a result is stored, no repeat's work runs within Options.ResultTime, unless the
// store has lost the result. No repeat gets the result of another key. If both calls set
// Call.Fingerprint, none gets the result of other input. Only ResolveEffect can store a result that no run made: a
// repeat gets it with any input.
//
// What happens after a run that had no result is your choice:
//
//	AtLeastOnce (default)  the work may run again after a run that was killed, that stood still
//	                       longer than its lease, that failed, or that could not store its result
//	AtMostOnce             the work has at most one effect: if such a run had begun its work, the
//	                       key is in doubt, until somebody resolves it with lockctl resolve, with
//	                       ResolveEffect, or with ResolveNoEffect of the store. AtMostOnce costs a write more
//
// A fence does not change this: it refuses a late writer, and does not stop a second run.
//
// If the effect must happen exactly once, write the effect and the result in one transaction.
// On DynamoDB [Prepare] returns what to store, and CompleteItem of a dynamostore.Store makes an
// item of a TransactWriteItems of it. Then AtLeastOnce is right, because a run without a result has had
// no effect.
//
// AtMostOnce does not hold where the store forgets: a failover, a flush or an eviction of Redis
// can lose results and the marks that work has started.
//
// # Work under AtMostOnce
//
// An error, a panic and runtime.Goexit do not free the key, because the work may have had
// its effect: the key is in doubt when the lease ends. If the work returns a result after its context or its lease has ended, the result is
// stored, unless somebody has revoked the lease or resolved the key, or another run was granted it.
// Work that knows that it had no effect returns [NoEffect] of its error. Then the lease is released.
// The key is in doubt only if this release fails, for example after a revoke. NoEffect is right, for example, for the *guard.LockBusy of a lock inside the work, if nothing was done before.
//
// # The result
//
// The result is stored as JSON. Before that, the JSON is decoded and encoded again. If this gives
// another text, or if the text has more than Options.MaxResultBytes bytes, only the reason is
// stored. The first caller still gets the result, Report.CompleteErr says why (or why nothing was
// stored), and a repeat gets a *RepeatNoAnswer. What JSON leaves out, such as an unexported field, a repeat does not get.
// If Out is any, a repeat gets the text itself as a json.RawMessage. If Out is struct{}, there
// is nothing to read, and a repeat needs no result.
//
// A result is data of yours. It is in no error, log line or metric of this package. Of
// the input only 16 bytes of a hash of Fingerprint are stored; whoever can read the store
// can guess a small one by hashing candidates.
package idempotency
