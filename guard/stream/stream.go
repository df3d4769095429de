// Package stream guards functions that a DynamoDB or Kinesis stream feeds with batches.
// Records run in the stream's order, one at a time. Consecutive records of the same key
// run under one lock. At the first failure the batch stops, and the answer names the
// record that failed. Lambda delivers this record and all later records again, and no
// earlier record.
//
// The event source mapping must have FunctionResponseTypes: [ReportBatchItemFailures].
// Without this setting Lambda does not read the answer, and takes the whole batch for
// done, also the record that failed.
//
// Where a batch stops:
//
//	the work returned an error, panicked or     at this record
//	called runtime.Goexit
//	key function: error, panic, Goexit          at this record; earlier records run
//	the key cannot be locked                    at this record
//	another owner holds the lock                at the first record of the key
//	store unavailable, unknown or corrupt       at the first record of the key
//	lock lost under the work, or found lost     at the first record that ran under the lock:
//	at the release                              nobody knows when the lock was lost
//	the time is over                            at the first record that has not begun
//
// The failure is logged to [slog.Default] with key, sequence number and reason; a panic
// with its stack. The data of a record is not logged. If the work returns the error of
// another lock, it counts as any other error.
//
// # One record's run for all
//
// With [guard.Options.Coalesce] the work runs once for consecutive records of a key, with the first of them. A record that finds the
// lock held, and another record's run waiting, is done: that run begins later, and does its work, too.
//
// # A record that always fails
//
// Such a record blocks its shard until the stream drops it, by default after a day or more (with a ParallelizationFactor
// above 1: its part of the shard). So set MaximumRetryAttempts or MaximumRecordAgeInSeconds, and an OnFailure
// destination, on the event source mapping. Lambda then gives up this record and those behind it in the batch, and tells the
// destination where they were. With BisectBatchOnFunctionError it splits the batch first, so that few good records are given
// up. If the work knows that a record can never succeed, it should store the record somewhere and return nil.
//
// Lambda counts a held lock as an attempt, too. If the limit is too low, Lambda gives up
// good records. Give the guard an Options.Wait (boot: LOCK_WAIT) that is longer than
// others hold the lock. Nothing is lost by it: no other record of the shard could run in
// this time.
//
// # When the whole invocation is an error
//
//   - A mistake in the program, see package guard.
//   - The event is not of the handler's source. Its success would be the loss of its records.
//   - There are no records. Only a tumbling window ends so, and the package has no windows.
//   - A record has no sequence number, so its failure could not be reported.
//
// Then nothing runs.
//
// If work goes on after the end of its context, the answer has to wait. When Lambda's own
// deadline passes, there is no answer, and Lambda delivers all records again.
package stream

import (
	"context"
	"encoding/json"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/once"
	"github.com/lambdalock/lambdalock/internal/lib/eventsource"
)

// WrapDynamoDB returns a Lambda handler that runs work for each record of a DynamoDB
// stream while the lock of key(record) is held.
func WrapDynamoDB(g *guard.Guard, key guard.KeyFunc[events.DynamoDBEventRecord], work guard.Work[events.DynamoDBEventRecord]) guard.Wrapped[json.RawMessage, events.DynamoDBEventResponse] {
	s := shard[events.DynamoDBEventRecord]{g, key, work, func(r events.DynamoDBEventRecord) string { return r.Change.SequenceNumber }}
	return guard.WrapUnlocked(func(ctx context.Context, event json.RawMessage) (events.DynamoDBEventResponse, error) {
		failed, err := s.run(ctx, func() ([]events.DynamoDBEventRecord, error) {
			in, err := eventsource.Read[events.DynamoDBEvent]("stream", event, eventsource.DynamoDB)
			return in.Records, err
		})
		if err != nil {
			return events.DynamoDBEventResponse{}, err
		}
		out := events.DynamoDBEventResponse{BatchItemFailures: []events.DynamoDBBatchItemFailure{}}
		if failed != "" {
			out.BatchItemFailures = append(out.BatchItemFailures, events.DynamoDBBatchItemFailure{ItemIdentifier: failed})
		}
		return out, nil
	})
}

// WrapKinesis returns a Lambda handler that runs work for each record of a Kinesis stream
// while the lock of key(record) is held.
func WrapKinesis(g *guard.Guard, key guard.KeyFunc[events.KinesisEventRecord], work guard.Work[events.KinesisEventRecord]) guard.Wrapped[json.RawMessage, events.KinesisEventResponse] {
	s := shard[events.KinesisEventRecord]{g, key, work, func(r events.KinesisEventRecord) string { return r.Kinesis.SequenceNumber }}
	return guard.WrapUnlocked(func(ctx context.Context, event json.RawMessage) (events.KinesisEventResponse, error) {
		failed, err := s.run(ctx, func() ([]events.KinesisEventRecord, error) {
			in, err := eventsource.Read[events.KinesisEvent]("stream", event, eventsource.Kinesis)
			return in.Records, err
		})
		if err != nil {
			return events.KinesisEventResponse{}, err
		}
		out := events.KinesisEventResponse{BatchItemFailures: []events.KinesisBatchItemFailure{}}
		if failed != "" {
			out.BatchItemFailures = append(out.BatchItemFailures, events.KinesisBatchItemFailure{ItemIdentifier: failed})
		}
		return out, nil
	})
}

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
