// Package stream guards functions that a DynamoDB or Kinesis stream feeds with
// batches. Records run in the stream's order, one at a time. Consecutive records
// of the same key run under one lock. At the first failure the batch stops, and
// the answer names the record that failed: Lambda delivers that one and all later
// ones again, and nothing before it.
//
// The event source mapping must have FunctionResponseTypes:
// [ReportBatchItemFailures]. Without it Lambda does not read the answer and takes
// the whole batch for done, what failed included.
//
// Where a batch stops:
//
//	the work returned an error, panicked or    at that record
//	called runtime.Goexit
//	key function: error, panic, Goexit         at that record; those before it run
//	key cannot be locked                       at that record
//	lock held by another                       at the first record that needs it
//	store unavailable, unknown or corrupt      at the first record that needs it
//	lock lost, found then or at the release    at the first record that ran under it: nobody
//	                                           knows since when
//	the time is over                           at the first record that is not begun
//
// The failure is logged with its key, sequence number and reason, a panic with
// its stack, to [slog.Default]; the data is not. An error of another lock that
// the work returns is an error like any other.
//
// # A record that always fails
//
// It blocks its shard: Lambda delivers it again and again, and by default until
// the stream drops it, which is a day for DynamoDB and a day or more for Kinesis.
// No later record of the shard is worked on in that time. So set
// MaximumRetryAttempts or MaximumRecordAgeInSeconds and an OnFailure destination
// on the event source mapping; Lambda then gives such a record up and reports
// where it was. Work that knows that a record can never succeed should keep it
// somewhere and return nil.
//
// A held lock counts as an attempt too, so that a limit which is too low gives up
// records that are sound. Give the guard an Options.Wait (boot: LOCK_WAIT) that
// is longer than others hold the lock: nothing else of the shard could go on
// meanwhile anyway.
//
// # When the whole invocation is an error
//
// For a mistake in the program (a nil argument), and for a batch with a record
// that has no sequence number: its failure could not be reported. Nothing runs
// then. A batch without records is a success.
//
// Work that runs on after the end of its context holds the answer back. When
// Lambda's own deadline passes there is none, and all records are delivered again.
package stream

import (
	"context"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
)

// WrapDynamoDB returns a Lambda handler that runs work for each record of a
// DynamoDB stream while the lock of key(record) is held.
func WrapDynamoDB(g *guard.Guard, key func(context.Context, events.DynamoDBEventRecord) (string, error), work func(context.Context, guard.Lock, events.DynamoDBEventRecord) error) func(context.Context, events.DynamoDBEvent) (events.DynamoDBEventResponse, error) {
	s := shard[events.DynamoDBEventRecord]{g, key, work, func(r events.DynamoDBEventRecord) string { return r.Change.SequenceNumber }}
	return func(ctx context.Context, in events.DynamoDBEvent) (events.DynamoDBEventResponse, error) {
		failed, err := s.run(ctx, in.Records)
		if err != nil {
			return events.DynamoDBEventResponse{}, err
		}
		out := events.DynamoDBEventResponse{BatchItemFailures: []events.DynamoDBBatchItemFailure{}}
		if failed != "" {
			out.BatchItemFailures = append(out.BatchItemFailures, events.DynamoDBBatchItemFailure{ItemIdentifier: failed})
		}
		return out, nil
	}
}

// WrapKinesis returns a Lambda handler that runs work for each record of a
// Kinesis stream while the lock of key(record) is held.
func WrapKinesis(g *guard.Guard, key func(context.Context, events.KinesisEventRecord) (string, error), work func(context.Context, guard.Lock, events.KinesisEventRecord) error) func(context.Context, events.KinesisEvent) (events.KinesisEventResponse, error) {
	s := shard[events.KinesisEventRecord]{g, key, work, func(r events.KinesisEventRecord) string { return r.Kinesis.SequenceNumber }}
	return func(ctx context.Context, in events.KinesisEvent) (events.KinesisEventResponse, error) {
		failed, err := s.run(ctx, in.Records)
		if err != nil {
			return events.KinesisEventResponse{}, err
		}
		out := events.KinesisEventResponse{BatchItemFailures: []events.KinesisBatchItemFailure{}}
		if failed != "" {
			out.BatchItemFailures = append(out.BatchItemFailures, events.KinesisBatchItemFailure{ItemIdentifier: failed})
		}
		return out, nil
	}
}
