package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// hooked counts acquires and lets a test answer acquires and releases.
type hooked struct {
	*memstore.Store
	acquire func(lockstore.Request) error
	release func(lockstore.Lease) error

	mu    sync.Mutex
	asked []lockstore.Request
}

func (h *hooked) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	h.mu.Lock()
	h.asked = append(h.asked, req)
	h.mu.Unlock()
	if h.acquire != nil {
		if err := h.acquire(req); err != nil {
			return lockstore.Lease{}, err
		}
	}
	return h.Store.Acquire(ctx, req)
}

func (h *hooked) Release(ctx context.Context, lease lockstore.Lease) error {
	if h.release != nil {
		if err := h.release(lease); err != nil {
			return err
		}
	}
	return h.Store.Release(ctx, lease)
}

// record is what the tests know of a record: "key what".
type record struct{ sequence, text string }

type bench struct {
	*guard.Guard
	store *hooked
	log   bytes.Buffer

	mu  sync.Mutex
	ran []string // sequence numbers of the records whose work began
	do  func(ctx context.Context, r record) error
}

func newBench(t *testing.T, opt guard.Options) *bench {
	t.Helper()
	b := &bench{store: &hooked{Store: memstore.New(nil)}}
	opt.Holder = func(context.Context) lockstore.Holder { return lockstore.Holder{ID: "r-1"} }
	g, err := guard.New(b.store, opt)
	require.NoError(t, err)
	b.Guard = g
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&b.log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return b
}

func keyOf(text string) (string, error) {
	k, _, _ := strings.Cut(text, " ")
	switch k {
	case "nokey":
		return "", errors.New("no account in the record")
	case "keypanic":
		panic("key boom")
	case "keyexit":
		runtime.Goexit()
	}
	return k, nil
}

func (b *bench) work(ctx context.Context, lock guard.Lock, r record) error {
	b.mu.Lock()
	b.ran = append(b.ran, r.sequence)
	b.mu.Unlock()
	k, what, _ := strings.Cut(r.text, " ")
	if lock.Key != k || lock.Fence <= 0 {
		return fmt.Errorf("lock is %v for the key %q", lock, k)
	}
	switch what {
	case "fail":
		return errors.New("own")
	case "panic":
		panic("boom")
	case "exit":
		runtime.Goexit()
	case "inner busy":
		return &guard.LockBusy{Key: "inner"}
	case "inner lost":
		return &guard.LockLost{Key: "inner"}
	case "second":
		<-time.After(time.Second)
	case "until":
		<-ctx.Done()
		return ctx.Err()
	}
	if b.do != nil {
		return b.do(ctx, r)
	}
	return nil
}

// sources run records through the two handlers and return what they named.
var sources = map[string]func(ctx context.Context, b *bench, records []record) ([]string, error){
	"DynamoDB": func(ctx context.Context, b *bench, records []record) (named []string, err error) {
		h := WrapDynamoDB(b.Guard, func(_ context.Context, r events.DynamoDBEventRecord) (string, error) {
			return keyOf(r.Change.Keys["id"].String())
		}, func(ctx context.Context, lock guard.Lock, r events.DynamoDBEventRecord) error {
			return b.work(ctx, lock, record{r.Change.SequenceNumber, r.Change.Keys["id"].String()})
		})
		var in events.DynamoDBEvent
		for _, r := range records {
			in.Records = append(in.Records, events.DynamoDBEventRecord{Change: events.DynamoDBStreamRecord{
				SequenceNumber: r.sequence, Keys: map[string]events.DynamoDBAttributeValue{"id": events.NewStringAttribute(r.text)}}})
		}
		out, err := h(ctx, in)
		for _, f := range out.BatchItemFailures {
			named = append(named, f.ItemIdentifier)
		}
		return named, err
	},
	"Kinesis": func(ctx context.Context, b *bench, records []record) (named []string, err error) {
		h := WrapKinesis(b.Guard, func(_ context.Context, r events.KinesisEventRecord) (string, error) {
			return keyOf(string(r.Kinesis.Data))
		}, func(ctx context.Context, lock guard.Lock, r events.KinesisEventRecord) error {
			return b.work(ctx, lock, record{r.Kinesis.SequenceNumber, string(r.Kinesis.Data)})
		})
		var in events.KinesisEvent
		for _, r := range records {
			in.Records = append(in.Records, events.KinesisEventRecord{Kinesis: events.KinesisRecord{SequenceNumber: r.sequence, Data: []byte(r.text)}})
		}
		out, err := h(ctx, in)
		for _, f := range out.BatchItemFailures {
			named = append(named, f.ItemIdentifier)
		}
		return named, err
	},
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

func (b *bench) occupy(t *testing.T, key string) {
	t.Helper()
	_, err := b.store.Store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Hour})
	require.NoError(t, err)
}

func (b *bench) free(t *testing.T, keys ...string) {
	t.Helper()
	for _, k := range keys {
		status, err := b.store.Inspect(context.Background(), k)
		require.NoError(t, err)
		require.False(t, status.Held, "%s is held", k)
	}
}

// line is the only line of the log.
func (b *bench) line(t *testing.T) (line map[string]any) {
	t.Helper()
	require.Equal(t, 1, strings.Count(b.log.String(), "\n"), b.log.String())
	require.NoError(t, json.Unmarshal(b.log.Bytes(), &line))
	return line
}

func bubble(name string, t *testing.T, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
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
		{"at the last record", []string{"a", "b fail"}, "2", 2, "a b", "own"},
	} {
		for source, run := range sources {
			bubble(c.name+"/"+source, t, func(t *testing.T) {
				b := newBench(t, guard.Options{})
				b.occupy(t, "held")
				named, err := run(context.Background(), b, records(c.texts...))
				require.NoError(t, err)
				if c.stop == "" {
					require.Empty(t, named)
					require.Empty(t, b.log.String())
				} else {
					require.Equal(t, []string{c.stop}, named)
					line := b.line(t)
					require.Equal(t, c.stop, line["sequenceNumber"])
					require.Equal(t, "r-1", line["requestId"])
					require.Contains(t, line["error"], c.why)
					require.Equal(t, strings.Contains(c.why, "boom"), line["stack"] != nil)
				}
				var ran, asked []string
				for _, r := range records(c.texts...)[:c.ran] {
					ran = append(ran, r.sequence)
				}
				require.Equal(t, ran, b.ran, "in the stream's order")
				for _, req := range b.store.asked {
					asked = append(asked, req.Key)
				}
				require.Equal(t, c.asked, strings.Join(asked, " "), "one acquire for each run of equal keys")
				b.free(t, "a", "b", "c")
			})
		}
	}
}

func TestInput(t *testing.T) {
	for source, run := range sources {
		ctx := context.Background()
		bubble("an empty batch is a success/"+source, t, func(t *testing.T) {
			named, err := run(ctx, newBench(t, guard.Options{}), nil)
			require.NoError(t, err)
			require.Empty(t, named)
		})
		bubble("a record without a sequence number fails the invocation before anything ran/"+source, t, func(t *testing.T) {
			b := newBench(t, guard.Options{})
			named, err := run(ctx, b, []record{{"1", "a"}, {"", "a"}})
			require.ErrorContains(t, err, "record 2 of 2 has no sequence number")
			require.Empty(t, named)
			require.Empty(t, b.ran)
			require.Empty(t, b.store.asked)
		})
		bubble("F72 a sequence number that is twice in the batch is named once/"+source, t, func(t *testing.T) {
			b := newBench(t, guard.Options{})
			named, err := run(ctx, b, []record{{"1", "a"}, {"1", "a fail"}, {"1", "a fail"}})
			require.NoError(t, err)
			require.Equal(t, []string{"1"}, named)
			require.Len(t, b.ran, 2)
		})
	}
	t.Run("the answer to a good batch is the form that Lambda reads", func(t *testing.T) {
		b := newBench(t, guard.Options{})
		d, err := WrapDynamoDB(b.Guard, func(context.Context, events.DynamoDBEventRecord) (string, error) { return "k", nil },
			func(context.Context, guard.Lock, events.DynamoDBEventRecord) error { return nil })(context.Background(), events.DynamoDBEvent{})
		require.NoError(t, err)
		k, err := WrapKinesis(b.Guard, func(context.Context, events.KinesisEventRecord) (string, error) { return "k", nil },
			func(context.Context, guard.Lock, events.KinesisEventRecord) error { return nil })(context.Background(), events.KinesisEvent{})
		require.NoError(t, err)
		for _, out := range []any{d, k} {
			text, err := json.Marshal(out)
			require.NoError(t, err)
			require.JSONEq(t, `{"batchItemFailures":[]}`, string(text))
		}
	})
	t.Run("F51 nil arguments are errors of every invocation", func(t *testing.T) {
		b := newBench(t, guard.Options{})
		key := func(context.Context, events.KinesisEventRecord) (string, error) { return "k", nil }
		work := func(context.Context, guard.Lock, events.KinesisEventRecord) error { return nil }
		dkey := func(context.Context, events.DynamoDBEventRecord) (string, error) { return "k", nil }
		dwork := func(context.Context, guard.Lock, events.DynamoDBEventRecord) error { return nil }
		for want, h := range map[string]func(context.Context, events.KinesisEvent) (events.KinesisEventResponse, error){
			"guard is nil": WrapKinesis(nil, key, work), "key function is nil": WrapKinesis(b.Guard, nil, work), "work is nil": WrapKinesis(b.Guard, key, nil),
		} {
			_, err := h(context.Background(), events.KinesisEvent{})
			require.ErrorContains(t, err, want)
		}
		for want, h := range map[string]func(context.Context, events.DynamoDBEvent) (events.DynamoDBEventResponse, error){
			"guard is nil": WrapDynamoDB(nil, dkey, dwork), "key function is nil": WrapDynamoDB(b.Guard, nil, dwork), "work is nil": WrapDynamoDB(b.Guard, dkey, nil),
		} {
			_, err := h(context.Background(), events.DynamoDBEvent{})
			require.ErrorContains(t, err, want)
		}
	})
}

func TestLifeCycle(t *testing.T) {
	ctx := context.Background()
	bubble("F65 what is not begun when the time is over is delivered again", t, func(t *testing.T) {
		b := newBench(t, guard.Options{})
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		require.Equal(t, "3", b.run(t, ctx, "a second", "b second", "b until", "b", "c"))
		require.Equal(t, []string{"1", "2", "3"}, b.ran)
	})
	bubble("F65 work that finishes although its time is over is done", t, func(t *testing.T) {
		for _, next := range []string{"a", "b"} {
			b := newBench(t, guard.Options{})
			b.do = func(ctx context.Context, _ record) error {
				<-ctx.Done()
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			require.Equal(t, "2", b.run(t, ctx, "a", next))
			require.Len(t, b.ran, 1)
		}
	})
	bubble("F64 a guard that waits goes on when the other is done", t, func(t *testing.T) {
		b := newBench(t, guard.Options{Wait: 5 * time.Second})
		first := make(chan string)
		go func() { first <- b.run(t, ctx, "a second", "a second") }()
		synctest.Wait()
		require.Empty(t, b.run(t, ctx, "a"))
		require.Empty(t, <-first)
		require.Len(t, b.ran, 3)
		require.Empty(t, b.log.String())
	})
	bubble("F64 a batch that comes twice at once: each record runs in one of them", t, func(t *testing.T) {
		b := newBench(t, guard.Options{})
		first := make(chan string)
		go func() { first <- b.run(t, ctx, "a second", "b") }()
		synctest.Wait()
		require.Equal(t, "1", b.run(t, ctx, "a second", "b"))
		require.Empty(t, <-first)
		require.Len(t, b.ran, 2)
		require.Equal(t, "INFO", b.line(t)["level"])
		require.EqualValues(t, 2, b.line(t)["left"])
	})
	bubble("F35 a lock that is lost stops at the first record under it: the work of record 3 ran without it, too", t, func(t *testing.T) {
		b := newBench(t, guard.Options{TTL: 3 * time.Second})
		b.do = func(_ context.Context, r record) error {
			switch r.sequence {
			case "3":
				assert.NoError(t, b.store.Store.Release(context.Background(), lockstore.Lease{Key: "a", Owner: b.store.asked[1].Owner}))
			case "4":
				<-time.After(10 * time.Second) // until a renewal finds out
			}
			return nil
		}
		require.Equal(t, "2", b.run(t, ctx, "b", "a", "a", "a", "a"))
		require.Equal(t, []string{"1", "2", "3", "4"}, b.ran)
		require.Contains(t, b.line(t)["error"], "may stand")
	})
	bubble("a nil pointer as an error stops at its record", t, func(t *testing.T) {
		b := newBench(t, guard.Options{})
		b.do = func(_ context.Context, r record) error {
			if r.sequence == "2" {
				return (*guard.LockLost)(nil)
			}
			return nil
		}
		require.Equal(t, "2", b.run(t, ctx, "a", "a", "a"))
		require.Len(t, b.ran, 2)
	})
	bubble("F35 a lock that the release finds lost stops at the first record under it", t, func(t *testing.T) {
		for _, last := range []string{"b", "b fail"} {
			b := newBench(t, guard.Options{})
			b.store.release = func(lease lockstore.Lease) error {
				if lease.Key == "b" {
					return lockstore.ErrLost
				}
				return nil
			}
			require.Equal(t, "2", b.run(t, ctx, "a", "b", last, "c"))
			require.Equal(t, []string{"1", "2", "3"}, b.ran)
		}
	})
	bubble("F44 a store that refuses stops at once, with the requests of one key", t, func(t *testing.T) {
		b := newBench(t, guard.Options{})
		b.store.acquire = func(lockstore.Request) error { return lockstore.ErrUnavailable }
		start := time.Now()
		require.Equal(t, "1", b.run(t, ctx, "a", "b", "c", "d"))
		require.LessOrEqual(t, time.Since(start), 6*time.Second)
		require.Less(t, len(b.store.asked), 40)
		require.Equal(t, "a", b.store.asked[len(b.store.asked)-1].Key)
		require.Equal(t, "WARN", b.line(t)["level"])
	})
	bubble("F69 shutdown: what runs may end, the rest is delivered again", t, func(t *testing.T) {
		b := newBench(t, guard.Options{})
		b.do = func(context.Context, record) error {
			b.Shutdown()
			return nil
		}
		require.Equal(t, "2", b.run(t, ctx, "a", "a", "b"))
		b.free(t, "a", "b")
	})
	bubble("F70 eight shards in one process are eight owners", t, func(t *testing.T) {
		b := newBench(t, guard.Options{Wait: time.Minute})
		inside, shared := 0, 0
		b.do = func(_ context.Context, r record) error {
			if r.text != "shared" {
				return nil
			}
			inside++ // no other has the key
			assert.Equal(t, 1, inside)
			<-time.After(time.Second)
			inside--
			shared++
			return nil
		}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				named, err := sources["DynamoDB"](ctx, b, records(fmt.Sprintf("k%d", i), "shared"))
				assert.NoError(t, err)
				assert.Empty(t, named)
			})
		}
		all.Wait()
		require.Equal(t, 8, shared)
		owners := map[lockstore.Owner]bool{}
		for _, req := range b.store.asked {
			owners[req.Owner] = true
		}
		require.GreaterOrEqual(t, len(owners), 16)
	})
	bubble("a panic of the observer is not hidden", t, func(t *testing.T) {
		b := newBench(t, guard.Options{Observe: func(context.Context, guard.Report) { panic("observer boom") }})
		require.Equal(t, "1", b.run(t, ctx, "a", "a"))
		require.Contains(t, b.line(t)["error"], "observer boom")
	})
}
