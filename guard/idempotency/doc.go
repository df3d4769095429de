// Package idempotency gives a repeat of an event the first answer. A lock stops overlap;
// with this package a repeat gets the answer that was kept, and the work does not run again.
//
// [Do] runs work under the lock of a key, and keeps the answer in the key's entry. The
// write that keeps the answer is the one that ends the lease. While the answer is kept,
// nobody gets the key, and every other call with this key and input returns the answer.
//
//	the key is free                       the work runs, and its answer is kept for Options.ResultTime
//	another run works on it               *guard.LockBusy; with Options.Wait of the guard, its answer
//	                                      within about two seconds after it is kept
//	the answer is kept                    the answer and a *Replay; the work does not run
//	the answer is kept, for other input   *RepeatMismatch
//	done, but there is no answer to read  *RepeatNoAnswer
//	in doubt, with AtMostOnce                 *RepeatInDoubt
//
// # What is promised
//
// A repeat within Options.ResultTime gets the first answer, and its work does not run. No repeat
// gets the answer of another key or, if both calls set Call.Fingerprint, of other input. Only
// ResolveEffect can give an answer that no run returned. It is for any input.
//
// What happens after a run that had no answer is your choice:
//
//	AtLeastOnce (default)  the work may run again after a run that was killed, that stood still
//	                    longer than its lease, that failed, or that could not keep its answer
//	AtMostOnce              the work runs at most once: after such a run the key is in doubt, until
//	                    somebody settles it with lockctl settle, or with ResolveEffect or
//	                    ResolveNoEffect. It costs a write more
//
// A fence does not change this: it refuses a late writer, and does not stop a second run.
//
// If the effect must happen exactly once, write the effect and the answer in one transaction.
// On DynamoDB [Prepare] returns what to keep, and Kept of a dynamostore.Store makes a part of a
// TransactWriteItems of it. Then AtLeastOnce is right, because a run without an answer has had
// no effect.
//
// AtMostOnce does not hold where the store forgets: a failover, a flush or an eviction of Redis
// loses answers, and loses that work has begun.
//
// # Work under AtMostOnce
//
// An error, a panic and runtime.Goexit leave the key in doubt, because the work may have had
// its effect. If the context or the lease has ended, it depends on what the work returns: an
// answer is kept also then, unless somebody has broken the lease or settled the key. Work that
// knows that it had no effect returns [NoEffect] of its error. Then the lease is released; if
// the store cannot be reached until MaxHold or the deadline, the key is in doubt. An example
// is the *guard.LockBusy of a lock inside the work, if nothing was done before.
//
// # The answer
//
// The answer is kept as JSON. Before it is kept, it is read back; if it does not give the
// same text again, or if it has more than Options.MaxResultBytes bytes, only a mark is kept. The
// first caller still gets its answer, Report.CompleteErr says why, and a repeat gets a
// *RepeatNoAnswer. What JSON leaves out, such as an unexported field, is not in the answer
// of a repeat. If Out is any, a repeat gets the text itself as a json.RawMessage. If Out is
// struct{}, there is nothing to read, and every repeat gets it.
//
// An answer is data of yours. It is in no error, log line or metric of this package. The
// input is not kept, only 16 bytes of a hash of it; whoever can read the store can
// guess a small input by hashing candidates.
package idempotency
