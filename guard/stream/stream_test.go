package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/internal/batchtest"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// record is what the tests know of a record: "key what".
type record struct{ sequence, text string }

type bench struct{ *batchtest.Bench }

func newBench(t *testing.T, opt guard.Options) *bench {
	t.Helper()
	return &bench{batchtest.New(t, opt)}
}

// sources run records through the two handlers and return what they named.
var sources = map[string]func(ctx context.Context, b *bench, records []record) ([]string, error){
	"DynamoDB": func(ctx context.Context, b *bench, records []record) (named []string, err error) {
		h := WrapDynamoDB(b.Guard, func(_ context.Context, r events.DynamoDBEventRecord) (string, error) {
			return batchtest.Key(r.Change.Keys["id"].String())
		}, func(ctx context.Context, lock guard.Lock, r events.DynamoDBEventRecord) error {
			return b.Work(ctx, lock, r.Change.SequenceNumber, r.Change.Keys["id"].String())
		})
		var in events.DynamoDBEvent
		for _, r := range records {
			in.Records = append(in.Records, events.DynamoDBEventRecord{EventSource: "aws:dynamodb", Change: events.DynamoDBStreamRecord{
				SequenceNumber: r.sequence, Keys: map[string]events.DynamoDBAttributeValue{"id": events.NewStringAttribute(r.text)}}})
		}
		out, err := h.Handle(ctx, event(in))
		for _, f := range out.BatchItemFailures {
			named = append(named, f.ItemIdentifier)
		}
		return named, err
	},
	"Kinesis": func(ctx context.Context, b *bench, records []record) (named []string, err error) {
		h := WrapKinesis(b.Guard, func(_ context.Context, r events.KinesisEventRecord) (string, error) {
			return batchtest.Key(string(r.Kinesis.Data))
		}, func(ctx context.Context, lock guard.Lock, r events.KinesisEventRecord) error {
			return b.Work(ctx, lock, r.Kinesis.SequenceNumber, string(r.Kinesis.Data))
		})
		var in events.KinesisEvent
		for _, r := range records {
			in.Records = append(in.Records, events.KinesisEventRecord{EventSource: "aws:kinesis", Kinesis: events.KinesisRecord{SequenceNumber: r.sequence, Data: []byte(r.text)}})
		}
		out, err := h.Handle(ctx, event(in))
		for _, f := range out.BatchItemFailures {
			named = append(named, f.ItemIdentifier)
		}
		return named, err
	},
}

// event is a batch as Lambda sends it.
func event(batch any) json.RawMessage {
	text, err := json.Marshal(batch)
	if err != nil {
		panic(err)
	}
	return text
}

// records have the sequence numbers 1, 2, ...
func records(texts ...string) (all []record) {
	for i, text := range texts {
		all = append(all, record{fmt.Sprint(i + 1), text})
	}
	return all
}

// run returns the sequence number at which the batch stopped, or "".
func (b *bench) run(t *testing.T, ctx context.Context, texts ...string) string {
	t.Helper()
	named, err := sources["Kinesis"](ctx, b, records(texts...))
	require.NoError(t, err)
	if len(named) == 0 {
		return ""
	}
	require.Len(t, named, 1)
	require.NotEmpty(t, named[0])
	return named[0]
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
		for source, run := range sources {
			on(c.name+"/"+source, t, guard.Options{}, func(t *testing.T, b *bench) {
				b.Occupy(t, "held")
				named, err := run(context.Background(), b, records(c.texts...))
				require.NoError(t, err)
				if c.stop == "" {
					require.Empty(t, named)
					require.Empty(t, b.Lines(t))
				} else {
					require.Equal(t, []string{c.stop}, named)
					line := b.line(t)
					require.Equal(t, c.stop, line["sequenceNumber"])
					require.Equal(t, "r-1", line["requestId"])
					at, err := strconv.Atoi(c.stop)
					require.NoError(t, err)
					require.EqualValues(t, len(c.texts)-at+1, line["left"], "records, with the one that failed")
					require.Contains(t, line["error"], c.why)
					require.Equal(t, strings.Contains(c.why, "boom"), line["stack"] != nil)
				}
				var ran []string
				for _, r := range records(c.texts...)[:c.ran] {
					ran = append(ran, r.sequence)
				}
				require.Equal(t, ran, b.Ran(), "in the stream's order")
				require.Equal(t, c.asked, strings.Join(b.Asked(), " "), "one acquire for each run of equal keys")
				b.Free(t, "a", "b", "c")
			})
		}
	}
}

func TestInput(t *testing.T) {
	for source, run := range sources {
		ctx := context.Background()
		on("a record without a sequence number fails the invocation before anything ran/"+source, t, guard.Options{}, func(t *testing.T, b *bench) {
			named, err := run(ctx, b, []record{{"1", "a"}, {"", "a"}})
			require.ErrorContains(t, err, "record 2 of 2 has no sequence number")
			require.Empty(t, named)
			require.Empty(t, b.Ran())
			require.Empty(t, b.Asked())
		})
		on("F72 a sequence number that is twice in the batch is named once/"+source, t, guard.Options{}, func(t *testing.T, b *bench) {
			named, err := run(ctx, b, []record{{"1", "a"}, {"1", "a fail"}, {"1", "a fail"}})
			require.NoError(t, err)
			require.Equal(t, []string{"1"}, named)
			require.Len(t, b.Ran(), 2)
		})
	}
	b := newBench(t, guard.Options{})
	ran := 0
	handlers := map[string]lambda.Handler{
		"DynamoDB": lambda.NewHandler(WrapDynamoDB(b.Guard, func(context.Context, events.DynamoDBEventRecord) (string, error) { return "k", nil },
			func(context.Context, guard.Lock, events.DynamoDBEventRecord) error { ran++; return nil }).Handle),
		"Kinesis": lambda.NewHandler(WrapKinesis(b.Guard, func(context.Context, events.KinesisEventRecord) (string, error) { return "k", nil },
			func(context.Context, guard.Lock, events.KinesisEventRecord) error { ran++; return nil }).Handle),
	}
	of := map[string]string{
		"DynamoDB": `{"Records": [{"eventSource": "aws:dynamodb", "dynamodb": {"SequenceNumber": "1"}}]}`,
		"Kinesis":  `{"Records": [{"eventSource": "aws:kinesis", "kinesis": {"sequenceNumber": "1"}}]}`,
	}
	t.Run("the answer to a good batch is the form that Lambda reads", func(t *testing.T) {
		for source, h := range handlers {
			out, err := h.Invoke(context.Background(), []byte(of[source]))
			require.NoError(t, err)
			require.JSONEq(t, `{"batchItemFailures":[]}`, string(out))
		}
		require.Equal(t, len(handlers), ran)
	})
	t.Run("an event of another source is refused by name, before anything ran", func(t *testing.T) {
		ran = 0
		for source, h := range handlers {
			for in, is := range map[string]string{
				of[map[string]string{"DynamoDB": "Kinesis", "Kinesis": "DynamoDB"}[source]]: "a batch of a " + map[string]string{"DynamoDB": "Kinesis", "Kinesis": "DynamoDB"}[source] + " stream",
				`{"Records": [{"messageId": "m1", "eventSource": "aws:sqs"}]}`:              "a batch of SQS",
				`{"account": "7"}`: "an event of no known source, such as a direct call",
				`null`:             "no JSON object",
				`{"Records": []}`:  "a batch without records",
			} {
				_, err := h.Invoke(context.Background(), []byte(in))
				require.EqualError(t, err, "stream: the event is "+is+"; want a batch of a "+source+" stream; nothing was run", in)
			}
		}
		require.Zero(t, ran)
	})
	t.Run("F51 nil arguments are errors of every invocation", func(t *testing.T) {
		b := newBench(t, guard.Options{})
		key := func(context.Context, events.KinesisEventRecord) (string, error) { return "k", nil }
		work := func(context.Context, guard.Lock, events.KinesisEventRecord) error { return nil }
		for want, h := range map[string]guard.Wrapped[json.RawMessage, events.KinesisEventResponse]{
			"guard is nil": WrapKinesis(nil, key, work), "not made by New": WrapKinesis(new(guard.Guard), key, work),
			"key function is nil": WrapKinesis(b.Guard, nil, work), "work is nil": WrapKinesis(b.Guard, key, nil),
		} {
			_, err := h.Handle(context.Background(), nil)
			require.ErrorContains(t, err, want)
		}
	})
}

func TestLifeCycle(t *testing.T) {
	ctx := context.Background()
	on("F65 what is not begun when the time is over is delivered again", t, guard.Options{}, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		require.Equal(t, "3", b.run(t, ctx, "a second", "b second", "b until", "b", "c"))
		require.Equal(t, []string{"1", "2", "3"}, b.Ran())
	})
	batchtest.Bubble("F65 work that finishes although its time is over is done", t, func(t *testing.T) {
		for _, next := range []string{"a", "b"} {
			b := newBench(t, guard.Options{})
			b.Do = func(ctx context.Context, _, _ string) error {
				<-ctx.Done()
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			require.Equal(t, "2", b.run(t, ctx, "a", next))
			require.Len(t, b.Ran(), 1)
		}
	})
	on("F64 F70 a batch that comes twice at once in one process: each record runs in one of them", t, guard.Options{}, func(t *testing.T, b *bench) {
		first := make(chan string)
		go func() { first <- b.run(t, ctx, "a second", "b") }()
		synctest.Wait()
		require.Equal(t, "1", b.run(t, ctx, "a second", "b"))
		require.Empty(t, <-first)
		require.Len(t, b.Ran(), 2)
		require.Equal(t, "INFO", b.line(t)["level"])
		require.EqualValues(t, 2, b.line(t)["left"])
	})
	on("F35 a lock that is lost stops at the first record under it: the work of record 3 ran without it, too", t, guard.Options{TTL: 3 * time.Second}, func(t *testing.T, b *bench) {
		b.Do = func(_ context.Context, id, key string) error {
			switch id {
			case "3":
				b.Vanish(t, key)
			case "4":
				<-time.After(10 * time.Second) // until a renewal finds out
			}
			return nil
		}
		require.Equal(t, "2", b.run(t, ctx, "b", "a", "a", "a", "a"))
		require.Equal(t, []string{"1", "2", "3", "4"}, b.Ran())
		require.Contains(t, b.line(t)["error"], "may stand")
	})
	batchtest.Bubble("F35 a lock that the release finds lost stops at the first record under it", t, func(t *testing.T) {
		for _, last := range []string{"b", "b fail"} {
			b := newBench(t, guard.Options{})
			b.Fault = batchtest.Fails(driver.Release, "b", lockstore.ErrLost)
			require.Equal(t, "2", b.run(t, ctx, "a", "b", last, "c"))
			require.Equal(t, []string{"1", "2", "3"}, b.Ran())
		}
	})
	on("F44 a store that refuses stops at once, with the requests of one key", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Fault = batchtest.Fails(driver.Acquire, "", lockstore.ErrUnavailable)
		start := time.Now()
		require.Equal(t, "1", b.run(t, ctx, "a", "b", "c", "d"))
		require.LessOrEqual(t, time.Since(start), 6*time.Second)
		require.Less(t, len(b.Asked()), 40)
		require.NotContains(t, b.Asked(), "b")
		require.Equal(t, "WARN", b.line(t)["level"])
	})
	on("F69 shutdown: what runs may end, the rest is delivered again", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.Do = func(context.Context, string, string) error {
			b.Shutdown()
			return nil
		}
		require.Equal(t, "2", b.run(t, ctx, "a", "a", "b"))
		b.Free(t, "a", "b")
	})
}

// on is a bubble with a bench.
func on(name string, t *testing.T, opt guard.Options, f func(*testing.T, *bench)) {
	batchtest.Bubble(name, t, func(t *testing.T) { f(t, newBench(t, opt)) })
}
