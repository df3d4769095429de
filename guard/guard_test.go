package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func TestNew(t *testing.T) {
	for want, none := range map[string]*lockstore.Store{
		"the store is nil":           nil,
		"the store was not made":     new(lockstore.Store),
		"nostore: the driver is nil": lockstore.New("nostore", (*hookedDriver)(nil)),
	} {
		_, err := New(none, Options{})
		require.ErrorContains(t, err, want, "F51")
	}
	store := memstore.New(nil)
	for _, c := range []struct {
		name string
		opt  Options
		want []string // parts of the error; none: it is fine
	}{
		{"the zero value", Options{}, nil},
		{"F48 negative TTL", Options{TTL: -1}, []string{"TTL is -1ns", "0 (the default)"}},
		{"F48 TTL below a millisecond", Options{TTL: time.Microsecond}, []string{"TTL is 1µs", "1s"}},
		{"F48 TTL over the store's bound", Options{TTL: lockstore.MaxTTL + 1}, []string{"24h"}},
		{"F48 the largest duration there is", Options{TTL: math.MaxInt64}, []string{"24h"}},
		{"F48 negative MaxHold", Options{MaxHold: -time.Second}, []string{"MaxHold is -1s"}},
		{"F48 a TTL that would raise MaxHold over its bound", Options{TTL: 30 * time.Hour}, []string{"TTL is 30h0m0s", "24h"}},
		{"F48 MaxHold too small", Options{MaxHold: time.Millisecond}, []string{"MaxHold is 1ms", "1s"}},
		{"F48 MaxHold too large", Options{MaxHold: 25 * time.Hour}, []string{"MaxHold is 25h", "24h"}},
		{"F48 negative Wait", Options{Wait: -1}, []string{"Wait is -1ns"}},
		{"F48 Wait too large", Options{Wait: 25 * time.Hour}, []string{"Wait is 25h", "24h"}},
		{"F48 negative DeadlineMargin", Options{DeadlineMargin: -1}, []string{"DeadlineMargin is -1ns"}},
		{"F49 TTL and MaxHold", Options{TTL: time.Minute, MaxHold: 30 * time.Second}, []string{"TTL is 1m0s", "MaxHold is 30s"}},
		{"F49 DeadlineMargin and MaxHold", Options{DeadlineMargin: time.Minute, MaxHold: time.Minute}, []string{"DeadlineMargin is 1m0s", "MaxHold is 1m0s"}},
		{"F48 the least TTL", Options{TTL: time.Second}, nil},
		{"F48 the longest TTL", Options{TTL: 24 * time.Hour}, nil},
		{"F48 the least MaxHold", Options{MaxHold: time.Second}, nil},
		{"F48 the longest MaxHold", Options{MaxHold: 24 * time.Hour}, nil},
		{"F48 the longest Wait", Options{Wait: 24 * time.Hour}, nil},
		{"F49 the longest DeadlineMargin", Options{DeadlineMargin: 900 * time.Millisecond, MaxHold: time.Second}, nil},
		{"F49 one more", Options{DeadlineMargin: 900*time.Millisecond + 1, MaxHold: time.Second}, []string{"DeadlineMargin is 900.000001ms", "at most MaxHold less 100ms"}},
		{"a TTL over the default MaxHold raises it", Options{TTL: time.Hour}, nil},
		{"a MaxHold under the default TTL lowers it", Options{MaxHold: 5 * time.Second}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := New(store, c.opt)
			if c.want == nil {
				require.NoError(t, err)
				require.NoError(t, g.Do(context.Background(), "k", nothing))
				return
			}
			require.Nil(t, g)
			for _, part := range c.want {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

func TestNilArguments(t *testing.T) {
	t.Run("F51 a guard, a context and work that are nil are errors and no panic", func(t *testing.T) {
		ctx := context.Background()
		for _, g := range []*Guard{nil, new(Guard)} {
			require.ErrorIs(t, g.Do(ctx, "k", nothing), errNoGuard)
			g.Shutdown()
			g.Shutdown()
		}
		b := newBench(t, Options{})
		require.ErrorContains(t, b.Do(ctx, "k", nil), "work is nil")
		var none context.Context
		require.ErrorIs(t, b.Do(none, "k", nothing), errNoContext)
		_, err := b.Acquire(none, LeaseRequest{Key: "k", TTL: time.Second})
		require.ErrorIs(t, err, errNoContext)
		_, err = b.Renew(none, lockstore.Lease{}, time.Second)
		require.ErrorIs(t, err, errNoContext)
		require.ErrorIs(t, b.Release(none, lockstore.Lease{}), errNoContext)
		_, err = b.Inspect(none, "k")
		require.ErrorIs(t, err, errNoContext)
	})
}

// watched counts the contexts that hang on it.
type watched struct {
	context.Context
	done     chan struct{}
	children int
}

func (w *watched) Done() <-chan struct{} { return w.done }

func (w *watched) AfterFunc(func()) func() bool {
	w.children++
	return func() bool { w.children--; return true }
}

func TestPanicsOfStores(t *testing.T) {
	for name, set := range map[string]func(*bench){
		"acquire": func(b *bench) {
			b.store.acquire = func(context.Context, int, request) (driver.Answer, error) { panic("boom") }
		},
		"release": func(b *bench) {
			b.store.release = func(context.Context, int, request) (driver.Answer, error) { panic("boom") }
		},
	} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			set(b)
			ctx := &watched{Context: context.Background(), done: make(chan struct{})}
			require.PanicsWithValue(t, "boom", func() { b.Do(ctx, "k", nothing) })
			require.Zero(t, ctx.children, "the run's context is still open")
			require.Empty(t, b.runs.runs, "the guard still knows the run")
		})
	}
}

func TestWrap(t *testing.T) {
	key := func(_ context.Context, in string) (string, error) { return in, nil }
	echo := func(_ context.Context, lock Lock, in string) (string, error) { return in + " under " + lock.Key, nil }
	ctx := context.Background()

	t.Run("runs the handler under the key's lock", func(t *testing.T) {
		b := newBench(t, Options{})
		out, err := Wrap(b.Guard, key, echo).Handle(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, "k under k", out)
	})
	t.Run("F56 an error of the key function: nothing runs", func(t *testing.T) {
		b := newBench(t, Options{})
		bad := errors.New("no id in the event")
		_, err := Wrap(b.Guard, func(context.Context, string) (string, error) { return "", bad }, func(context.Context, Lock, string) (string, error) {
			t.Error("ran")
			return "", nil
		}).Handle(ctx, "k")
		require.IsType(t, &LockInvalid{}, err)
		require.ErrorIs(t, err, bad)
		require.Empty(t, b.store.requests)
	})
	t.Run("F56 a panic of the key function: nothing runs", func(t *testing.T) {
		b := newBench(t, Options{})
		h := Wrap(b.Guard, func(context.Context, string) (string, error) { panic("boom") }, echo)
		require.PanicsWithValue(t, "boom", func() { h.Handle(ctx, "k") })
		require.Empty(t, b.store.requests)
	})
	t.Run("F51 nil functions and a nil guard are errors", func(t *testing.T) {
		b := newBench(t, Options{})
		for _, h := range []Wrapped[string, string]{
			Wrap[string, string](b.Guard, nil, echo), Wrap[string, string](b.Guard, key, nil),
			Wrap(b.Guard, key, Unfenced[string, string](nil)), Wrap(nil, key, echo),
			TakesOwnLocks[string, string](nil), {},
		} {
			_, err := h.Handle(ctx, "k")
			require.ErrorContains(t, err, "nil")
		}
	})
	t.Run("F51 a handler wrapped twice is refused, not locked out by itself", func(t *testing.T) {
		b := newBench(t, Options{})
		twice := Wrap(b.Guard, key, Unfenced(Wrap(b.Guard, key, echo).Handle))
		_, err := twice.Handle(ctx, "k")
		require.IsType(t, &LockInvalid{}, err)
		b.free(t, "k")
	})
	t.Run("a result that would be read after the release is refused", func(t *testing.T) {
		b := newBench(t, Options{})
		_, err := Wrap(b.Guard, key, func(context.Context, Lock, string) (*strings.Reader, error) {
			t.Error("ran")
			return nil, nil
		}).Handle(ctx, "k")
		require.ErrorIs(t, err, errStream)
		_, err = Wrap(b.Guard, key, func(context.Context, Lock, string) (io.ReadCloser, error) {
			t.Error("ran")
			return nil, nil
		}).Handle(ctx, "k")
		require.ErrorIs(t, err, errStream)
		_, err = Wrap(b.Guard, key, func(context.Context, Lock, string) (any, error) { return strings.NewReader("x"), nil }).Handle(ctx, "k")
		require.ErrorIs(t, err, errStream)
	})
	t.Run("the handler's result and error pass", func(t *testing.T) {
		b := newBench(t, Options{})
		bad := errors.New("bad")
		out, err := Wrap(b.Guard, key, func(context.Context, Lock, string) (string, error) { return "half", bad }).Handle(ctx, "k")
		require.Equal(t, "half", out)
		require.Equal(t, bad, err)
	})
}

func TestLogReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		store := newHooked()
		g, err := New(store.guarded(), Options{
			HolderInfo: func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{Name: "withdraw", ID: "req-1"} },
			Observe:    LogReports(slog.New(slog.NewJSONHandler(&out, nil))),
		})
		require.NoError(t, err)
		require.NoError(t, g.Do(context.Background(), "account/7", func(context.Context, Lock) error {
			pass(25 * time.Millisecond)
			return nil
		}))
		require.Equal(t, 1, strings.Count(out.String(), "\n"), "one line for each run")
		var line map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &line))
		assert.Equal(t, "lock", line["msg"])
		assert.Equal(t, "req-1", line["requestId"])
		assert.Equal(t, "account/7", line["key"])
		assert.Equal(t, "ok", line["outcome"])
		assert.EqualValues(t, 0, line["wait_ms"])
		assert.EqualValues(t, 25, line["hold_ms"])
		assert.EqualValues(t, store.releases[0].Fence, line["fence"])
		assert.EqualValues(t, 2, line["calls"])
		assert.NotContains(t, out.String(), string(store.requests[0].Owner), "the owner is a secret")
		for _, name := range []string{"caller", "lapsed", "no_place", "failed_calls", "woken", "wakeError", "work_ok"} {
			assert.NotContains(t, line, name)
		}

		out.Reset()
		_, err = g.Acquire(context.Background(), LeaseRequest{Key: "shared/k", TTL: time.Minute, HolderInfo: lockstore.HolderInfo{Name: "me", Caller: "arn:aws:iam::1:user/jo"}})
		require.NoError(t, err)
		assert.Contains(t, out.String(), `"caller":"arn:aws:iam::1:user/jo"`)

		out.Reset()
		store.release = fails(errDown)
		require.NoError(t, g.Do(context.Background(), "account/7", nothing))
		assert.Contains(t, out.String(), `"level":"WARN"`)
		assert.Contains(t, out.String(), `"releaseError"`)
		assert.Contains(t, out.String(), `"failed_calls":`)
		assert.NotContains(t, out.String(), string(store.requests[2].Owner))

		store.release, store.renew = nil, fails(lockstore.ErrLost)
		for key, late := range map[string]error{"k1": nil, "k2": errors.New("its context is over")} {
			out.Reset()
			require.IsType(t, &LockLost{}, g.Do(context.Background(), key, func(context.Context, Lock) error {
				pass(time.Minute)
				return late
			}))
			assert.Equal(t, late == nil, strings.Contains(out.String(), `"work_ok":true`), out.String())
		}
	})
}

func TestLogReportsToTheDefault(t *testing.T) {
	t.Run("F51 without a logger", func(t *testing.T) {
		var out bytes.Buffer
		observe := LogReports(nil)
		before := slog.Default()
		t.Cleanup(func() { slog.SetDefault(before) })
		slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
		observe(t.Context(), Report{Key: "k", Outcome: OutcomeOK})
		observe(t.Context(), Report{Key: "k", Outcome: OutcomeBusy, Lapsed: 2, NoPlace: true, FailedCalls: 3, Woken: 4, WakeErr: errors.New("denied")})
		require.Contains(t, out.String(), "failed_calls=3 no_place=true lapsed=2 woken=4 wakeError=denied")
		require.Contains(t, out.String(), "level=WARN")
		require.Contains(t, out.String(), "key=k", "the default at the time of the line, not of LogReports")
	})
}

func TestErrorsMatch(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		err  error
		want []error
	}{
		{&LockBusy{Key: "k"}, []error{lockstore.ErrRefused}},
		{&LockLost{"k", cause, nil}, []error{lockstore.ErrLost, cause}},
		{&LockLost{"k", nil, nil}, []error{lockstore.ErrLost}},
		{&LockLost{"k", errors.New("work"), cause}, []error{lockstore.ErrLost, cause}},
		{&LockDeadline{Key: "k", Err: cause}, []error{ErrDeadline, cause}},
		{&LockInvalid{"k", cause}, []error{lockstore.ErrInvalid, cause}},
		{&LockCorrupt{"k", cause}, []error{lockstore.ErrCorrupt, cause}},
		{&LockStoreUnavailable{"k", cause}, []error{cause}},
	} {
		for _, want := range c.want {
			require.ErrorIs(t, c.err, want)
		}
		require.Contains(t, c.err.Error(), `"k"`)
	}
}
