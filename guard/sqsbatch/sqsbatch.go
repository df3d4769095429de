// Package sqsbatch guards functions that Amazon SQS feeds with batches. Each message has a
// key. In a batch, the handler takes one lock for each key. The messages of one key run
// one after the other under this lock, and different keys run at the same time. The
// answer names the messages that failed, and SQS delivers these messages again.
//
// The event source mapping must have FunctionResponseTypes: [ReportBatchItemFailures].
// Without this setting Lambda does not read the answer, and deletes every message of the
// batch, also the messages that failed.
//
// The result of one message:
//
//	the work returned nil                       done
//	the work returned an error, panicked or     failed; other messages of the key run
//	called runtime.Goexit
//	key function: error, panic, Goexit          failed, without a lock
//	the key cannot be locked                    failed
//	another owner holds the lock                failed; with WrapDelay the first few times visible again soon
//	store unavailable, unknown or corrupt       failed
//	lock lost under the work, or found lost     all messages of the key failed: nobody knows
//	at the release                              when the lock was lost
//	not begun when the time is over             failed
//
// If the store is unavailable for one key, and has not granted or refused any lock of the
// batch so far, the batch asks for no more locks: the messages of the other keys fail, too.
// Otherwise each key would wait for the store.
//
// The answer names each failed message id once, also if the batch has the id twice. The
// message is logged to [slog.Default] with key and
// reason; a panic with its stack. Bodies are not logged. If the work returns the error of
// another lock, it counts as any other error.
//
// # Queues with an order
//
// A queue whose name ends in .fifo keeps the order of each message group. When a message
// fails, all later messages of its group are in the answer, too, and do not run. Other
// groups go on. If messages of one group have different keys, they still run in order,
// and a key may be locked again for a later message. If group and key are the same thing,
// SQS already delivers one message at a time. Then no lock is needed, unless other
// programs use the key. Messages of a standard queue may have a group, too (fair queues),
// but such a group has no order.
//
// # One message's run for all
//
// With [guard.Options.Coalesce] the work runs once for all messages of a key in a batch, with the first of them. A message that finds the
// lock held, and another message's run waiting, is done: that run begins later, and does its work, too.
//
// # How long to wait
//
// SQS counts each delivery of a message, also a delivery that only finds the lock held.
// After maxReceiveCount deliveries the message goes to the dead-letter queue. So give the
// guard a short Options.Wait (boot: LOCK_WAIT), about as long as others hold the lock, and
// choose maxReceiveCount for the rest. A message that failed is visible again after the
// queue's visibility timeout. With WrapDelay a message whose lock was held is visible
// again after 1 second, then after 4, 16, 64 and so on, but not later than 12 seconds (and Options.Wait) after the end of the holder's lease: so long may runs
// keep the key that have died while they waited. So with a lease of up to 60 seconds (the default of Options.TTL) the dead cost a message at most four
// deliveries, and maxReceiveCount must be 5 or more. With Wrap maxReceiveCount - 1 visibility timeouts must be longer than the lease.
//
// # When the whole invocation is an error
//
//   - A mistake in the program, see package guard.
//   - The event is not of SQS. Its success would be the loss of its records.
//   - There are no messages, which SQS never sends.
//   - A message has no id, so its failure could not be reported and SQS would delete it.
//
// Then nothing runs.
//
// If work goes on after the end of its context, the answer has to wait. When Lambda's own
// deadline passes, there is no answer, and SQS delivers all messages again, also those
// that are done.
package sqsbatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/once"
	"github.com/lambdalock/lambdalock/internal/lib/eventsource"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	// atOnce is how many keys of one batch run at the same time.
	atOnce = 10
	// delayTime bounds one call of Delay.
	delayTime = 2 * time.Second
	// answerTime is kept for the answer when such calls take long.
	answerTime = 300 * time.Millisecond
	// maxDelay is the longest delay. SQS allows 12 hours, less the time since the delivery.
	maxDelay = 11 * time.Hour
	// deadTurns is how long the turns of runs that have died in the queue may take together, without parked places.
	deadTurns = 12 * time.Second
)

// Wrap returns a Lambda handler that runs work for each message while the lock of
// key(message) is held. A mistake in the program is an error of every invocation, see
// package guard.
func Wrap(g *guard.Guard, key guard.KeyFunc[events.SQSMessage], work guard.Work[events.SQSMessage]) guard.Wrapped[json.RawMessage, events.SQSEventResponse] {
	return wrap(settings{g, key, work, nil, atOnce})
}

// WrapDelay is Wrap with a function that is called for each message that failed because its lock was busy. On a queue with an
// order it is also called for the later messages of the group. It should make the message visible again after d: call SQS's
// ChangeMessageVisibility with the message's receipt handle. This needs an SQS client and the permission
// sqs:ChangeMessageVisibility. d is in whole seconds. It begins with 1 second and grows with the message's receive count up to the end
// of the holder's lease. While the key is completed or in its cooldown, d is the time until it is free, at most 11 hours. For a
// key in doubt delay is not called.
//
// A call may take two seconds, and at most half of the time that is left. If a call
// takes all of it, delay is not called again in the batch. An error is logged; the
// message is then visible again after the queue's visibility timeout.
func WrapDelay(g *guard.Guard, key guard.KeyFunc[events.SQSMessage], work guard.Work[events.SQSMessage], delay func(ctx context.Context, m events.SQSMessage, d time.Duration) error) guard.Wrapped[json.RawMessage, events.SQSEventResponse] {
	return wrap(settings{g, key, work, delay, atOnce})
}

type settings struct {
	guard       *guard.Guard
	key         guard.KeyFunc[events.SQSMessage]
	work        guard.Work[events.SQSMessage]
	makeVisible func(ctx context.Context, m events.SQSMessage, d time.Duration) error // may be nil
	slots       int                                                                   // how many keys of a batch run at the same time
}

func wrap(s settings) guard.Wrapped[json.RawMessage, events.SQSEventResponse] {
	mistake := s.guard.Validate()
	switch {
	case mistake != nil:
	case s.key == nil:
		mistake = errors.New("sqsbatch: the key function is nil")
	case s.work == nil:
		mistake = errors.New("sqsbatch: the work is nil")
	}
	return guard.WrapUnlocked(func(ctx context.Context, event json.RawMessage) (events.SQSEventResponse, error) {
		if mistake != nil {
			return events.SQSEventResponse{}, mistake
		}
		in, err := eventsource.Read[events.SQSEvent]("sqsbatch", event, eventsource.SQS)
		if err != nil {
			return events.SQSEventResponse{}, err
		}
		for i := range in.Records {
			if in.Records[i].MessageId == "" {
				return events.SQSEventResponse{}, fmt.Errorf("sqsbatch: record %d of %d has no messageId, so its failure could not be reported; nothing was run", i+1, len(in.Records))
			}
		}
		b := &batch{settings: s, requestID: s.guard.HolderInfo(ctx).ID}
		b.run(ctx, in.Records)
		return b.answer(), nil
	})
}

// visibility is after how long a message becomes visible again whose lock was busy, in whole seconds:
//
//	the work is done       when the key is free
//	the key is in doubt    0: it does not become free by itself, so the queue's visibility timeout is soon enough
//	otherwise              1, 4, 16, ... s, as many times 4 as the message was delivered before, but deadTurns after the end of the lease
//	                       at the latest: most holders release early, and one that died must not use up maxReceiveCount
func visibility(m events.SQSMessage, busy *guard.LockBusy) time.Duration {
	ends := (min(max(busy.StateEndsIn, 1), maxDelay) + time.Second - 1).Truncate(time.Second)
	switch {
	case busy.State == lockstore.InDoubt:
		return 0
	case busy.State.Done():
		return ends
	}
	received, err := strconv.Atoi(m.Attributes["ApproximateReceiveCount"])
	if err != nil || received < 1 {
		received = 1
	}
	return min(ends+deadTurns, time.Second<<(2*(min(received, 10)-1))) // the tenth is longer than maxDelay
}

// Once returns work that runs once for each call(message), for Wrap and WrapDelay. A message
// that comes again is done without work. The work runs under the lock of the batch's key,
// and gets this lock. The key of the result is locked while the batch's key is, so
// the two keys must differ.
//
// A redrive from the dead-letter queue gives a message a new id. So make the call's key of a
// field of the body, if there is one. idempotency.Options.ResultTime must be at least as long
// as the queue and its dead-letter queue together retain a message. If another run works on the same call,
// the message fails as one whose lock is held. Each message costs two writes more, and three with idempotency.AtMostOnce.
//
// If an argument is nil, or idempotency.New has not made o, Once returns nil, which is a mistake in the
// program to Wrap.
func Once(o *idempotency.Once, call func(context.Context, events.SQSMessage) (idempotency.Call, error), work guard.Work[events.SQSMessage]) guard.Work[events.SQSMessage] {
	return once.Work(o, call, work)
}
