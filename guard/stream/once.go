package stream

import (
	"context"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/once"
)

// Once returns work that runs once for each call(record), for WrapDynamoDB and WrapKinesis.
// A record that comes again is done without work. The work runs under the lock of the
// record's key, and gets this lock. The key of the result is locked while the record's key
// is, so the two keys must differ.
// A good key has the stream's name and the sequence number, or an id in the record.
// idempotency.Options.ResultTime must be at least as long as the stream keeps its records.
//
// If another run works on the same call, the batch stops at the record, as for a lock that is
// held. Each record costs two writes more, and three with idempotency.AtMostOnce. A record in
// doubt stops its shard until somebody resolves the key.
//
// If an argument is nil, or idempotency.New has not made o, Once returns nil, which is a mistake in the
// program to Wrap.
func Once[R any](o *idempotency.Once, call func(context.Context, R) (idempotency.Call, error), work guard.Work[R]) guard.Work[R] {
	return once.Work(o, call, work)
}
