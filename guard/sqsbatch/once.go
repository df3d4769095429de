package sqsbatch

import (
	"context"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
)

// Once returns work that runs once for each call(message), for Wrap and WrapWith. A message
// that comes again is done without work. The work runs under the lock of the batch's key,
// and gets this lock. The key of the answer is locked while the batch's key is, so
// the two keys must differ.
//
// A redrive from the dead-letter queue gives a message a new id. So make the call's key of a
// field of the body, if there is one. Keep at least for as long as the queue retains its
// messages. If another run works on the same call, the message fails as one whose lock is
// held. Each message costs two writes more, and three with idempotency.AtMostOnce.
//
// If an argument is nil, Once returns nil, which is a mistake in the program to Wrap.
func Once(o *idempotency.Once, call func(context.Context, events.SQSMessage) (idempotency.Call, error), work guard.Work[events.SQSMessage]) guard.Work[events.SQSMessage] {
	if o == nil || call == nil || work == nil {
		return nil
	}
	return func(ctx context.Context, lock guard.Lock, m events.SQSMessage) error {
		c, err := call(ctx, m)
		if err != nil {
			return &guard.LockInvalid{Key: c.Key, Err: err}
		}
		ran := false
		_, _, err = idempotency.Do(ctx, o, c, func(ctx context.Context, _ guard.Lock) (struct{}, error) {
			ran = true
			return struct{}{}, work(ctx, lock, m)
		})
		if busy, ok := err.(*guard.LockBusy); ok && !ran {
			return &otherRuns{busy}
		}
		return err
	}
}

// otherRuns says that another run works on the same message.
type otherRuns struct{ *guard.LockBusy }

func (e *otherRuns) Unwrap() error { return e.LockBusy }
