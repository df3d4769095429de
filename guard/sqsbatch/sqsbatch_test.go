package sqsbatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/batchtest"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// bench is a batchtest.Bench whose records are messages.
type bench struct {
	*batchtest.Bench
	delay func(context.Context, events.SQSMessage, time.Duration) error
	slots int
}

func on(name string, t *testing.T, opt guard.Options, f func(*testing.T, *bench)) {
	batchtest.On(name, t, opt, func(t *testing.T, b *batchtest.Bench) { f(t, &bench{b, nil, atOnce}) })
}

func key(_ context.Context, m events.SQSMessage) (string, error) { return batchtest.Key(m.Body) }

func (b *bench) work(ctx context.Context, lock guard.Lock, m events.SQSMessage) error {
	return b.Work(ctx, lock, m.MessageId, m.Body)
}

func (b *bench) handler(t *testing.T) guard.Wrapped[json.RawMessage, events.SQSEventResponse] {
	t.Helper()
	return wrap(settings{b.Guard, key, b.work, b.delay, b.slots})
}

// run returns the ids of the messages that failed.
func (b *bench) run(t *testing.T, ctx context.Context, messages ...events.SQSMessage) []string {
	t.Helper()
	out, err := b.handler(t).Handle(ctx, event(t, messages))
	require.NoError(t, err)
	failed := []string{}
	known := map[string]bool{"": false}
	for _, m := range messages {
		known[m.MessageId] = true
	}
	for _, f := range out.BatchItemFailures {
		require.True(t, known[f.ItemIdentifier], "empty or unknown id %q", f.ItemIdentifier)
		failed = append(failed, f.ItemIdentifier)
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(failed))), len(failed), "an id twice")
	return failed
}

// lines are the log's lines about the message.
func (b *bench) lines(t *testing.T, id string) []map[string]any {
	t.Helper()
	return slices.DeleteFunc(b.Lines(t), func(line map[string]any) bool { return line["messageId"] != id })
}

const (
	standardARN = "arn:aws:sqs:eu-west-1:123456789012:payments"
	fifoARN     = standardARN + ".fifo"
)

// messages are those of a standard queue, with the ids m1, m2, ...
func messages(bodies ...string) (all []events.SQSMessage) {
	for i, body := range bodies {
		all = append(all, events.SQSMessage{MessageId: fmt.Sprintf("m%d", i+1), Body: body, EventSourceARN: standardARN})
	}
	return all
}

// event is a batch as SQS sends it.
func event(t *testing.T, messages []events.SQSMessage) json.RawMessage {
	t.Helper()
	for i := range messages {
		messages[i].EventSource = "aws:sqs"
	}
	text, err := json.Marshal(events.SQSEvent{Records: messages})
	require.NoError(t, err)
	return text
}

// ordered are those of an ordered queue; each text begins with the group.
func ordered(texts ...string) (all []events.SQSMessage) {
	for i, text := range texts {
		group, body, _ := strings.Cut(text, " ")
		all = append(all, events.SQSMessage{MessageId: fmt.Sprintf("m%d", i+1), Body: body, EventSourceARN: fifoARN,
			Attributes: map[string]string{"MessageGroupId": group}})
	}
	return all
}

func TestBatch(t *testing.T) {
	ctx := context.Background()
	on("F72 several keys, partial failure: only what failed is named, all keys are free", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Occupy(t, "held")
		require.Equal(t, []string{"m2", "m4", "m6", "m7"},
			b.run(t, ctx, messages("a", "a fail", "a", "held", "b", "held", "nokey", "c")...))
		require.ElementsMatch(t, []string{"m1", "m2", "m3", "m5", "m8"}, b.Ran)
		require.ElementsMatch(t, []string{"a", "b", "c", "held"}, b.Asked, "one acquire for each key")
		b.Free(t, "a", "b", "c")
	})
	on("a success has the form that Lambda reads, and an event that cannot be read by message is refused before anything ran", t, guard.Options{}, func(t *testing.T, b *bench) {
		for in, wrong := range map[string]string{
			`{"Records": [{"messageId": "m1", "body": "a", "eventSource": "aws:sqs"}]}`:         "",
			`{"Records": [{"eventSource": "aws:kinesis", "kinesis": {"sequenceNumber": "1"}}]}`: "sqsbatch: the event is a batch of a Kinesis stream; want a batch of SQS; nothing was run",
			`{"Records": []}`: "a batch without records",
			`[{"messageId": "m1", "body": "a", "eventSource": "aws:sqs"}]`:                                          "sqsbatch: the event is a batch of SQS, as a JSON array such as EventBridge Pipes sends; want a batch of SQS; nothing was run",
			`{"Records": [{"messageId": "m2", "eventSource": "aws:sqs"}, {"body": "b", "eventSource": "aws:sqs"}]}`: "record 2 of 2 has no messageId",
		} {
			out, err := lambda.NewHandler(b.handler(t).Handle).Invoke(ctx, []byte(in))
			if wrong == "" {
				require.NoError(t, err)
				require.JSONEq(t, `{"batchItemFailures":[]}`, string(out))
				continue
			}
			require.ErrorContains(t, err, wrong, in)
			require.Empty(t, out)
		}
		require.Equal(t, []string{"m1"}, b.Ran)
		require.Equal(t, []string{"a"}, b.Asked)
	})
	on("F72 a message that is twice in the batch is named once", t, guard.Options{}, func(t *testing.T, b *bench) {
		in := messages("a fail", "a fail", "a", "b")
		in[1].MessageId = "m1"
		in[2].MessageId = "m1"
		require.Equal(t, []string{"m1"}, b.run(t, ctx, in...))
		require.Len(t, b.Ran, 4)
	})
	on("different keys run at the same time, ten of them", t, guard.Options{}, func(t *testing.T, b *bench) {
		var bodies []string
		for i := range 25 {
			bodies = append(bodies, fmt.Sprintf("k%d second", i))
		}
		start := time.Now()
		require.Empty(t, b.run(t, ctx, messages(bodies...)...))
		require.Equal(t, 3*time.Second, time.Since(start))
	})
	on("F04 F05 a panic, Goexit or a nil pointer as an error fails its message, and is logged with its stack", t, guard.Options{}, func(t *testing.T, b *bench) {
		require.Equal(t, []string{"m1", "m3", "m4"}, b.run(t, ctx, messages("a panic", "a", "a exit", "a nil pointer", "a", "b")...))
		require.Len(t, b.Ran, 6)
		b.Free(t, "a", "b")
		lines := b.lines(t, "m1")
		require.Len(t, lines, 1)
		assert.Equal(t, "WARN", lines[0]["level"])
		assert.Equal(t, "message failed", lines[0]["msg"])
		assert.Equal(t, "panic: boom", lines[0]["error"])
		assert.Equal(t, "a", lines[0]["key"])
		assert.Equal(t, "r-1", lines[0]["requestId"])
		assert.Contains(t, lines[0]["stack"], "sqsbatch_test.go", "the line that panicked")
		assert.Contains(t, b.lines(t, "m3")[0]["error"], "Goexit")
		assert.NotContains(t, b.lines(t, "m3")[0], "stack")
		assert.Empty(t, b.lines(t, "m2"))
	})
	on("F56 a message whose key cannot be told fails without a lock", t, guard.Options{}, func(t *testing.T, b *bench) {
		require.Equal(t, []string{"m1", "m2", "m3", "m5"}, b.run(t, ctx, messages("nokey", "keypanic", "keyexit", "a", "bad\nkey")...))
		require.Equal(t, []string{"m4"}, b.Ran)
		require.ElementsMatch(t, []string{"a"}, b.Asked)
		require.Contains(t, b.lines(t, "m1")[0]["error"], "no account in the record")
		require.Contains(t, b.lines(t, "m2")[0]["error"], "key boom")
		require.Contains(t, b.lines(t, "m2")[0]["stack"], "sqsbatch_test.go")
		require.Contains(t, b.lines(t, "m5")[0]["error"], "control character")
	})
	on("F64 F70 a batch that comes twice at once in one process: each message runs in one of them only", t, guard.Options{}, func(t *testing.T, b *bench) {
		first := make(chan []string)
		in := messages("a second", "b second")
		go func() { first <- b.run(t, ctx, in...) }()
		synctest.Wait()
		require.Equal(t, []string{"m1", "m2"}, b.run(t, ctx, in...), "busy")
		require.Empty(t, <-first)
		require.Len(t, b.Ran, 2)
		require.Equal(t, "INFO", b.lines(t, "m1")[0]["level"])
	})
	on("F65 what is not begun when the time is over fails", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.slots = 1
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		b.Do = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		require.Equal(t, []string{"m2", "m3", "m4"}, b.run(t, ctx, messages("a second", "a", "a", "b")...))
		require.Equal(t, []string{"m1", "m2"}, b.Ran)
		require.NotContains(t, b.Asked, "b")
		b.Free(t, "a")
	})
	on("F65 work that finishes although its time is over is done", t, guard.Options{}, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		b.Do = func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return nil
		}
		require.Equal(t, []string{"m2"}, b.run(t, ctx, messages("a", "a")...))
	})
	on("F69 shutdown: what runs may end, the rest fails", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.slots = 1
		b.Do = func(context.Context, string) error {
			b.Shutdown()
			return nil
		}
		require.Equal(t, []string{"m2", "m3"}, b.run(t, ctx, messages("a", "a", "b")...))
		b.Free(t, "a", "b")
	})
	on("F35 a lock that is lost fails all of its key: the work of m2 ran without it, too", t, guard.Options{TTL: 3 * time.Second}, func(t *testing.T, b *bench) {
		b.Do = func(_ context.Context, id string) error {
			switch id {
			case "m2":
				b.Fails("a", lockstore.ErrLost, driver.Renew, driver.Release)
			case "m3":
				<-time.After(10 * time.Second) // until a renewal finds out
			}
			return nil
		}
		require.Equal(t, []string{"m1", "m2", "m3", "m4"}, b.run(t, ctx, messages("a", "a", "a", "a", "b")...))
		require.ElementsMatch(t, []string{"m1", "m2", "m3", "m5"}, b.Ran)
		for _, id := range []string{"m1", "m2", "m3"} {
			require.Contains(t, b.lines(t, id)[0]["error"], "may stand")
		}
		require.Contains(t, b.lines(t, "m4")[0]["error"], "not begun")
	})
	on("F35 a lock that the release finds lost fails all of its key", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Fails("a", lockstore.ErrLost, driver.Release)
		require.Equal(t, []string{"m1", "m2", "m3"}, b.run(t, ctx, messages("a", "a fail", "a", "b")...))
		require.Contains(t, b.lines(t, "m2")[0]["error"], "own")
		require.Contains(t, b.lines(t, "m3")[0]["error"], "was lost")
	})
	on("F44 a store that refuses everything fails the batch soon, with few requests", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Fails("", lockstore.ErrUnavailable, driver.Acquire)
		var bodies []string
		for i := range 1000 {
			bodies = append(bodies, fmt.Sprintf("k%d", i))
		}
		start := time.Now()
		require.Len(t, b.run(t, ctx, messages(bodies...)...), 1000)
		require.Empty(t, b.Ran)
		require.LessOrEqual(t, time.Since(start), 6*time.Second)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(b.Asked))), atOnce, "no retry storm: the other keys are not asked for")
		require.Contains(t, b.lines(t, "m1000")[0]["error"], "not begun")
	})
	on("a store that refuses one key does not stop the others", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.slots = 2
		b.Fails("hot", lockstore.ErrUnavailable, driver.Acquire)
		require.Equal(t, []string{"m1"}, b.run(t, ctx, messages("hot", "a", "b", "c second", "d second", "e second", "f second", "g second", "h second")...))
	})
	on("a store that answers for a held key does not stop the others", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.slots = 1
		b.Occupy(t, "held")
		b.Fails("hot", lockstore.ErrUnavailable, driver.Acquire)
		require.Equal(t, []string{"m1", "m2"}, b.run(t, ctx, messages("held", "hot", "a")...))
	})
	on("a store that finds one entry corrupt does not stop the others", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.slots = 1
		errs := map[string]error{"corrupt": lockstore.ErrCorrupt, "hot": lockstore.ErrUnavailable}
		b.Fault = func(c storetest.Call) storetest.Fault { return storetest.Fault{Drop: errs[c.Key]} }
		require.Equal(t, []string{"m1", "m2"}, b.run(t, ctx, messages("corrupt", "hot", "a")...))
	})
	on("a store that grants too late stops the batch, and the log does not deny that it has answered", t, guard.Options{TTL: lockstore.MinTTL}, func(t *testing.T, b *bench) {
		b.slots = 1
		b.Fault = func(c storetest.Call) (f storetest.Fault) {
			if c.Kind == driver.Acquire {
				f.After = 700 * time.Millisecond // too late to work under it
			}
			return f
		}
		require.Equal(t, []string{"m1", "m2"}, b.run(t, ctx, messages("a", "b")...))
		require.Contains(t, b.lines(t, "m1")[0]["error"], "the store is unavailable")
		require.Contains(t, b.lines(t, "m2")[0]["error"], "given or refused no lock of the batch in time")
	})
}

func TestOrdered(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		in     []string
		failed []string
		ran    []string
	}{
		{"all is well", []string{"g a", "g a", "h b"}, nil, []string{"m1", "m2", "m3"}},
		{"F72 the first failure of a group takes all later ones of it, groups are independent",
			[]string{"g a", "h b", "g a fail", "h b", "g a", "h b", "i c panic"}, []string{"m3", "m5", "m7"}, []string{"m1", "m2", "m3", "m4", "m6", "m7"}},
		{"F04 a panic stops its group", []string{"g a panic", "g a"}, []string{"m1", "m2"}, []string{"m1"}},
		{"F64 a held key stops its group", []string{"g held", "g a", "h a"}, []string{"m1", "m2"}, []string{"m3"}},
		{"F56 a key that cannot be told stops what comes after it, not what comes before",
			[]string{"g a", "g nokey", "g a", "h b"}, []string{"m2", "m3"}, []string{"m1", "m4"}},
		{"a failure before a message without a key", []string{"g a fail", "g a", "g nokey", "g a"}, []string{"m1", "m2", "m3", "m4"}, []string{"m1"}},
		{"a group with several keys keeps its order", []string{"g a second", "g b second", "g a", "g b fail", "g c"}, []string{"m4", "m5"}, []string{"m1", "m2", "m3", "m4"}},
		{"groups that share a key", []string{"g a second", "h a fail", "g a", "h a"}, []string{"m2", "m4"}, []string{"m1", "m2", "m3"}},
		{"groups that need two keys in opposite orders", []string{"g a second", "h b second", "g b", "h a"}, nil, []string{"m1", "m2", "m3", "m4"}},
	} {
		on(c.name, t, guard.Options{}, func(t *testing.T, b *bench) {
			b.Occupy(t, "held")
			in := ordered(c.in...)
			failed := b.run(t, ctx, in...)
			if c.failed == nil {
				c.failed = []string{}
			}
			require.Equal(t, c.failed, failed)
			require.ElementsMatch(t, c.ran, b.Ran)
			b.Free(t, "a", "b", "c")

			last := map[string]string{}
			for _, id := range b.Ran { // ids of one digit, in the order of the runs
				for _, m := range in {
					if g := m.Attributes["MessageGroupId"]; m.MessageId == id {
						require.Less(t, last[g], id, "the order of group %s", g)
						last[g] = id
					}
				}
			}
		})
	}
	on("one acquire for each key when the order allows it", t, guard.Options{}, func(t *testing.T, b *bench) {
		require.Empty(t, b.run(t, ctx, ordered("g a", "h a", "g a", "i b", "h a", "i b")...))
		require.ElementsMatch(t, []string{"a", "b"}, b.Asked)
	})
	on("what comes after a failure takes no lock", t, guard.Options{}, func(t *testing.T, b *bench) {
		require.Equal(t, []string{"m1", "m2"}, b.run(t, ctx, ordered("g a fail", "g b", "h c")...))
		require.ElementsMatch(t, []string{"a", "c"}, b.Asked)
	})
	on("groups run at the same time", t, guard.Options{}, func(t *testing.T, b *bench) {
		start := time.Now()
		require.Empty(t, b.run(t, ctx, ordered("g a second", "h b second", "i c second")...))
		require.Equal(t, time.Second, time.Since(start))
	})
	on("F35 a lost lock stops the group from its first doubtful message", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Fails("b", lockstore.ErrLost, driver.Release)
		require.Equal(t, []string{"m2", "m3", "m4"}, b.run(t, ctx, ordered("g a", "g b", "g b", "g c")...))
		require.Equal(t, []string{"m1", "m2", "m3"}, b.Ran)
		require.Contains(t, b.lines(t, "m3")[0]["error"], "was lost", "it was begun")
		require.Contains(t, b.lines(t, "m4")[0]["error"], "not begun")
	})
	on("an ordered queue's messages whose group is missing are one group", t, guard.Options{}, func(t *testing.T, b *bench) {
		in := ordered("g a fail", "h b")
		in[0].Attributes, in[1].Attributes = nil, nil
		require.Equal(t, []string{"m1", "m2"}, b.run(t, ctx, in...))
	})
	on("a group of a standard queue has no order", t, guard.Options{}, func(t *testing.T, b *bench) {
		in := ordered("g a fail", "g a", "g b")
		for i := range in {
			in[i].EventSourceARN = standardARN
		}
		require.Equal(t, []string{"m1"}, b.run(t, ctx, in...))
		require.Len(t, b.Ran, 3)
	})
}

func TestDelay(t *testing.T) {
	ctx := context.Background()
	received := func(m events.SQSMessage, count string) events.SQSMessage {
		attributes := map[string]string{"ApproximateReceiveCount": count}
		for k, v := range m.Attributes {
			attributes[k] = v
		}
		m.Attributes = attributes
		return m
	}
	// delayed runs the messages and returns what was delayed for how long.
	delayed := func(t *testing.T, ctx context.Context, b *bench, hook error, in ...events.SQSMessage) map[string]time.Duration {
		var mu sync.Mutex
		got := map[string]time.Duration{}
		b.delay = func(ctx context.Context, m events.SQSMessage, d time.Duration) error {
			mu.Lock()
			defer mu.Unlock()
			require.NotContains(t, got, m.MessageId)
			got[m.MessageId] = d
			return hook
		}
		b.run(t, ctx, in...)
		return got
	}
	on("F64 growing with the receive count up to the end of the lease, for held locks only", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Occupy(t, "held")
		var in []events.SQSMessage
		counts := []string{"1", "3", "5", "6", "99999999999999999999", "2147483648", "0", "-7", "", "x"}
		for i, count := range counts {
			in = append(in, received(messages(slices.Repeat([]string{"held"}, i+1)...)[i], count))
		}
		in = append(in, events.SQSMessage{MessageId: "none", Body: "held"}, events.SQSMessage{MessageId: "own", Body: "a fail"}, events.SQSMessage{MessageId: "fine", Body: "a"})
		require.Equal(t, map[string]time.Duration{"m1": time.Second, "m2": 16 * time.Second, "m3": 256 * time.Second, "m4": 1024 * time.Second,
			"m5": time.Second, "m6": time.Hour + deadTurns, "m7": time.Second, "m8": time.Second, "m9": time.Second, "m10": time.Second, "none": time.Second},
			delayed(t, ctx, b, nil, in...))
	})
	on("an ordered group becomes visible together, or the first waits for the last", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Occupy(t, "held")
		in := ordered("g held", "g held", "g a", "h a fail", "h a")
		in[0] = received(in[0], "4")
		require.Equal(t, map[string]time.Duration{"m1": 64 * time.Second, "m2": 64 * time.Second, "m3": 64 * time.Second}, delayed(t, ctx, b, nil, in...))
	})
	// take lets another run have the key for a minute.
	take := func(t *testing.T, b *bench) lockstore.Lease {
		lease, err := b.Store.Acquire(ctx, lockstore.Request{Key: "k", Owner: "another", TTL: time.Minute})
		require.NoError(t, err)
		return lease
	}
	// closed completes the key for so long.
	closed := func(t *testing.T, b *bench, cooldown time.Duration) {
		require.NoError(t, b.WithCooldown(cooldown).Do(ctx, "k", func(context.Context, guard.Lock) error { return nil }))
	}
	for name, c := range map[string]struct {
		make func(*testing.T, *bench)
		want map[string]time.Duration // by receive count
	}{
		"held": {func(t *testing.T, b *bench) { take(t, b) }, map[string]time.Duration{"1": time.Second, "2": 4 * time.Second, "3": 16 * time.Second, "4": 64 * time.Second, "10": time.Minute + deadTurns}},
		"held, for less than a second": {func(t *testing.T, b *bench) {
			take(t, b)
			<-time.After(time.Minute - 300*time.Millisecond)
		}, map[string]time.Duration{"1": time.Second, "9": time.Second + deadTurns}},
		"revoked": {func(t *testing.T, b *bench) {
			_, err := b.Store.Revoke(ctx, lockstore.RevokeRequest{Key: "k", Fence: take(t, b).Fence, By: lockstore.HolderInfo{Name: "an operator"}})
			require.NoError(t, err)
		}, map[string]time.Duration{"1": time.Second, "2": 4 * time.Second, "4": 64 * time.Second, "5": time.Minute + deadTurns}},
		"in its cooldown": {func(t *testing.T, b *bench) {
			closed(t, b, time.Hour)
			<-time.After(10*time.Second + 300*time.Millisecond)
		}, map[string]time.Duration{"1": time.Hour - 10*time.Second, "5": time.Hour - 10*time.Second}},
		"in its cooldown, for longer than SQS allows": {func(t *testing.T, b *bench) { closed(t, b, 24*time.Hour) }, map[string]time.Duration{"1": 11 * time.Hour, "10": 11 * time.Hour}},
		"in doubt": {func(t *testing.T, b *bench) {
			require.NoError(t, b.Store.MarkStarted(ctx, take(t, b)))
			<-time.After(time.Hour)
		}, map[string]time.Duration{"1": 0, "5": 0}},
	} {
		on("of a key that is "+name, t, guard.Options{}, func(t *testing.T, b *bench) {
			c.make(t, b)
			for count, want := range c.want {
				got := delayed(t, ctx, b, nil, received(messages("k")[0], count))
				if want == 0 {
					require.Empty(t, got, "the queue's visibility timeout")
					require.Equal(t, "WARN", b.lines(t, "m1")[0]["level"])
					continue
				}
				require.Equal(t, map[string]time.Duration{"m1": want}, got, "receive count %s", count)
			}
		})
	}
	for _, wait := range []time.Duration{0, 2 * time.Second} {
		for name, c := range map[string]struct {
			holds  time.Duration // until the holder releases; 0 if it died
			dead   int           // owners that died while they waited behind it
			counts int           // maxReceiveCount
			after  time.Duration
		}{
			"F01 a holder that died, and at most 5 deliveries":  {0, 0, 5, time.Minute},
			"F01 a holder that died, and at most 10 deliveries": {0, 0, 10, time.Minute},
			"F01 and one that waited":                           {0, 1, 5, time.Minute},
			"F01 and many that waited":                          {0, 20, 5, time.Minute},
			"F64 a holder that releases early":                  {3 * time.Second, 0, 3, 3 * time.Second},
		} {
			on(fmt.Sprintf("the message is done before it has used up its deliveries: %s, LOCK_WAIT %v", name, wait), t, guard.Options{Wait: wait}, func(t *testing.T, b *bench) {
				lease := take(t, b)
				for i := range c.dead {
					_, err := b.Store.Acquire(ctx, lockstore.Request{Key: "k", Owner: lockstore.Owner(fmt.Sprint("dead", i)), TTL: time.Minute, JoinQueue: true})
					require.ErrorIs(t, err, lockstore.ErrRefused)
				}
				if c.holds > 0 {
					time.AfterFunc(c.holds, func() { assert.NoError(t, b.Store.Release(ctx, lease)) })
				}
				began, next := time.Now(), time.Duration(0)
				b.delay = func(_ context.Context, _ events.SQSMessage, d time.Duration) error { next = d; return nil }
				for count := 1; len(b.run(t, ctx, received(messages("k")[0], strconv.Itoa(count)))) > 0; count++ {
					require.Less(t, count, c.counts, "the message is in the dead-letter queue after %v", time.Since(began))
					<-time.After(next)
				}
				require.Equal(t, []string{"m1"}, b.Ran)
				require.GreaterOrEqual(t, time.Since(began), c.after)
				require.LessOrEqual(t, time.Since(began), c.after+deadTurns+wait+2*time.Second)
			})
		}
	}
	on("its error and its panic are logged; the message failed all the same", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Occupy(t, "held")
		delayed(t, ctx, b, errors.New("access denied"), messages("held")...)
		lines := b.lines(t, "m1")
		require.Len(t, lines, 2)
		require.Equal(t, "message not delayed", lines[1]["msg"])
		require.Equal(t, "WARN", lines[1]["level"])
		require.Equal(t, "access denied", lines[1]["error"])

		b.delay = func(context.Context, events.SQSMessage, time.Duration) error { panic("hook boom") }
		require.Equal(t, []string{"m1"}, b.run(t, ctx, messages("held", "a")...))
		require.Contains(t, b.lines(t, "m1")[3]["error"], "hook boom")
	})
	on("one that hangs costs two seconds, once", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Occupy(t, "held")
		calls := 0
		b.delay = func(ctx context.Context, _ events.SQSMessage, _ time.Duration) error {
			calls++
			<-ctx.Done()
			return ctx.Err()
		}
		start := time.Now()
		require.Equal(t, []string{"m1", "m2", "m3"}, b.run(t, ctx, messages("held", "held", "held", "a")...))
		require.Equal(t, 2*time.Second, time.Since(start))
		require.Equal(t, 1, calls)
		require.Contains(t, b.lines(t, "m3")[1]["error"], "no time left")
	})
	for took, called := range map[time.Duration]int{100*time.Millisecond - 2: 1, 100 * time.Millisecond: 0, 130 * time.Millisecond: 0} {
		on("with 400 ms left it is called if the refusal took less than 100 ms; it took "+took.String(), t, guard.Options{}, func(t *testing.T, b *bench) {
			b.Occupy(t, "held")
			ctx, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
			defer cancel()
			b.Fault = func(storetest.Call) storetest.Fault { return storetest.Fault{Before: took} }
			require.Len(t, delayed(t, ctx, b, nil, messages("held")...), called)
			if called == 0 {
				require.Contains(t, b.lines(t, "m1")[1]["error"], "no time left")
			}
		})
	}
}

// hangs is a log that nobody reads.
type hangs struct {
	slog.Handler
	until <-chan struct{}
}

func (hangs) Enabled(context.Context, slog.Level) bool { return true }

func (h hangs) Handle(context.Context, slog.Record) error { <-h.until; return nil }

func TestALogThatHangs(t *testing.T) {
	on("F81 costs the batch a second, and not each of its messages", t, guard.Options{}, func(t *testing.T, b *bench) {
		until := make(chan struct{})
		defer close(until)
		slog.SetDefault(slog.New(hangs{until: until}))
		var bodies []string
		for range 100 {
			bodies = append(bodies, "k fail")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		began := time.Now()
		require.Len(t, b.run(t, ctx, messages(bodies...)...), 100)
		require.LessOrEqual(t, time.Since(began), time.Second)
	})
}

func TestAHolderInfoThatHangs(t *testing.T) {
	for name, c := range map[string]struct {
		messages int
		body     func(i int) string
		most     time.Duration
	}{
		"costs the batch and its key a second each, and not each of its messages": {200, func(int) string { return "k fail" }, 2 * time.Second},
		"costs each of ten keys at once a second, and the answer is not late":     {1000, func(i int) string { return fmt.Sprintf("k%d fail", i) }, 30*time.Second - 1},
	} {
		on("F81 "+name, t, guard.Options{}, func(t *testing.T, b *bench) {
			until := make(chan struct{})
			defer close(until)
			var err error
			b.Guard, err = guard.New(b.Store, guard.Options{HolderInfo: func(context.Context) lockstore.HolderInfo {
				<-until
				return lockstore.HolderInfo{}
			}})
			require.NoError(t, err)
			var bodies []string
			for i := range c.messages {
				bodies = append(bodies, c.body(i))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			began := time.Now()
			require.Len(t, b.run(t, ctx, messages(bodies...)...), c.messages)
			require.LessOrEqual(t, time.Since(began), c.most)
		})
	}
}

func TestMistakes(t *testing.T) {
	on("F51", t, guard.Options{}, func(t *testing.T, b *bench) {
		for want, handler := range map[string]guard.Wrapped[json.RawMessage, events.SQSEventResponse]{
			"guard is nil":        Wrap(nil, key, b.work),
			"not made by New":     Wrap(new(guard.Guard), key, b.work),
			"key function is nil": Wrap(b.Guard, nil, b.work),
			"work is nil":         WrapDelay(b.Guard, key, nil, nil),
		} {
			_, err := handler.Handle(t.Context(), event(t, messages("a")))
			require.ErrorContains(t, err, want)
		}
		for _, o := range []*idempotency.Once{nil, new(idempotency.Once)} {
			_, err := Wrap(b.Guard, key, Once(o, byMessage, b.work)).Handle(t.Context(), event(t, messages("a")))
			require.ErrorContains(t, err, "work is nil")
		}
		require.Empty(t, b.Ran)
	})
}
