// Package sqsbatch guards functions that Amazon SQS feeds with batches. Each
// message has its key. One lock for each key is taken in a batch; the key's
// messages run one after the other under it, and different keys run at the same
// time. The answer names the messages that failed, and SQS delivers those again.
//
// The event source mapping must have FunctionResponseTypes:
// [ReportBatchItemFailures]. Without it Lambda does not read the answer and
// deletes every message of the batch, the failed ones too.
//
// What comes of one message:
//
//	the work returned nil                       done
//	the work returned an error, panicked or     failed; the key's other messages
//	called runtime.Goexit                       go on
//	key function: error, panic, Goexit          failed, without a lock
//	key cannot be locked                        failed
//	lock held by another                        failed, sooner visible with Options.Delay
//	store unavailable, unknown or corrupt       failed; while the store has answered for no
//	                                            key, those not begun as well
//	lock lost, found then or at the release     all of the key failed: nobody knows since when
//	not begun when the time is over             failed
//
// A message that fails is in the answer once, and is logged with its key and the
// reason, a panic with its stack, to [slog.Default]. Bodies are not logged. An
// error of another lock that the work returns is an error like any other.
//
// # Queues with an order
//
// A queue whose name ends in .fifo keeps the order of each message group: when
// one of its messages fails, it and all later ones of its group are in the
// answer, and these do not run. Other groups go on. Messages of a group that have
// different keys run in order, so one of their keys may be locked again. If group
// and key are the same thing, SQS already runs one at a time and no lock is
// needed, unless others use the key too. A standard queue's messages may have a
// group as well (fair queues); it has no order and none is kept.
//
// # How long to wait
//
// Each delivery of a message counts towards maxReceiveCount, also one that only
// found its lock held, and after those the message is in the dead-letter queue.
// So give the guard a short Options.Wait (boot: LOCK_WAIT), about as long as
// others hold the lock, and let maxReceiveCount cover the rest. A message that
// failed is visible again when the queue's visibility timeout is over;
// Options.Delay makes that 1 to 5 seconds for a message whose lock was held. Then
// five deliveries last some 15 seconds.
//
// # When the whole invocation is an error
//
// For a mistake in the program (a nil argument), and for a batch with a message
// that has no id: its failure could not be reported, and it would be deleted.
// Nothing runs then. A batch without messages is a success.
//
// Work that runs on after the end of its context holds the answer back. When
// Lambda's own deadline passes there is none, and SQS delivers all messages again,
// also what was done.
package sqsbatch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
)

// Options are a batch's settings; the zero value is good for most functions.
type Options struct {
	// Concurrency is how many keys of one batch are worked on at a time. 0 is 10.
	Concurrency int

	// Delay, when not nil, is called for each message that failed because its
	// lock was held, and on an ordered queue for the later ones of its group. It
	// is to make the message visible again after d, with SQS's
	// ChangeMessageVisibility and the message's receipt handle. It needs an SQS
	// client of the caller's own, and the function's role the permission
	// sqs:ChangeMessageVisibility. d is whole seconds, 1 to 5, growing with the
	// message's receive count. A call has two seconds and at most half of what
	// is left; after one that takes them all it is not called again in the
	// batch. What it fails at is logged, and the message is then visible again
	// when the queue's own timeout is over.
	Delay func(ctx context.Context, m events.SQSMessage, d time.Duration) error
}

const (
	defaultConcurrency = 10
	maxConcurrency     = 1000

	// delayTime bounds one call of Options.Delay.
	delayTime = 2 * time.Second
	// answerTime is kept for the answer when calls of it run late.
	answerTime = 300 * time.Millisecond
	// maxDelay is the longest delay, in seconds.
	maxDelay = 5
)

// Wrap returns a Lambda handler that runs work for each message while the lock
// of key(message) is held. Mistakes in the program are errors of every
// invocation.
func Wrap(g *guard.Guard, key func(context.Context, events.SQSMessage) (string, error), work func(context.Context, guard.Lock, events.SQSMessage) error) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	handler, err := WrapWith(g, key, work, Options{})
	if err != nil {
		return func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
			return events.SQSEventResponse{}, err
		}
	}
	return handler
}

// WrapWith is Wrap with options. It returns mistakes in the program at once.
func WrapWith(g *guard.Guard, key func(context.Context, events.SQSMessage) (string, error), work func(context.Context, guard.Lock, events.SQSMessage) error, opt Options) (func(context.Context, events.SQSEvent) (events.SQSEventResponse, error), error) {
	switch {
	case g == nil:
		return nil, errors.New("sqsbatch: the guard is nil")
	case key == nil:
		return nil, errors.New("sqsbatch: the key function is nil")
	case work == nil:
		return nil, errors.New("sqsbatch: the work is nil")
	case opt.Concurrency < 0 || opt.Concurrency > maxConcurrency:
		return nil, fmt.Errorf("sqsbatch: Concurrency is %d; want 0 (the default) to %d", opt.Concurrency, maxConcurrency)
	case opt.Concurrency == 0:
		opt.Concurrency = defaultConcurrency
	}
	return func(ctx context.Context, in events.SQSEvent) (events.SQSEventResponse, error) {
		for i := range in.Records {
			if in.Records[i].MessageId == "" {
				return events.SQSEventResponse{}, fmt.Errorf("sqsbatch: record %d of %d has no messageId, so its failure could not be reported; nothing was run", i+1, len(in.Records))
			}
		}
		b := &batch{guard: g, key: key, work: work, opt: opt}
		b.run(ctx, in.Records)
		return b.answer(), nil
	}, nil
}

// visibility is 1 to 5 seconds: the more often the message has come, the longer.
func visibility(m events.SQSMessage) time.Duration {
	received, err := strconv.Atoi(m.Attributes["ApproximateReceiveCount"])
	if err != nil || received < 1 {
		return time.Second
	}
	return time.Duration(min(received, maxDelay)) * time.Second
}
