package sqsbatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/isolate"
	"github.com/lambdalock/lambdalock/guard/internal/once"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
)

type batch struct {
	settings
	requestID string // for the log; asked for once, because guard.Options.HolderInfo may hang, and a batch has many lines
	records   []*record
	works     atomic.Bool // the store has granted or refused a lock of this batch, in time
	down      atomic.Bool // the store was unavailable to a key
	over      atomic.Bool // the guard had no time for a key
	slow      atomic.Bool // a call of makeVisible took all its time
}

// record is one message of the batch.
type record struct {
	events.SQSMessage
	key   string
	noKey error // why the key function failed
	group *group
	done  bool  // the work returned nil, and under the lock
	err   error // why the message failed
}

// group is the messages that have to stay in order: those of a message group if the queue
// has an order, otherwise one message alone. Only one goroutine at a time works on a group.
type group struct {
	failed bool          // a message failed; no later message runs
	delay  time.Duration // for messages that fail after a message's lock was busy; 0 is the queue's visibility timeout
}

// busy notes why the message fails: its group gets the longest delay of its messages.
func (r *record) busy(err *guard.LockBusy) {
	r.group.delay = max(r.group.delay, visibility(r.SQSMessage, err))
}

var (
	errOrder = errors.New("not begun: an earlier message of its group failed")
	errSlow  = errors.New("no time left for another delay")
	errOver  = errors.New("not begun: there was no time left for another key of the batch")
	errDown  = errors.New("not begun: the store was unavailable for another key, and has given or refused no lock of the batch in time")
)

// run works on all messages in rounds. From each group a round takes the messages up to
// the next change of keys, so that it locks each key once. A batch has more than one round
// only if a group has several keys.
func (b *batch) run(ctx context.Context, messages []events.SQSMessage) {
	b.plan(ctx, messages)
	slots := make(chan struct{}, b.slots)
	for pending := b.records; len(pending) > 0; {
		var keys [][]*record
		keys, pending = b.round(ctx, pending)
		var all sync.WaitGroup
		for _, records := range keys {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				b.hold(ctx, records)
			})
		}
		all.Wait()
	}
}

func (b *batch) plan(ctx context.Context, messages []events.SQSMessage) {
	groups := map[string]*group{}
	for _, m := range messages {
		r := &record{SQSMessage: m, group: new(group)}
		b.records = append(b.records, r)
		if strings.HasSuffix(m.EventSourceARN, ".fifo") {
			id := m.Attributes["MessageGroupId"]
			if groups[id] == nil {
				groups[id] = new(group)
			}
			r.group = groups[id]
		}
		r.noKey = isolate.Run(func() (err error) {
			r.key, err = b.key(ctx, m)
			return err
		})
	}
}

// round takes the pending messages whose turn it is, by key. A message without a key fails
// when its turn comes and not before: an earlier message of its group may fail first.
func (b *batch) round(ctx context.Context, pending []*record) (keys [][]*record, later []*record) {
	at := map[string]int{}      // a key's place in keys
	turn := map[*group]string{} // the key whose turn it is in a group
	waits := map[*group]bool{}  // groups whose rest waits for another round
	for _, r := range pending {
		key, begun := turn[r.group]
		switch {
		case waits[r.group], begun && (r.noKey != nil || key != r.key):
			waits[r.group] = true
			later = append(later, r)
			continue
		case r.group.failed:
			b.fail(ctx, r, errOrder)
			continue
		case r.noKey != nil:
			b.fail(ctx, r, fmt.Errorf("the key function failed: %w", r.noKey))
			continue
		}
		turn[r.group] = r.key
		i, ok := at[r.key]
		if !ok {
			i = len(keys)
			at[r.key] = i
			keys = append(keys, nil)
		}
		keys[i] = append(keys[i], r)
	}
	return keys, later
}

// hold works on the messages of one key, under its lock. If the guard coalesces, the run of the first message does the work of the others,
// too. If the first is covered, the next one asks for itself: the run that waits may be its own earlier try.
func (b *batch) hold(ctx context.Context, records []*record) {
	if !b.guard.Coalesces() {
		b.lock(ctx, records, nil)
		return
	}
	for len(records) > 0 && b.lock(guard.WithEventID(ctx, records[0].MessageId), records[:1], records[1:]) {
		records = records[1:]
	}
}

// lock runs the messages under the lock of their key. What becomes of them becomes of others, too. It returns true if the messages
// are done because another run of the work waits, which says nothing of the others.
func (b *batch) lock(ctx context.Context, records, others []*record) (covered bool) {
	all := slices.Concat(records, others)
	// Each key would wait once more for a hook of the guard that hangs, and the answer would be late.
	if b.over.Load() {
		b.failAll(ctx, all, errOver)
		return false
	}
	// Each key would wait in vain for a store that never answers.
	if b.down.Load() && !b.works.Load() {
		b.failAll(ctx, all, errDown)
		return false
	}
	var said error // the error of the work
	err := isolate.Run(func() error {
		return b.guard.Do(ctx, records[0].key, func(ctx context.Context, lock guard.Lock) error {
			b.works.Store(true)
			said = b.each(ctx, lock, records)
			return said
		})
	})
	if err == said {
		for _, r := range others {
			switch {
			case r.group.failed:
				b.fail(ctx, r, errOrder)
			case said != nil:
				b.fail(ctx, r, said)
			default:
				r.done = true
			}
		}
		return false
	}
	// The error is the guard's own: each returns none of these types.
	switch e := err.(type) {
	case *guard.LockCovered:
		b.works.Store(true)
		for _, r := range records {
			r.done = true
		}
		return true
	case *guard.LockBusy:
		b.works.Store(true)
		for _, r := range all {
			r.busy(e)
		}
	case *guard.LockNoTime:
		b.over.Store(true)
	case *guard.LockCorrupt:
		b.works.Store(true)
	case *guard.LockStoreUnavailable:
		b.down.Store(true)
	}
	b.failAll(ctx, all, err)
	return false
}

func (b *batch) each(ctx context.Context, lock guard.Lock, records []*record) error {
	var failed []*record
	for _, r := range records {
		// The context reads the clocks when it is asked.
		switch over := ctx.Err(); {
		case r.group.failed:
			b.fail(ctx, r, errOrder)
		case over != nil:
			b.fail(ctx, r, fmt.Errorf("not begun: %w", context.Cause(ctx)))
		default:
			var skip once.Skip
			err := isolate.Run(func() error { return b.work(skip.Watch(ctx, b.guard), lock, r.SQSMessage) })
			if skip.IsBusy(err) {
				r.busy(err.(*guard.LockBusy))
			}
			if err != nil {
				b.fail(ctx, r, err)
			} else {
				r.done = true
			}
		}
		if r.err != nil {
			failed = append(failed, r)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d messages failed, first %s: %w", len(failed), len(records), failed[0].MessageId, failed[0].err)
}

// failAll fails the messages that have not failed already. After a lost lock it also fails
// the messages that are done, because nobody knows when the lock was lost.
func (b *batch) failAll(ctx context.Context, records []*record, err error) {
	for _, r := range records {
		switch {
		case r.err != nil:
		case !r.done && r.group.failed:
			b.fail(ctx, r, errOrder)
		default:
			b.fail(ctx, r, err)
		}
	}
}

// fail notes and logs why a message is not done.
func (b *batch) fail(ctx context.Context, r *record, err error) {
	r.done, r.err, r.group.failed = false, err, true
	level := slog.LevelWarn
	if r.group.delay > 0 {
		level = slog.LevelInfo // nothing is wrong
	}
	b.log(ctx, level, "message failed", r, err)
	if r.group.delay > 0 && b.makeVisible != nil {
		b.delay(ctx, r)
	}
}

func (b *batch) delay(ctx context.Context, r *record) {
	limit := delayTime
	if deadline, ok := ctx.Deadline(); ok {
		// One of many messages gets at most half of the time that is left: the answer
		// must not be late.
		limit = min(limit, (time.Until(deadline)-answerTime)/2)
	}
	if limit <= 0 || b.slow.Load() {
		b.log(ctx, slog.LevelWarn, "message not delayed", r, errSlow)
		return
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := isolate.Run(func() error { return b.makeVisible(limited, r.SQSMessage, r.group.delay) })
	if err == nil {
		return
	}
	b.log(ctx, slog.LevelWarn, "message not delayed", r, err)
	if limited.Err() != nil {
		b.slow.Store(true)
	}
}

func (b *batch) log(ctx context.Context, level slog.Level, what string, r *record, err error) {
	attrs := []slog.Attr{
		slog.String("requestId", b.requestID),
		slog.String("messageId", r.MessageId),
		slog.String("key", r.key),
	}
	tell.Log(ctx, nil, level, what, append(attrs, isolate.Attrs(err)...)...)
}

// answer names each message that is not done, once and in the batch's order.
func (b *batch) answer() events.SQSEventResponse {
	failures := []events.SQSBatchItemFailure{}
	named := map[string]bool{}
	for _, r := range b.records {
		if !r.done && !named[r.MessageId] {
			named[r.MessageId] = true
			failures = append(failures, events.SQSBatchItemFailure{ItemIdentifier: r.MessageId})
		}
	}
	return events.SQSEventResponse{BatchItemFailures: failures}
}
