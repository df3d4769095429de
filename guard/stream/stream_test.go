package stream

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
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
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// record is a record of any source. Its text is a key and what the work does.
type record struct{ sequence, text string }

// bench is a batchtest.Bench whose records are in a shard.
type bench struct{ *batchtest.Bench }

func on(name string, t *testing.T, opt guard.Options, f func(*testing.T, *bench)) {
	batchtest.On(name, t, opt, func(t *testing.T, b *batchtest.Bench) { f(t, &bench{b}) })
}

// loses takes the key's lease away from its holder, who learns of it at the next renewal or at the release.
func (b *bench) loses(key string) { b.Fails(key, lockstore.ErrLost, driver.Renew, driver.Release) }

// run returns the sequence number at which the batch stopped, or "". The records have the numbers 1, 2, ...
func (b *bench) run(t *testing.T, ctx context.Context, texts ...string) string {
	t.Helper()
	s := shard[record]{b.Guard, key, b.work, func(r record) string { return r.sequence }}
	stop, err := s.run(ctx, func() (records []record, err error) {
		for i, text := range texts {
			records = append(records, record{strconv.Itoa(i + 1), text})
		}
		return records, nil
	})
	require.NoError(t, err)
	return stop
}

func key(_ context.Context, r record) (string, error) { return batchtest.Key(r.text) }

func (b *bench) work(ctx context.Context, lock guard.Lock, r record) error {
	return b.Work(ctx, lock, r.sequence, r.text)
}

// line is the only line of the log.
func (b *bench) line(t *testing.T) map[string]any {
	t.Helper()
	lines := b.Lines(t)
	require.Len(t, lines, 1)
	return lines[0]
}

func TestStops(t *testing.T) {
	for _, c := range []struct {
		name  string
		texts []string
		stop  string // "": nowhere
		ran   int    // so many records were begun
		asked string // the keys in the order of the acquires
		why   string // part of the logged error
	}{
		{"all is well", []string{"a", "a", "b", "a"}, "", 4, "a b a", ""},
		{"F72 at the first failure, and all keys are free", []string{"a", "b", "b fail", "b", "c"}, "3", 3, "a b", "own"},
		{"F04 at a panic", []string{"a", "a panic", "a"}, "2", 2, "a", "panic: boom"},
		{"F05 at a Goexit", []string{"a exit", "a"}, "1", 1, "a", "Goexit"},
		{"F64 at a held key", []string{"a", "held", "held", "a"}, "2", 1, "a held", "is busy"},
		{"F56 at a key that cannot be told, after what is before it", []string{"a", "nokey", "a"}, "2", 1, "a", "no account in the record"},
		{"F56 at a panic in the key function", []string{"keypanic", "a"}, "1", 0, "", "key boom"},
		{"F05 at a Goexit in the key function", []string{"a", "keyexit"}, "2", 1, "a", "Goexit"},
		{"F52 at a key that cannot be locked", []string{"a", "x\ny"}, "2", 1, "a", "control character"},
		{"at a failure before a key that cannot be told", []string{"a fail", "nokey"}, "1", 1, "a", "own"},
		{"another lock's busy is an error like any other", []string{"a", "a inner busy", "a"}, "2", 2, "a", `"inner" is busy`},
		{"another lock's loss too", []string{"a", "a inner lost", "a"}, "2", 2, "a", `"inner" was lost`},
		{"at a nil pointer as an error", []string{"a", "a nil pointer", "a"}, "2", 2, "a", "the work"},
		{"at the last record", []string{"a", "b fail"}, "2", 2, "a b", "own"},
	} {
		on(c.name, t, guard.Options{}, func(t *testing.T, b *bench) {
			b.Occupy(t, "held")
			require.Equal(t, c.stop, b.run(t, t.Context(), c.texts...))
			if c.stop == "" {
				require.Empty(t, b.Log.String())
			} else {
				line := b.line(t)
				require.Equal(t, []any{c.stop, "r-1"}, []any{line["sequenceNumber"], line["requestId"]})
				at, err := strconv.Atoi(c.stop)
				require.NoError(t, err)
				require.EqualValues(t, len(c.texts)-at+1, line["left"], "records, with the one that failed")
				require.Contains(t, line["error"], c.why)
				require.Equal(t, strings.Contains(c.why, "boom"), line["stack"] != nil)
			}
			require.Equal(t, "1 2 3 4"[:max(0, 2*c.ran-1)], strings.Join(b.Ran, " "), "in the stream's order")
			require.Equal(t, c.asked, strings.Join(b.Asked, " "), "one acquire for each run of equal keys")
			b.Free(t, "a", "b", "c")
		})
	}
}

// What the handlers of the two sources take and answer.
func TestSources(t *testing.T) {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	require.NoError(t, err)
	fails, ran := false, 0
	work := func() error {
		ran++
		if fails {
			return errors.New("own")
		}
		return nil
	}
	dynamo := func(context.Context, events.DynamoDBEventRecord) (string, error) { return "k", nil }
	kinesis := func(context.Context, events.KinesisEventRecord) (string, error) { return "k", nil }
	kinesisWork := func(context.Context, guard.Lock, events.KinesisEventRecord) error { return work() }
	handlers := map[string]lambda.Handler{
		"DynamoDB": lambda.NewHandler(WrapDynamoDB(g, dynamo, func(context.Context, guard.Lock, events.DynamoDBEventRecord) error { return work() }).Handle),
		"Kinesis":  lambda.NewHandler(WrapKinesis(g, kinesis, kinesisWork).Handle),
	}
	of := map[string]string{
		"DynamoDB": `{"Records": [{"eventSource": "aws:dynamodb", "dynamodb": {"SequenceNumber": "1"}}, {"eventSource": "aws:dynamodb", "dynamodb": {"SequenceNumber": "2"}}]}`,
		"Kinesis":  `{"Records": [{"eventSource": "aws:kinesis", "kinesis": {"sequenceNumber": "1"}}, {"eventSource": "aws:kinesis", "kinesis": {"sequenceNumber": "2"}}]}`,
	}
	other := map[string]string{"DynamoDB": "Kinesis", "Kinesis": "DynamoDB"}
	for source, h := range handlers {
		t.Run(source, func(t *testing.T) {
			for _, c := range []struct {
				event  string
				fails  bool
				ran    int
				answer string
				err    string
			}{
				{event: of[source], ran: 2, answer: `{"batchItemFailures":[]}`},
				{event: of[source], fails: true, ran: 1, answer: `{"batchItemFailures":[{"itemIdentifier":"1"}]}`},
				{event: strings.Replace(of[source], `"2"`, `"1"`, 1), fails: true, ran: 1, answer: `{"batchItemFailures":[{"itemIdentifier":"1"}]}`},
				{event: strings.Replace(of[source], `"2"`, `""`, 1), err: "record 2 of 2 has no sequence number"},
				{event: of[other[source]], err: "stream: the event is a batch of a " + other[source] + " stream; want a batch of a " + source + " stream; nothing was run"},
				{event: `{"Records": [{"messageId": "m1", "eventSource": "aws:sqs"}]}`, err: "is a batch of SQS; want"},
				{event: `{"account": "7"}`, err: "is an event of no known source, such as a direct call; want"},
				{event: `null`, err: "is no JSON object; want"},
				{event: `{"Records": []}`, err: "is a batch without records; want"},
				{event: `[{"eventSource": "aws:kinesis"}]`, err: "is a batch of a Kinesis stream, as a JSON array such as EventBridge Pipes sends; want"},
				{event: `[{"eventSource": "aws:dynamodb"}]`, err: "is a batch of a DynamoDB stream, as a JSON array such as EventBridge Pipes sends; want"},
			} {
				fails, ran = c.fails, 0
				out, err := h.Invoke(t.Context(), []byte(c.event))
				require.Equal(t, c.ran, ran, c.event)
				if c.err != "" {
					require.ErrorContains(t, err, c.err)
					continue
				}
				require.NoError(t, err)
				require.JSONEq(t, c.answer, string(out))
			}
		})
	}
	for want, h := range map[string]guard.Wrapped[json.RawMessage, events.KinesisEventResponse]{
		"guard is nil": WrapKinesis(nil, kinesis, kinesisWork), "not made by New": WrapKinesis(new(guard.Guard), kinesis, kinesisWork),
		"key function is nil": WrapKinesis(g, nil, kinesisWork), "work is nil": WrapKinesis(g, kinesis, nil),
	} {
		_, err := h.Handle(t.Context(), nil)
		require.ErrorContains(t, err, want, "F51")
	}
}

func TestLifeCycle(t *testing.T) {
	on("F65 what is not begun when the time is over is delivered again", t, guard.Options{}, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		require.Equal(t, "3", b.run(t, ctx, "a second", "b second", "b until", "b", "c"))
		require.Equal(t, []string{"1", "2", "3"}, b.Ran)
	})
	for _, next := range []string{"a", "b"} {
		on("F65 work that finishes although its time is over is done, before "+next, t, guard.Options{}, func(t *testing.T, b *bench) {
			b.Do = func(ctx context.Context, _ string) error { <-ctx.Done(); return nil }
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Equal(t, "2", b.run(t, ctx, "a", next))
			require.Len(t, b.Ran, 1)
		})
	}
	on("F64 F70 a batch that comes twice at once in one process: each record runs in one of them", t, guard.Options{}, func(t *testing.T, b *bench) {
		first := make(chan string)
		go func() { first <- b.run(t, t.Context(), "a second", "b") }()
		synctest.Wait()
		require.Equal(t, "1", b.run(t, t.Context(), "a second", "b"))
		require.Empty(t, <-first)
		require.Len(t, b.Ran, 2)
		require.Equal(t, []any{"INFO", 2.0}, []any{b.line(t)["level"], b.line(t)["left"]})
	})
	on("F35 a lock that is lost stops at the first record under it: the work of record 3 ran without it, too", t, guard.Options{TTL: 3 * time.Second}, func(t *testing.T, b *bench) {
		b.Do = func(ctx context.Context, sequence string) error {
			switch sequence {
			case "3":
				b.loses("a")
			case "4":
				<-time.After(10 * time.Second) // until a renewal finds out
			}
			return nil
		}
		require.Equal(t, "2", b.run(t, t.Context(), "b", "a", "a", "a", "a"))
		require.Equal(t, []string{"1", "2", "3", "4"}, b.Ran)
		require.Contains(t, b.line(t)["error"], "may stand")
	})
	for _, last := range []string{"b", "b fail"} {
		on("F35 a lock that the release finds lost stops at the first record under it, before "+last, t, guard.Options{}, func(t *testing.T, b *bench) {
			b.loses("b")
			require.Equal(t, "2", b.run(t, t.Context(), "a", "b", last, "c"))
			require.Equal(t, []string{"1", "2", "3"}, b.Ran)
		})
	}
	on("F44 a store that refuses stops at once, with the requests of one key", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Fault = func(storetest.Call) storetest.Fault { return storetest.Fault{Drop: lockstore.ErrUnavailable} }
		start := time.Now()
		require.Equal(t, "1", b.run(t, t.Context(), "a", "b", "c", "d"))
		require.LessOrEqual(t, time.Since(start), 6*time.Second)
		require.Less(t, len(b.Asked), 40)
		require.NotContains(t, b.Asked, "b")
		require.Equal(t, "WARN", b.line(t)["level"])
	})
	on("F69 shutdown: what runs may end, the rest is delivered again", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Do = func(context.Context, string) error { b.Shutdown(); return nil }
		require.Equal(t, "2", b.run(t, t.Context(), "a", "a", "b"))
		b.Free(t, "a", "b")
	})
}

// A record that comes again is done without work, with another lock than that of its key.
func TestOnce(t *testing.T) {
	on("", t, guard.Options{}, func(t *testing.T, b *bench) {
		o, err := idempotency.New(b.Guard, idempotency.Options{})
		require.NoError(t, err)
		runs := map[string]int{}
		s := shard[record]{b.Guard, key, Once(o, func(_ context.Context, r record) (idempotency.Call, error) {
			return idempotency.NewCall("stream", r.sequence), nil
		}, func(_ context.Context, lock guard.Lock, r record) error {
			assert.Equal(t, "p", lock.Key)
			if runs[r.sequence]++; r.sequence == "3" && runs["3"] == 1 {
				return errors.New("own")
			}
			return nil
		}), func(r record) string { return r.sequence }}
		send := func(sequences ...string) string {
			stop, err := s.run(t.Context(), func() (records []record, err error) {
				for _, sequence := range sequences {
					records = append(records, record{sequence, "p"})
				}
				return records, nil
			})
			require.NoError(t, err)
			return stop
		}
		require.Equal(t, "3", send("1", "2", "3", "4"))
		require.Empty(t, send("1", "2", "3", "4"), "all of them again, as after a timeout")
		require.Equal(t, map[string]int{"1": 1, "2": 1, "3": 2, "4": 1}, runs)
		_, err = b.Store.Acquire(t.Context(), lockstore.Request{Key: "stream/6", Owner: "another", TTL: time.Minute})
		require.NoError(t, err)
		require.Equal(t, "6", send("5", "6", "7"), "another run works on it")
		require.Zero(t, runs["7"])
	})
}
