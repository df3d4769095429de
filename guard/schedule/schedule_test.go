package schedule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
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

// bench is a guard over a memory store, with the outcomes it reported.
type bench struct {
	*guard.Guard
	store *lockstore.Store // without faults

	mu       sync.Mutex
	outcomes []guard.Outcome
}

func newBench(t *testing.T, wait time.Duration, plan func(storetest.Call) storetest.Fault) *bench {
	t.Helper()
	b := &bench{store: memstore.New(nil)}
	g, err := guard.New(storetest.NewFaulty(b.store, plan).Store, guard.Options{
		Wait: wait,
		HolderInfo: func(ctx context.Context) lockstore.HolderInfo {
			id, _ := ctx.Value(requestID{}).(string)
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
func (b *bench) crashed(t *testing.T, id string, ttl time.Duration) {
	t.Helper()
	_, err := b.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl,
		HolderInfo: lockstore.HolderInfo{Name: "nightly", ID: id}})
	require.NoError(t, err)
}

func neverRuns(t *testing.T) func(context.Context, guard.Lock, event) error {
	return func(context.Context, guard.Lock, event) error {
		t.Error("the work ran")
		return nil
	}
}

// counts counts its runs and takes the time d.
func counts(runs *int, d time.Duration) func(context.Context, guard.Lock, event) error {
	return func(context.Context, guard.Lock, event) error {
		*runs++
		<-time.After(d)
		return nil
	}
}

func bubble(name string, t *testing.T, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestWrap(t *testing.T) {
	on("runs under the lock of the key", t, 0, nil, func(t *testing.T, b *bench) {
		h := Wrap(b.Guard, key, func(_ context.Context, lock guard.Lock, e event) error {
			assert.Equal(t, key, lock.Key)
			assert.Positive(t, lock.Fence)
			assert.Equal(t, "e-1", e.ID)
			return nil
		})
		out, err := h.Handle(request("r-1"), []byte(`{"id": "e-1"}`))
		require.NoError(t, err)
		require.Equal(t, Result{}, out)
		require.Equal(t, []guard.Outcome{guard.OutcomeOK}, b.outcomes)
	})
	on("F64 F70 an overlapping run in one process is skipped, as a success that is counted", t, 0, nil, func(t *testing.T, b *bench) {
		runs := 0
		h := Wrap(b.Guard, key, counts(&runs, time.Minute))
		first := make(chan error)
		go func() {
			_, err := h.Handle(request("r-1"), []byte("{}"))
			first <- err
		}()
		synctest.Wait()
		out, err := h.Handle(request("r-2"), []byte("{}"))
		require.NoError(t, err)
		require.True(t, out.Skipped)
		require.Equal(t, "r-1", out.Holder.ID)
		require.Equal(t, "nightly", out.Holder.Name)
		require.NoError(t, <-first)
		require.Equal(t, 1, runs)
		require.Equal(t, []guard.Outcome{guard.OutcomeBusy, guard.OutcomeOK}, b.outcomes)
	})
	bubble("a skip is a warning if the other run hangs", t, func(t *testing.T) {
		var log bytes.Buffer
		store := memstore.New(nil)
		g, err := guard.New(store, guard.Options{Observe: guard.LogReports(slog.New(slog.NewTextHandler(&log, nil)))})
		require.NoError(t, err)
		lease, err := store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, HolderInfo: lockstore.HolderInfo{Name: "hangs", Since: time.Now()}})
		require.NoError(t, err)
		for _, level := range []string{"INFO", "WARN", "WARN"} {
			out, err := Wrap(g, key, neverRuns(t)).Handle(request("r-1"), []byte("{}"))
			require.NoError(t, err)
			require.True(t, out.Skipped)
			require.Contains(t, log.String(), "level="+level+" msg=lock")
			log.Reset()
			for range 24 * 60 * 2 {
				<-time.After(30 * time.Second)
				lease, err = store.Renew(t.Context(), lease, time.Minute)
				require.NoError(t, err)
			}
		}
	})
	bubble("F81 a run that cannot say who it is does not skip: the holder may be its own crashed try", t, func(t *testing.T) {
		store := memstore.New(nil)
		g, err := guard.New(store, guard.Options{HolderInfo: func(context.Context) lockstore.HolderInfo { panic("boom") }})
		require.NoError(t, err)
		_, err = store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, HolderInfo: lockstore.HolderInfo{Name: "nightly", ID: "r-1"}})
		require.NoError(t, err)
		_, err = Wrap(g, key, neverRuns(t)).Handle(request("r-1"), []byte("{}"))
		require.IsType(t, &guard.LockBusy{}, err)
	})
	on("F63 a run does not skip on its own crashed try", t, 0, nil, func(t *testing.T, b *bench) {
		runs := 0
		h := Wrap(b.Guard, key, counts(&runs, time.Second))
		b.crashed(t, "r-1", 90*time.Second)
		<-time.After(time.Minute)
		_, err := h.Handle(request("r-1"), []byte("{}"))
		require.IsType(t, &guard.LockBusy{}, err, "Lambda tries again")
		require.Zero(t, runs)
		<-time.After(2 * time.Minute)
		out, err := h.Handle(request("r-1"), []byte("{}"))
		require.NoError(t, err)
		require.False(t, out.Skipped)
		require.Equal(t, 1, runs)
	})
	on("F63 a revoked lease is nobody's work, so no run skips on it", t, 0, nil, func(t *testing.T, b *bench) {
		b.crashed(t, "r-1", 90*time.Second)
		status, err := b.store.Inspect(t.Context(), key)
		require.NoError(t, err)
		_, err = b.store.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: status.Fence, By: lockstore.HolderInfo{Name: "an operator", ID: "4711"}})
		require.NoError(t, err)
		for _, id := range []string{"r-1", "r-2"} {
			_, err := Wrap(b.Guard, key, neverRuns(t)).Handle(request(id), []byte("{}"))
			require.IsType(t, &guard.LockBusy{}, err)
		}
	})
	on("F63 also when its id is long and has to be cleaned", t, 0, nil, func(t *testing.T, b *bench) {
		id := "a\tb" + strings.Repeat("é", lockstore.MaxHolderBytes)
		b.crashed(t, id, time.Minute)
		_, err := Wrap(b.Guard, key, neverRuns(t)).Handle(request(id), []byte("{}"))
		require.IsType(t, &guard.LockBusy{}, err)
	})
	on("empty ids are never the same", t, 0, nil, func(t *testing.T, b *bench) {
		b.crashed(t, "", time.Minute)
		out, err := Wrap(b.Guard, key, neverRuns(t)).Handle(request(""), []byte("{}"))
		require.NoError(t, err)
		require.True(t, out.Skipped)
	})
	on("F64 a guard that waits waits before it skips", t, 5*time.Second, nil, func(t *testing.T, b *bench) {
		b.crashed(t, "r-1", time.Minute)
		start := time.Now()
		out, err := Wrap(b.Guard, key, neverRuns(t)).Handle(request("r-2"), []byte("{}"))
		require.NoError(t, err)
		require.True(t, out.Skipped)
		require.Equal(t, 5*time.Second, time.Since(start))
	})
	on("F02 a lock that is reserved for runs that wait is an error, not a skip: they may have died", t, 0, nil, func(t *testing.T, b *bench) {
		held, err := b.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "holder", TTL: time.Minute})
		require.NoError(t, err)
		_, err = b.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "dead", TTL: time.Minute, JoinQueue: true})
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.NoError(t, b.store.Release(t.Context(), held))
		_, err = Wrap(b.Guard, key, neverRuns(t)).Handle(request("r-2"), []byte("{}"))
		require.IsType(t, &guard.LockBusy{}, err)
		<-time.After(lockstore.Turn)
		out, err := Wrap(b.Guard, key, func(context.Context, guard.Lock, event) error { return nil }).Handle(request("r-2"), []byte("{}"))
		require.NoError(t, err)
		require.False(t, out.Skipped)
	})
	on("the work's own errors pass, another lock's too, and free the key", t, 0, nil, func(t *testing.T, b *bench) {
		for _, own := range []error{errors.New("own"), &guard.LockBusy{Key: "inner", Holder: lockstore.HolderInfo{ID: "r-9"}}, &guard.LockLost{Key: "inner"}, uncomparable{"a"}} {
			out, err := Wrap(b.Guard, key, func(context.Context, guard.Lock, event) error { return own }).Handle(request("r-1"), []byte("{}"))
			require.Equal(t, own, err)
			require.Equal(t, Result{}, out)
		}
	})
	on("F04 a panic passes, after the release", t, 0, nil, func(t *testing.T, b *bench) {
		h := Wrap(b.Guard, key, func(context.Context, guard.Lock, event) error { panic("boom") })
		require.PanicsWithValue(t, "boom", func() { h.Handle(request("r-1"), []byte("{}")) })
		out, err := Wrap(b.Guard, key, func(context.Context, guard.Lock, event) error { return nil }).Handle(request("r-2"), []byte("{}"))
		require.NoError(t, err)
		require.False(t, out.Skipped)
	})
	on("F65 a deadline that is too near is an error, not a skip", t, 0, nil, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithTimeout(request("r-1"), 300*time.Millisecond)
		defer cancel()
		out, err := Wrap(b.Guard, key, neverRuns(t)).Handle(ctx, []byte("{}"))
		require.IsType(t, &guard.LockDeadline{}, err)
		require.Equal(t, Result{}, out)
	})
	on("F44 a store that refuses is an error, not a skip", t, 0, func(storetest.Call) storetest.Fault { return storetest.Fault{Drop: lockstore.ErrUnavailable} }, func(t *testing.T, b *bench) {
		_, err := Wrap(b.Guard, key, neverRuns(t)).Handle(request("r-1"), []byte("{}"))
		require.IsType(t, &guard.LockStoreUnavailable{}, err)
	})
}

func TestCooldown(t *testing.T) {
	wrap := func(t *testing.T, b *bench, d time.Duration, work func(context.Context, guard.Lock, event) error) guard.Wrapped[json.RawMessage, Result] {
		t.Helper()
		return Wrap(b.WithCooldown(d), key, work)
	}
	on("F64 a duplicate trigger after the run is skipped, the next run is not", t, 0, nil, func(t *testing.T, b *bench) {
		runs := 0
		h := wrap(t, b, 30*time.Second, counts(&runs, time.Second))
		for i, c := range []struct {
			after   time.Duration
			skipped bool
		}{{0, false}, {0, true}, {29 * time.Second, true}, {time.Second, false}} {
			<-time.After(c.after)
			out, err := h.Handle(request("r-"+string(rune('a'+i))), []byte("{}"))
			require.NoError(t, err)
			require.Equal(t, c.skipped, out.Skipped, "trigger %d", i)
		}
		require.Equal(t, 2, runs)
	})
	on("after an error the key is free at once", t, 0, nil, func(t *testing.T, b *bench) {
		own := errors.New("own")
		_, err := wrap(t, b, time.Hour, func(context.Context, guard.Lock, event) error { return own }).Handle(request("r-1"), []byte("{}"))
		require.Equal(t, own, err)
		runs := 0
		out, err := wrap(t, b, time.Hour, counts(&runs, 0)).Handle(request("r-1"), []byte("{}"))
		require.NoError(t, err)
		require.False(t, out.Skipped)
		require.Equal(t, 1, runs)
	})
	on("the event whose work is done is skipped when it comes again", t, 0, nil, func(t *testing.T, b *bench) {
		runs := 0
		h := wrap(t, b, time.Hour, counts(&runs, 0))
		_, err := h.Handle(request("r-1"), []byte("{}"))
		require.NoError(t, err)
		out, err := h.Handle(request("r-1"), []byte("{}"))
		require.NoError(t, err)
		require.Equal(t, Result{Skipped: true, Holder: out.Holder}, out)
		require.Equal(t, "r-1", out.Holder.ID)
		require.Equal(t, 1, runs)
	})
	on("a second trigger that would wait for longer than the cooldown is skipped, too", t, time.Minute, nil, func(t *testing.T, b *bench) {
		runs := 0
		h := wrap(t, b, 10*time.Second, counts(&runs, time.Second))
		skipped := make(chan bool, 2)
		for _, id := range []string{"r-1", "r-2"} {
			go func() {
				out, err := h.Handle(request(id), []byte("{}"))
				assert.NoError(t, err)
				skipped <- out.Skipped
			}()
		}
		require.NotEqual(t, <-skipped, <-skipped)
		require.Equal(t, 1, runs)
	})
	on("a key in doubt is an error, not a skip", t, 0, nil, func(t *testing.T, b *bench) {
		lease, err := b.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "dead", TTL: time.Second})
		require.NoError(t, err)
		require.NoError(t, b.store.MarkStarted(t.Context(), lease))
		<-time.After(time.Minute)
		_, err = Wrap(b.Guard, key, neverRuns(t)).Handle(request("r-1"), []byte("{}"))
		busy, ok := err.(*guard.LockBusy)
		require.True(t, ok, "%T", err)
		require.Equal(t, lockstore.InDoubt, busy.State)
	})
}

func TestRefused(t *testing.T) {
	b := newBench(t, 0, nil)
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
	b := newBench(t, 0, nil)
	var ran []event
	h := Wrap(b.Guard, key, func(_ context.Context, _ guard.Lock, e event) error {
		ran = append(ran, e)
		return nil
	})
	handle := func(in string) error {
		_, err := lambda.NewHandler(h.Handle).Invoke(request("r-1"), []byte(in))
		return err
	}
	for in, is := range map[string]string{
		`{"Records": [{"messageId": "m", "eventSource": "aws:sqs"}]}`:                "a batch of SQS",
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
}

func TestResultJSON(t *testing.T) {
	for want, r := range map[string]Result{
		`{"skipped":false}`: {},
		`{"skipped":true,"holder":{"name":"nightly","id":"r-1"}}`: {Skipped: true, Holder: lockstore.HolderInfo{Name: "nightly", ID: "r-1"}},
	} {
		got, err := json.Marshal(r)
		require.NoError(t, err)
		require.JSONEq(t, want, string(got))
	}
}

type uncomparable []string

func (u uncomparable) Error() string { return u[0] }

// on is a bubble with a bench.
func on(name string, t *testing.T, wait time.Duration, plan func(storetest.Call) storetest.Fault, f func(*testing.T, *bench)) {
	bubble(name, t, func(t *testing.T) { f(t, newBench(t, wait, plan)) })
}
