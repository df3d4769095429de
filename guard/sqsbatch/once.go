package sqsbatch

import (
	"context"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/once"
)

// Once returns work that runs once for each call(message), for Wrap and WrapDelay. A message
// that comes again is done without work. The work runs under the lock of the batch's key,
// and gets this lock. The key of the result is locked while the batch's key is, so
// the two keys must differ.
//
// A redrive from the dead-letter queue gives a message a new id. So make the call's key of a
// field of the body, if there is one. idempotency.Options.ResultTime must be at least as long
// as the queue retains its messages. If another run works on the same call, the message fails
// as one whose lock is held. Each message costs two writes more, and three with idempotency.AtMostOnce.
//
// If an argument is nil, or idempotency.New has not made o, Once returns nil, which is a mistake in the
// program to Wrap.
func Once(o *idempotency.Once, call func(context.Context, events.SQSMessage) (idempotency.Call, error), work guard.Work[events.SQSMessage]) guard.Work[events.SQSMessage] {
	return once.Work(o, call, work)
}
