package stream

import (
	"context"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
)

// Once returns work that runs once for each call(record), for WrapDynamoDB and WrapKinesis.
// A record that comes again is done without work. The work runs under the lock of the
// record's key, and gets this lock. The key of the answer is locked while the record's key
// is, so the two keys must differ.
// A good key has the stream's name and the sequence number, or an id in the record. Keep at
// least for as long as the stream keeps its records.
//
// If another run works on the same call, the batch stops at the record, as for a lock that is
// held. Each record costs two writes more, and three with idempotency.AtMostOnce. A record in
// doubt stops its shard until somebody settles the key.
//
// If an argument is nil, Once returns nil, which is a mistake in the program to Wrap.
func Once[R any](o *idempotency.Once, call func(context.Context, R) (idempotency.Call, error), work guard.Work[R]) guard.Work[R] {
	if o == nil || call == nil || work == nil {
		return nil
	}
	return func(ctx context.Context, lock guard.Lock, r R) error {
		c, err := call(ctx, r)
		if err != nil {
			return &guard.LockInvalid{Key: c.Key, Err: err}
		}
		ran := false
		_, _, err = idempotency.Do(ctx, o, c, func(ctx context.Context, _ guard.Lock) (struct{}, error) {
			ran = true
			return struct{}{}, work(ctx, lock, r)
		})
		if busy, ok := err.(*guard.LockBusy); ok && !ran {
			return &otherRuns{busy}
		}
		return err
	}
}

// otherRuns says that another run works on the same record.
type otherRuns struct{ *guard.LockBusy }

func (e *otherRuns) Unwrap() error { return e.LockBusy }
