package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

const key = "schedule/nightly"

type event struct {
	ID string `json:"id"`
}

type requestID struct{}

// request is the context of an invocation with this request id.
func request(id string) context.Context {
	return context.WithValue(context.Background(), requestID{}, id)
}

// bench is a guard over a memory store, with the outcomes it reported. A run with the request id panics cannot say who it is.
type bench struct {
	*guard.Guard
	store *lockstore.Store // without faults
	fault storetest.Fault

	mu       sync.Mutex
	outcomes []guard.Outcome
}

func newBench(t *testing.T, wait time.Duration) *bench {
	t.Helper()
	b := &bench{store: memstore.New(nil)}
	g, err := guard.New(storetest.NewFaulty(b.store, func(storetest.Call) storetest.Fault { return b.fault }).Store, guard.Options{
		Wait: wait,
		HolderInfo: func(ctx context.Context) lockstore.HolderInfo {
			id, _ := ctx.Value(requestID{}).(string)
			if id == "panics" {
				panic("boom")
			}
			return lockstore.HolderInfo{Name: "nightly", ID: id}
		},
		Observe: func(_ context.Context, r guard.Report) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.outcomes = append(b.outcomes, r.Outcome)
		},
	})
	require.NoError(t, err)
	b.Guard = g
	return b
}

// crashed leaves the lease of a run that was killed.
func (b *bench) crashed(t *testing.T, id string) lockstore.Lease {
	t.Helper()
	lease, err := b.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute,
		HolderInfo: lockstore.HolderInfo{Name: "nightly", ID: id, Since: time.Now()}})
	require.NoError(t, err)
	return lease
}

func bubble(name string, t *testing.T, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// Whether a run is skipped, and which error it is otherwise, when it does not get the lock.
func TestRunsWithoutTheLock(t *testing.T) {
	longID := "a\tb" + strings.Repeat("é", 256) // is cleaned and cut
	for name, c := range map[string]struct {
		id     string // of the request
		holder string // what the crashed run was
		wait   time.Duration
		limit  time.Duration // until the deadline; 0 is none
		then   func(t *testing.T, b *bench, held lockstore.Lease)
		want   error // nil: it is skipped
	}{
		"F64 F70 another run works":               {id: "r-2", holder: "r-1"},
		"F64 a guard that waits waits before":     {id: "r-2", holder: "r-1", wait: 5 * time.Second},
		"empty ids are never the same":            {},
		"F63 its own crashed try":                 {id: "r-1", holder: "r-1", want: &guard.LockBusy{}},
		"F63 its own crashed try, with a long id": {id: longID, holder: longID, want: &guard.LockBusy{}},
		"F81 it cannot say who it is":             {id: "panics", holder: "r-1", want: &guard.LockBusy{}},
		"F65 a deadline that is too near":         {id: "r-2", holder: "r-1", limit: 300 * time.Millisecond, want: &guard.LockNoTime{}},
		"F63 revoked: nobody does this work, either": {id: "r-2", holder: "r-1", want: &guard.LockBusy{}, then: func(t *testing.T, b *bench, held lockstore.Lease) {
			_, err := b.store.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: held.Fence, By: lockstore.HolderInfo{Name: "an operator", ID: "4711"}})
			require.NoError(t, err)
		}},
		"F02 reserved for runs that wait: they may have died": {id: "r-2", holder: "r-1", want: &guard.LockBusy{}, then: func(t *testing.T, b *bench, held lockstore.Lease) {
			_, err := b.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "dead", TTL: time.Minute, JoinQueue: true})
			require.ErrorIs(t, err, lockstore.ErrRefused)
			require.NoError(t, b.store.Release(t.Context(), held))
		}},
		"in doubt": {id: "r-2", holder: "r-1", want: &guard.LockBusy{}, then: func(t *testing.T, b *bench, held lockstore.Lease) {
			require.NoError(t, b.store.MarkStarted(t.Context(), held))
			<-time.After(time.Hour)
		}},
		"F44 a store that is down": {id: "r-2", holder: "r-1", want: &guard.LockStoreUnavailable{}, then: func(_ *testing.T, b *bench, _ lockstore.Lease) {
			b.fault.Drop = lockstore.ErrUnavailable
		}},
	} {
		on(name, t, c.wait, func(t *testing.T, b *bench) {
			held := b.crashed(t, c.holder)
			if c.then != nil {
				c.then(t, b, held)
			}
			ctx := request(c.id)
			if c.limit > 0 {
				limited, cancel := context.WithTimeout(ctx, c.limit)
				defer cancel()
				ctx = limited
			}
			start := time.Now()
			out, err := Wrap(b.Guard, key, func(context.Context, guard.Lock, event) error { t.Error("the work ran"); return nil }).Handle(ctx, []byte("{}"))
			if c.want != nil {
				require.IsType(t, c.want, err)
				require.Equal(t, Result{}, out)
				return
			}
			require.NoError(t, err)
			require.True(t, out.Skipped)
			require.Equal(t, []string{"nightly", c.holder}, []string{out.Holder.Name, out.Holder.ID})
			text, err := json.Marshal(out)
			require.NoError(t, err)
			require.Contains(t, string(text), `{"skipped":true,"holder":{"name":"nightly"`)
			require.Equal(t, c.wait, time.Since(start))
			require.Equal(t, []guard.Outcome{guard.OutcomeBusy}, b.outcomes, "it is counted")
		})
	}
}

func TestWrap(t *testing.T) {
	on("runs under the lock of the key, and its own errors pass, another lock's too", t, 0, func(t *testing.T, b *bench) {
		for _, own := range []error{nil, errors.New("own"), &guard.LockBusy{Key: "inner", Holder: lockstore.HolderInfo{ID: "r-9"}}, &guard.LockLost{Key: "inner"}, uncomparable{"a"}} {
			out, err := Wrap(b.Guard, key, func(_ context.Context, lock guard.Lock, e event) error {
				assert.Equal(t, key, lock.Key)
				assert.Positive(t, lock.Fence)
				assert.Equal(t, "e-1", e.ID)
				return own
			}).Handle(request("r-1"), []byte(`{"id": "e-1"}`))
			require.Equal(t, own, err)
			require.Equal(t, Result{}, out)
		}
	})
	on("F64 with a cooldown a duplicate trigger after the run is skipped, the next run is not, and not after an error", t, 0, func(t *testing.T, b *bench) {
		runs, own := 0, error(nil)
		h := Wrap(b.WithCooldown(30*time.Second), key, func(context.Context, guard.Lock, event) error { runs++; return own })
		for i, c := range []struct {
			after   time.Duration
			id      string
			skipped bool
			own     error
		}{{0, "a", false, nil}, {0, "a", true, nil}, {29 * time.Second, "b", true, nil}, {time.Second, "c", false, errors.New("own")}, {0, "d", false, nil}} {
			<-time.After(c.after)
			own = c.own
			out, err := h.Handle(request(c.id), []byte("{}"))
			require.Equal(t, c.own, err)
			require.Equal(t, c.skipped, out.Skipped, "trigger %d", i)
			if c.skipped {
				require.Equal(t, "a", out.Holder.ID, "who did the work")
			}
		}
		require.Equal(t, 3, runs)
	})
}

func TestRefused(t *testing.T) {
	b := newBench(t, 0)
	good := func(context.Context, guard.Lock, event) error { return nil }
	for _, c := range []struct {
		name string
		g    *guard.Guard
		key  string
		work func(context.Context, guard.Lock, event) error
		want string
	}{
		{"F51 nil guard", nil, key, good, "guard is nil"},
		{"F51 a guard that New did not make", new(guard.Guard), key, good, "not made by New"},
		{"F51 nil work", b.Guard, key, nil, "work is nil"},
		{"F52 empty key", b.Guard, "", good, "is empty"},
		{"F52 key with a line break", b.Guard, "a\nb", good, "control character"},
		{"F48 a cooldown out of its bounds", b.WithCooldown(1), key, good, "the cooldown is 1ns; want 1s to 24h"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Wrap(c.g, c.key, c.work).Handle(request("r-1"), []byte("{}"))
			require.ErrorContains(t, err, c.want)
		})
	}
	require.Empty(t, b.outcomes)
}

func TestEvents(t *testing.T) {
	b := newBench(t, 0)
	var ran []event
	h := Wrap(b.Guard, key, func(_ context.Context, _ guard.Lock, e event) error {
		ran = append(ran, e)
		return nil
	})
	handle := func(in string) error {
		out, err := lambda.NewHandler(h.Handle).Invoke(request("r-1"), []byte(in))
		require.Equal(t, err == nil, strings.TrimSpace(string(out)) == `{"skipped":false}`)
		return err
	}
	for in, is := range map[string]string{
		`{"Records": [{"messageId": "m", "eventSource": "aws:sqs"}]}`:                "a batch of SQS",
		`[{"messageId": "m", "eventSource": "aws:sqs"}]`:                             "a batch of SQS, as a JSON array such as EventBridge Pipes sends",
		`{"deliveryStreamArn": "a", "records": [{"recordId": "1"}]}`:                 "a batch of Firehose",
		`{"httpMethod": "POST", "requestContext": {"elb": {"targetGroupArn": "a"}}}`: "a request of a load balancer",
	} {
		require.ErrorContains(t, handle(in), "schedule: the event is "+is+"; want one of a schedule", in)
	}
	for _, in := range []string{`[]`, `"text"`, `{"id": 5}`} {
		require.ErrorContains(t, handle(in), "json: cannot unmarshal", in)
	}
	require.Empty(t, ran)
	require.Empty(t, b.outcomes)
	for _, in := range []string{
		`{"id": "e", "detail-type": "Scheduled Event", "source": "aws.events"}`,
		`{"id": "e", "records": [{"n": 1}], "eventSource": "nightly"}`, // an input of one's own
		`{"id": "e", "Records": [{"eventSource": "aws:s3"}]}`,
		`{"id": "e"}`,
	} {
		require.NoError(t, handle(in), in)
	}
	require.Equal(t, []event{{"e"}, {"e"}, {"e"}, {"e"}}, ran)

	var customers []string
	array := Wrap(b.Guard, key, func(_ context.Context, _ guard.Lock, in []string) error {
		customers = in
		return nil
	})
	_, err := array.Handle(request("r-1"), []byte(`["acme", "zeta"]`))
	require.NoError(t, err, "an array of one's own")
	require.Equal(t, []string{"acme", "zeta"}, customers)
}

// A pipe deletes its records after a success, and a skipped run is one.
func TestAPipeWhileTheLockIsHeld(t *testing.T) {
	b := newBench(t, 0)
	b.crashed(t, "r-1")
	handler := Wrap(b.Guard, key, func(context.Context, guard.Lock, []json.RawMessage) error { return nil })
	for _, source := range []string{"aws:sqs", "aws:kinesis", "aws:dynamodb", "aws:kafka", "aws:amq"} {
		out, err := handler.Handle(request("r-2"), []byte(`[{"eventSource": "`+source+`"}]`))
		require.ErrorContains(t, err, "nothing was run", source)
		require.Equal(t, Result{}, out)
	}
	require.Empty(t, b.outcomes)
}

type uncomparable []string

func (u uncomparable) Error() string { return u[0] }

// on is a bubble with a bench.
func on(name string, t *testing.T, wait time.Duration, f func(*testing.T, *bench)) {
	bubble(name, t, func(t *testing.T) { f(t, newBench(t, wait)) })
}
