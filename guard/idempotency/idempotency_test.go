package idempotency

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func bubble(name string, t *testing.T, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// bench is a guard over a store with faults.
type bench struct {
	*guard.Guard
	store *lockstore.Store // without faults
	fault func(storetest.Call) storetest.Fault

	mu      sync.Mutex
	reports []guard.Report
	log     bytes.Buffer
}

func newBench(t *testing.T, opt guard.Options) *bench {
	t.Helper()
	b := &bench{store: memstore.New(nil)}
	line := guard.LogReports(slog.New(slog.NewJSONHandler(&b.log, nil)))
	opt.HolderInfo = func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{Name: "pay", ID: "r-1"} }
	opt.Observe = func(ctx context.Context, r guard.Report) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reports = append(b.reports, r)
		line(ctx, r)
	}
	g, err := guard.New(storetest.NewFaulty(b.store, func(c storetest.Call) storetest.Fault {
		if b.fault == nil {
			return storetest.Fault{}
		}
		return b.fault(c)
	}).Store, opt)
	require.NoError(t, err)
	b.Guard = g
	return b
}

func (b *bench) once(t *testing.T, opt Options) *Once {
	t.Helper()
	o, err := New(b.Guard, opt)
	require.NoError(t, err)
	return o
}

// last is the last report.
func (b *bench) last(t *testing.T) guard.Report {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.NotEmpty(t, b.reports)
	return b.reports[len(b.reports)-1]
}

func (b *bench) status(t *testing.T, key string) lockstore.Status {
	t.Helper()
	status, err := b.store.Inspect(context.Background(), key)
	require.NoError(t, err)
	return status
}

// raw stores data under a key, as somebody else's program may.
func (b *bench) raw(t *testing.T, key string, data []byte) {
	t.Helper()
	ctx := context.Background()
	lease, err := b.store.Acquire(ctx, lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
	require.NoError(t, b.store.Complete(ctx, lease, data, time.Hour))
}

// receipt is a result.
type receipt struct {
	ID    int64  `json:"id"`
	Note  string `json:"note,omitempty"`
	Bytes []byte `json:"bytes,omitempty"`
}

// charge is work that counts its effects.
type charge struct{ effects int }

func (c *charge) work(context.Context, guard.Lock) (receipt, error) {
	c.effects++
	return receipt{ID: int64(c.effects), Note: "secret-note <&>\n", Bytes: []byte{0, '\n', 255}}, nil
}

func never[Out any](t *testing.T) func(context.Context, guard.Lock) (Out, error) {
	return func(context.Context, guard.Lock) (out Out, err error) {
		t.Error("the work ran")
		return out, nil
	}
}

var modes = map[string]Doubt{"run again": AtLeastOnce, "refuse": AtMostOnce}

func pass(d time.Duration) { <-time.After(d) }

func TestRepeat(t *testing.T) {
	ctx := context.Background()
	for mode, inDoubt := range modes {
		on("a repeat gets the first result until ResultTime is over: "+mode, t, guard.Options{}, func(t *testing.T, b *bench) {
			o := b.once(t, Options{InDoubt: inDoubt, ResultTime: time.Hour})
			var c charge
			call := Call{Key: "k", Fingerprint: map[string]any{"amount": 7}}
			first, replay, err := Do(ctx, o, call, c.work)
			require.NoError(t, err)
			require.Nil(t, replay)
			require.Equal(t, guard.OutcomeOK, b.last(t).Outcome)

			pass(time.Hour - time.Millisecond)
			again, replay, err := Do(ctx, o, call, c.work)
			require.NoError(t, err)
			require.Equal(t, first, again)
			require.NotNil(t, replay)
			require.Equal(t, "r-1", replay.First.ID)
			require.Equal(t, guard.Outcome(doonce.Replayed), b.last(t).Outcome)
			require.NoError(t, b.last(t).Err)
			require.Equal(t, 1, b.last(t).Calls)
			require.Equal(t, 1, c.effects)

			pass(time.Millisecond)
			_, replay, err = Do(ctx, o, call, c.work)
			require.NoError(t, err)
			require.Nil(t, replay)
			require.Equal(t, 2, c.effects)
			require.NotContains(t, b.log.String(), "secret-note")
		})
		on("other input is a mismatch, and nil is not compared: "+mode, t, guard.Options{}, func(t *testing.T, b *bench) {
			o := b.once(t, Options{InDoubt: inDoubt})
			var c charge
			_, _, err := Do(ctx, o, Call{Key: "k", Fingerprint: 7}, c.work)
			require.NoError(t, err)
			_, _, err = Do(ctx, o, Call{Key: "k", Fingerprint: 8}, never[receipt](t))
			mismatch, ok := err.(*RepeatMismatch)
			require.True(t, ok, "%T %v", err, err)
			require.Equal(t, "r-1", mismatch.First.ID)
			require.Equal(t, guard.Outcome(doonce.Mismatch), b.last(t).Outcome)
			_, _, err = Do(ctx, o, Call{Key: "k"}, never[receipt](t))
			require.NoError(t, err)
			_, _, err = Do(ctx, o, Call{Key: "without"}, c.work)
			require.NoError(t, err)
			_, _, err = Do(ctx, o, Call{Key: "without", Fingerprint: 8}, never[receipt](t))
			require.NoError(t, err)
		})
		on("a repeat while the first runs is busy, or waits and gets the result: "+mode, t, guard.Options{}, func(t *testing.T, b *bench) {
			waiting, err := guard.New(b.store, guard.Options{Wait: time.Minute})
			require.NoError(t, err)
			patient, err := New(waiting, Options{InDoubt: inDoubt})
			require.NoError(t, err)
			o := b.once(t, Options{InDoubt: inDoubt})
			entered := make(chan struct{})
			go func() {
				_, _, err := Do(ctx, o, Call{Key: "k"}, func(context.Context, guard.Lock) (int, error) {
					close(entered)
					pass(10 * time.Second)
					return 42, nil
				})
				assert.NoError(t, err)
			}()
			<-entered
			_, _, err = Do(ctx, o, Call{Key: "k"}, never[int](t))
			require.IsType(t, &guard.LockBusy{}, err)
			began := time.Now()
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					n, replay, err := Do(ctx, patient, Call{Key: "k"}, never[int](t))
					assert.NoError(t, err)
					assert.NotNil(t, replay)
					assert.Equal(t, 42, n)
				})
			}
			all.Wait()
			require.Less(t, time.Since(began), 11*time.Second, "all at once, not by turns")
		})
	}
}

// What a run leaves that did not say how it ended, in both modes. TestRepeats of package guard has runs that are killed, stand still or lose
// their lease, and stores that are down.
func TestRunsWithoutAResult(t *testing.T) {
	own := errors.New("own")
	type work = func(context.Context, guard.Lock) (int, error)
	for name, c := range map[string]struct {
		work work
		want error // of the run
		free bool  // also with AtMostOnce
	}{
		"F05 an error":            {work: func(context.Context, guard.Lock) (int, error) { return 0, own }, want: own},
		"F05 an error, no effect": {work: func(context.Context, guard.Lock) (int, error) { return 0, NoEffect(own) }, want: own, free: true},
		"F05 no effect of a part": {work: func(context.Context, guard.Lock) (int, error) { return 0, fmt.Errorf("in: %w", NoEffect(own)) }},
		"F05 an effect and none":  {work: func(context.Context, guard.Lock) (int, error) { return 0, errors.Join(own, NoEffect(own)) }},
		"F04 a panic":             {work: func(context.Context, guard.Lock) (int, error) { panic("boom") }},
		"F05 Goexit":              {work: func(context.Context, guard.Lock) (int, error) { runtime.Goexit(); return 0, nil }},
		"F47 the end of its time": {work: func(ctx context.Context, _ guard.Lock) (int, error) { <-ctx.Done(); return 0, ctx.Err() }, want: context.DeadlineExceeded},
	} {
		for mode, inDoubt := range modes {
			on(name+": "+mode, t, guard.Options{TTL: 10 * time.Second}, func(t *testing.T, b *bench) {
				o := b.once(t, Options{InDoubt: inDoubt})
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					_, replay, err := Do(ctx, o, Call{Key: "k"}, c.work)
					assert.Nil(t, replay)
					if c.want != nil {
						assert.Equal(t, c.want, err, "as the work returned it")
					}
				}()
				<-ended
				next := func(work work) error {
					_, replay, err := Do(context.Background(), o, Call{Key: "k"}, work)
					require.Nil(t, replay)
					return err
				}
				if inDoubt == AtLeastOnce || c.free {
					require.NoError(t, next(func(context.Context, guard.Lock) (int, error) { return 8, nil }))
					return
				}
				require.ErrorContains(t, b.last(t).CompleteErr, "did not say that it had no effect")
				for b.status(t, "k").State == lockstore.Held {
					require.IsType(t, &guard.LockBusy{}, next(never[int](t)))
					pass(time.Second)
				}
				pass(29 * 24 * time.Hour)
				err := next(never[int](t))
				require.IsType(t, &RepeatInDoubt{}, err)
				require.ErrorContains(t, err, "r-1")
				require.Equal(t, guard.Outcome(doonce.InDoubt), b.last(t).Outcome)
				require.Equal(t, err, b.last(t).Err)
			})
		}
	}
}

// The mark of work inside the work says nothing about the work around it.
func TestNoEffectInside(t *testing.T) {
	bubble("F05 the work had its effect, and a Do inside had none", t, func(t *testing.T) {
		ctx := context.Background()
		o := newBench(t, guard.Options{}).once(t, Options{InDoubt: AtMostOnce})
		effects := 0
		run := func() error {
			_, _, err := Do(ctx, o, Call{Key: "outer"}, func(ctx context.Context, _ guard.Lock) (int, error) {
				effects++
				_, _, err := Do(ctx, o, Call{Key: "inner"}, func(context.Context, guard.Lock) (int, error) {
					return 0, fmt.Errorf("mail: %w", NoEffect(errors.New("no address")))
				})
				return 0, err
			})
			return err
		}
		require.EqualError(t, run(), "mail: no address")
		pass(2 * time.Minute)
		require.IsType(t, &RepeatInDoubt{}, run())
		require.Equal(t, 1, effects)
	})
}

// odd has a JSON form that its own methods spoil.
type odd struct{ n int }

func (o odd) MarshalJSON() ([]byte, error) { return json.Marshal(o.n) }
func (o *odd) UnmarshalJSON(b []byte) error {
	err := json.Unmarshal(b, &o.n)
	o.n++
	return err
}

// panics has methods that panic.
type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic("boom") }

// unreadable has a JSON form that cannot be read.
type unreadable struct{}

func (unreadable) MarshalJSON() ([]byte, error)  { return []byte(`1`), nil }
func (*unreadable) UnmarshalJSON(b []byte) error { return errors.New("secret " + string(b)) }

func once[Out any](ctx context.Context, o *Once, out Out) (Out, *Replay, error) {
	return Do(ctx, o, Call{Key: "k"}, func(context.Context, guard.Lock) (Out, error) { return out, nil })
}

// step is the result of one call.
type step struct {
	result any
	replay *Replay
	err    error
}

// twice is a run that returns out, and its repeat.
func twice[Out any](out Out) func(*Once) (first, again step) {
	return func(o *Once) (first, again step) {
		ctx := context.Background()
		result, replay, err := once(ctx, o, out)
		first = step{result, replay, err}
		result, replay, err = Do(ctx, o, Call{Key: "k"}, func(context.Context, guard.Lock) (none Out, err error) { return none, errors.New("the work ran twice") })
		return first, step{result, replay, err}
	}
}

func TestResults(t *testing.T) {
	large := receipt{ID: math.MaxInt64, Note: "<&>\u2028", Bytes: []byte{0, 10, 255}}
	for name, c := range map[string]struct {
		twice  func(*Once) (first, again step)
		want   any    // of the repeat
		reason string // why it has none
	}{
		"a struct":                   {twice(large), large, ""},
		"a pointer":                  {twice(&receipt{ID: 1}), &receipt{ID: 1}, ""},
		"a nil pointer":              {twice((*receipt)(nil)), (*receipt)(nil), ""},
		"any keeps its text":         {twice(any(map[string]any{"n": json.Number("9007199254740993"), "a": "<"})), json.RawMessage(`{"a":"<","n":9007199254740993}`), ""},
		"no result is needed":        {twice(struct{}{}), struct{}{}, ""},
		"raw JSON":                   {twice(json.RawMessage(`{"a": 1}`)), json.RawMessage(`{"a":1}`), ""},
		"F52 bytes that are no text": {twice("a\xff"), nil, otherBack},
		"the largest":                {twice(strings.Repeat("x", 4094)), strings.Repeat("x", 4094), ""},
		"F52 too large":              {twice(strings.Repeat("x", 4095)), nil, tooLarge},
		"F52 not encodable":          {twice(make(chan int)), nil, noJSON},
		"F52 any not encodable":      {twice(any(make(chan int))), nil, noJSON},
		"F52 not a number":           {twice(math.NaN()), nil, noJSON},
		"F52 other when read":        {twice(odd{1}), nil, otherBack},
		"F52 not readable":           {twice(unreadable{}), nil, notBack},
		"F52 encoding panics":        {twice(panics{}), nil, noJSON},
		"F52 an interface":           {twice(fmt.Stringer(time.Second)), nil, notBack},
		"F52 a stream as any":        {twice(any(strings.NewReader("x"))), nil, streamed},
	} {
		for mode, inDoubt := range modes {
			on(name+": "+mode, t, guard.Options{}, func(t *testing.T, b *bench) {
				first, again := c.twice(b.once(t, Options{InDoubt: inDoubt}))
				require.NoError(t, first.err, "the first caller gets the result")
				require.Nil(t, first.replay)
				completeErr := b.reports[0].CompleteErr
				if c.reason == "" {
					require.NoError(t, completeErr)
					require.NoError(t, again.err)
					require.NotNil(t, again.replay)
					require.Equal(t, c.want, again.result)
					return
				}
				none, ok := again.err.(*RepeatNoAnswer)
				require.True(t, ok, "%T %v", again.err, again.err)
				require.Equal(t, c.reason, none.reason)
				require.ErrorContains(t, completeErr, "the result is not stored")
				require.Equal(t, guard.Outcome(doonce.NoResult), b.last(t).Outcome)
				require.NotContains(t, b.log.String(), "secret")
			})
		}
	}
}

func TestPrograms(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		stored          any
		version, reader string // Options.Version
		why             string
	}{
		"F52 today's type cannot read what is stored":                 {map[string]any{"id": "secret-id"}, "", "", "idempotency.receipt: int64 id"},
		"F52 a field that today's type does not have is not left out": {map[string]any{"id": 1, "amount": 700}, "", "", "cannot be read as idempotency.receipt"},
		"F52 the result of another version is not read":               {receipt{ID: 1}, "1", "2", `it is of version "1", and this program reads version "2"`},
		"F52 a program without a version does not read it":            {receipt{ID: 1}, "1", "", `it is of version "1", and this program reads version ""`},
	} {
		on(name, t, guard.Options{}, func(t *testing.T, b *bench) {
			_, _, err := once(ctx, b.once(t, Options{Version: c.version}), c.stored)
			require.NoError(t, err)
			out, replay, err := Do(ctx, b.once(t, Options{Version: c.reader}), Call{Key: "k"}, never[receipt](t))
			require.IsType(t, &RepeatNoAnswer{}, err)
			require.ErrorContains(t, err, c.why)
			require.Nil(t, replay)
			require.Zero(t, out)
			require.NotContains(t, b.log.String(), "secret-id")
			_, _, err = Do(ctx, b.once(t, Options{Version: c.reader}), Call{Key: "k"}, never[struct{}](t))
			require.NoError(t, err, "nothing is to be read")
			_, _, err = Do(ctx, b.once(t, Options{Version: c.version}), Call{Key: "k"}, never[any](t))
			require.NoError(t, err, "any reads all")
		})
	}
	on("F52 what others have stored is no result", t, guard.Options{}, func(t *testing.T, b *bench) {
		o := b.once(t, Options{})
		for i, data := range []string{"", "x", "{}", string(form{}.envelope(withResult, []byte("{}"))[:headerSize-1]), "\x02" + string(form{}.envelope(withResult, nil)[1:]), string(form{}.envelope(noResult, []byte("made up")))} {
			key := fmt.Sprint("raw", i)
			b.raw(t, key, []byte(data))
			_, _, err := Do(ctx, o, Call{Key: key}, never[receipt](t))
			require.IsType(t, &RepeatNoAnswer{}, err, "%q", data)
			_, _, err = Do(ctx, o, Call{Key: key}, never[struct{}](t))
			require.IsType(t, &RepeatNoAnswer{}, err, "%q", data)
			_, _, err = Do(ctx, o, Call{Key: key}, never[any](t))
			require.IsType(t, &RepeatNoAnswer{}, err, "%q", data)
		}
		b.raw(t, "no JSON", form{}.envelope(withResult, []byte("{")))
		_, _, err := Do(ctx, o, Call{Key: "no JSON"}, never[any](t))
		require.IsType(t, &RepeatNoAnswer{}, err)
		b.raw(t, "two", form{}.envelope(withResult, []byte(`{"id":1} {"id":2}`)))
		_, _, err = Do(ctx, o, Call{Key: "two"}, never[receipt](t))
		require.IsType(t, &RepeatNoAnswer{}, err)
	})
	on("a key that is a cooldown, and a key that is a lock", t, guard.Options{}, func(t *testing.T, b *bench) {
		o := b.once(t, Options{})
		require.NoError(t, b.WithCooldown(time.Minute).Do(ctx, "k", func(context.Context, guard.Lock) error { return nil }))
		_, _, err := Do(ctx, o, Call{Key: "k"}, never[receipt](t))
		require.ErrorContains(t, err, "in a cooldown")
		pass(time.Minute)
		require.NoError(t, b.Do(ctx, "k", func(ctx context.Context, _ guard.Lock) error {
			_, _, err := Do(ctx, o, Call{Key: "k"}, never[receipt](t))
			require.IsType(t, &guard.LockBadRequest{}, err, "held by the run around it")
			return nil
		}))
	})
	on("F52 calls that cannot be made: nothing is sent, and nothing runs", t, guard.Options{}, func(t *testing.T, b *bench) {
		b.fault = func(c storetest.Call) storetest.Fault { t.Errorf("%+v was sent", c); return storetest.Fault{} }
		o := b.once(t, Options{})
		for name, call := range map[string]Call{
			"an empty key":          {},
			"an empty part":         NewCall("charge", ""),
			"a long key":            {Key: strings.Repeat("x", 1025)},
			"an empty Key":          {Key: lockstore.Key()},
			"Fingerprint a channel": {Key: "k", Fingerprint: make(chan int)},
			"Fingerprint panics":    {Key: "k", Fingerprint: panics{}},
			"Fingerprint NaN":       {Key: strings.Repeat("k", 2000), Fingerprint: math.NaN()},
		} {
			_, _, err := Do(ctx, o, call, never[receipt](t))
			require.IsType(t, &guard.LockBadRequest{}, err, name)
			require.ErrorIs(t, err, lockstore.ErrInvalid, name)
			require.Less(t, len(err.Error()), 2000, name)
		}
		require.Equal(t, NewCall("charge", "a/b").Key, lockstore.Key("charge", "a/b"))
		require.Len(t, NewCall("charge", strings.Repeat("x", 10_000)).Key, 512)
	})
	t.Run("F51 mistakes in the program", func(t *testing.T) {
		b := newBench(t, guard.Options{})
		o := b.once(t, Options{})
		key := func(context.Context, int) (Call, error) { return Call{Key: "k"}, nil }
		called := func(context.Context, int) (Call, error) { panic("the call function was called") }
		handler := func(context.Context, guard.Lock, int) (int, error) { return 0, nil }
		streams := func(context.Context, guard.Lock, int) (*bytes.Buffer, error) { return nil, nil }
		last := func(_ int, _ *Replay, err error) error { return err }
		handled := func(w guard.Wrapped[int, int]) error { _, err := w.Handle(ctx, 1); return err }
		_, _, reader := Do(ctx, o, Call{Key: "k"}, never[io.ReadCloser](t))
		_, stream := Wrap(o, called, streams).Handle(ctx, 1)
		_, notPending := Prepare(ctx, 1)
		for want, errs := range map[string][]error{
			errNoOnce.Error():                       {last(Do(ctx, nil, Call{Key: "k"}, never[int](t))), last(Do(ctx, new(Once), Call{Key: "k"}, never[int](t))), handled(Wrap(new(Once), called, handler))},
			errNoWork.Error():                       {last(Do[int](ctx, o, Call{Key: "k"}, nil))},
			errStream.Error():                       {reader, stream},
			"idempotency: the call function is nil": {handled(Wrap(o, nil, handler))},
			"idempotency: the handler is nil":       {handled(Wrap[int, int](o, key, nil))},
			errNoPending.Error():                    {notPending},
		} {
			for _, err := range errs {
				require.EqualError(t, err, want)
			}
		}
		own := errors.New("own")
		_, err := Wrap(o, func(context.Context, int) (Call, error) { return Call{Key: "k"}, own }, handler).Handle(ctx, 1)
		require.IsType(t, &guard.LockBadRequest{}, err)
		require.ErrorIs(t, err, own)
		require.NoError(t, NoEffect(nil))
	})
	t.Run("F48 options", func(t *testing.T) {
		b := newBench(t, guard.Options{})
		for part, opt := range map[string]Options{
			"ResultTime is -1s":                {ResultTime: -time.Second},
			"ResultTime is 1ms":                {ResultTime: time.Millisecond},
			"ResultTime is 744h0m0.000000001s": {ResultTime: lockstore.MaxResultTime + 1},
			"InDoubt is 2":                     {InDoubt: 2},
			"InDoubt is -1":                    {InDoubt: -1},
			"MaxResultBytes is -1":             {MaxResultBytes: -1},
			"MaxResultBytes is 261633":         {MaxResultBytes: 261_633},
			"Version has 65 bytes":             {Version: strings.Repeat("v", 65)},
		} {
			_, err := New(b.Guard, opt)
			require.ErrorContains(t, err, part)
			err = ResolveEffect(ctx, b.store, "k", 1, nil, opt)
			require.ErrorContains(t, err, part)
			require.ErrorIs(t, err, lockstore.ErrInvalid)
		}
		shared, err := guard.New(memstore.New(nil), guard.Options{})
		require.NoError(t, err)
		_, err = New(shared.WithMaxHolders(2), Options{})
		require.EqualError(t, err, "idempotency: MaxHolders (boot: LOCK_MAX_HOLDERS) is 2; want 1")
		coalesces, err := guard.New(memstore.New(nil), guard.Options{Coalesce: "index", Wait: time.Minute})
		require.NoError(t, err)
		_, err = New(coalesces, Options{})
		require.EqualError(t, err, "idempotency: the guard has guard.Options.Coalesce (boot: LOCK_COALESCE); want none: each event has an answer of its own here")
		_, err = New(nil, Options{})
		require.Error(t, err)

		most := b.once(t, Options{MaxResultBytes: 261_632, Version: strings.Repeat("v", 64), ResultTime: lockstore.MaxResultTime})
		_, _, err = once(ctx, most, strings.Repeat("x", 261_630))
		require.NoError(t, err)
		require.NoError(t, b.last(t).CompleteErr)
	})
	on("Wrap answers a repeat", t, guard.Options{}, func(t *testing.T, b *bench) {
		runs := 0
		handler := Wrap(b.once(t, Options{}), func(_ context.Context, id string) (Call, error) { return NewCall("charge", id), nil },
			func(_ context.Context, lock guard.Lock, id string) (receipt, error) {
				require.Equal(t, "charge/7", lock.Key)
				require.NotZero(t, lock.Fence)
				runs++
				return receipt{Note: id}, nil
			})
		for range 3 {
			out, err := handler.Handle(ctx, "7")
			require.NoError(t, err)
			require.Equal(t, receipt{Note: "7"}, out)
		}
		require.Equal(t, 1, runs)
		require.Equal(t, 24*time.Hour, b.status(t, "charge/7").Remaining)
	})
}

// inDoubt is the fence of a key in doubt: its run has failed after its work had started.
func inDoubt(t *testing.T, b *bench, o *Once) lockstore.Fence {
	t.Helper()
	own := errors.New("own")
	_, _, err := Do(context.Background(), o, Call{Key: "k", Fingerprint: 7}, func(context.Context, guard.Lock) (receipt, error) { return receipt{}, own })
	require.Equal(t, own, err)
	err = ResolveEffect(context.Background(), b.store, "k", b.status(t, "k").Fence, nil, Options{})
	require.ErrorIs(t, err, lockstore.ErrRefused, "its lease lasts")
	pass(2 * time.Minute)
	require.Equal(t, lockstore.InDoubt, b.status(t, "k").State)
	return b.status(t, "k").Fence
}

func TestResolve(t *testing.T) {
	ctx := context.Background()
	call := Call{Key: "k", Fingerprint: 7}
	on("effect, with a result", t, guard.Options{}, func(t *testing.T, b *bench) {
		opt := Options{InDoubt: AtMostOnce, Version: "2", ResultTime: time.Hour}
		o := b.once(t, opt)
		fence := inDoubt(t, b, o)
		require.ErrorIs(t, ResolveEffect(ctx, b.store, "k", fence+1, []byte(`{"id": 5}`), opt), lockstore.ErrLost)
		require.NoError(t, ResolveEffect(ctx, b.store, "k", fence, []byte(`{"id": 5}`), opt))
		require.NoError(t, ResolveEffect(ctx, b.store, "k", fence, []byte(`{"id": 6}`), opt), "the first result stays")
		out, replay, err := Do(ctx, o, call, never[receipt](t))
		require.NoError(t, err)
		require.NotNil(t, replay)
		require.Equal(t, receipt{ID: 5}, out)
		require.ErrorIs(t, b.store.ResolveNoEffect(ctx, "k", fence), lockstore.ErrLost)
	})
	on("effect, without a result", t, guard.Options{}, func(t *testing.T, b *bench) {
		o := b.once(t, Options{InDoubt: AtMostOnce})
		fence := inDoubt(t, b, o)
		require.NoError(t, ResolveEffect(ctx, b.store, "k", fence, nil, Options{}))
		_, _, err := Do(ctx, o, call, never[receipt](t))
		require.IsType(t, &RepeatNoAnswer{}, err)
		require.ErrorContains(t, err, "an operator resolved")
		_, replay, err := Do(ctx, o, call, never[struct{}](t))
		require.NoError(t, err)
		require.NotNil(t, replay)
	})
	on("F52 results that cannot be", t, guard.Options{}, func(t *testing.T, b *bench) {
		fence := inDoubt(t, b, b.once(t, Options{InDoubt: AtMostOnce}))
		for _, result := range []string{"", "{", "secret", `"` + strings.Repeat("x", 4095) + `"`} {
			err := ResolveEffect(ctx, b.store, "k", fence, []byte(result), Options{})
			require.ErrorIs(t, err, lockstore.ErrInvalid, result)
			require.NotContains(t, err.Error(), "secret")
		}
		require.Equal(t, lockstore.InDoubt, b.status(t, "k").State)
		require.NoError(t, ResolveEffect(ctx, b.store, "k", fence, []byte(`"`+strings.Repeat("x", 4094)+`"`), Options{}), "of MaxResultBytes bytes")
	})
}

// Work that stores its result itself, together with its effect. If it goes on, it has lost its lease by that.
func TestPrepare(t *testing.T) {
	ctx := context.Background()
	for name, then := range map[string]func(context.Context) error{
		"and returns":                func(context.Context) error { return nil },
		"F23 and learns of no reply": func(context.Context) error { return io.ErrUnexpectedEOF },
		"F04 and panics":             func(context.Context) error { panic("boom") },
		"and goes on":                func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
	} {
		on("the work stores its result "+name, t, guard.Options{TTL: 10 * time.Second}, func(t *testing.T, b *bench) {
			var owner lockstore.Owner
			b.fault = func(c storetest.Call) storetest.Fault {
				if c.Kind == driver.Acquire && owner == "" {
					owner = c.Owner
				}
				return storetest.Fault{}
			}
			o := b.once(t, Options{ResultTime: time.Hour, Version: "1"})
			call := Call{Key: "k", Fingerprint: 7}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				_, _, err := Do(ctx, o, call, func(ctx context.Context, lock guard.Lock) (out receipt, err error) {
					out = receipt{ID: 3}
					assert.NoError(t, b.Do(ctx, "account", func(ctx context.Context, _ guard.Lock) error {
						_, err := Prepare(ctx, strings.Repeat("x", 5000))
						assert.ErrorContains(t, err, "the result is not stored")
						result, err := Prepare(ctx, out)
						assert.NoError(t, err)
						assert.Equal(t, lock, result.Lock)
						assert.Equal(t, time.Hour, result.Time)
						lease := lockstore.Lease{Key: result.Lock.Key, Owner: owner, Fence: result.Lock.Fence}
						return b.store.Complete(ctx, lease, result.Data, result.Time)
					}))
					return out, then(ctx)
				})
				if name == "and goes on" {
					assert.IsType(t, &guard.LockLost{}, err)
				}
			}()
			<-ended
			out, replay, err := Do(ctx, o, call, never[receipt](t))
			require.NoError(t, err)
			require.NotNil(t, replay)
			require.Equal(t, receipt{ID: 3}, out)
			_, _, err = Do(ctx, o, Call{Key: "k", Fingerprint: 8}, never[receipt](t))
			require.IsType(t, &RepeatMismatch{}, err)
		})
	}
}

// Each error is one of a kind, whose name a state machine matches.
func TestErrors(t *testing.T) {
	holder := lockstore.HolderInfo{Name: "pay", ID: "r-1"}
	for want, err := range map[string]error{
		`key "k" was used with other input by pay (r-1)`: &RepeatMismatch{"k", holder},
		`key "k" is in doubt: work started, and nobody said how it ended (pay (r-1)); find out whether it had its effect, and resolve the key with lockctl resolve`: &RepeatInDoubt{"k", holder},
		`key "k": the work was done by pay (r-1), and there is no result: it is too large`:                                                                          &RepeatNoAnswer{"k", holder, tooLarge},
	} {
		require.EqualError(t, err, want)
		require.NotErrorIs(t, err, lockstore.ErrRefused, "nobody holds the key")
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte(form{}.envelope(withResult, []byte(`{"id":1}`))))
	f.Add([]byte(form{match: new([hashSize]byte), version: "1"}.envelope(withResult, []byte(`{"note":"\u0000"}`))))
	f.Add([]byte(form{version: strings.Repeat("v", 255)}.envelope(noResult, []byte(tooLarge))))
	f.Fuzz(func(t *testing.T, data []byte) {
		busy := &guard.LockBusy{Key: "k", State: lockstore.Completed}
		want := form{match: &[hashSize]byte{1}, version: "1"}
		out, outcome, err := read[receipt](busy, data, want)
		switch outcome {
		case doonce.Replayed:
			require.NoError(t, err)
			s, ok := open(data)
			require.True(t, ok)
			require.Equal(t, byte(withResult), s.kind)
			require.Equal(t, "1", s.version)
			require.True(t, s.match == nil || *s.match == *want.match)
			require.Equal(t, data, []byte(s.form.envelope(s.kind, s.text)), "read and written again")
			text, err := marshal(out)
			require.NoError(t, err)
			require.True(t, json.Valid(text))
		case doonce.Mismatch:
			require.IsType(t, &RepeatMismatch{}, err)
			require.Zero(t, out)
		case doonce.NoResult:
			require.IsType(t, &RepeatNoAnswer{}, err)
			require.Zero(t, out)
			require.Less(t, len(err.Error()), 3000)
		default:
			t.Fatalf("outcome %s", outcome)
		}
		_, _, err = read[any](busy, data, want)
		_, _, _ = read[struct{}](busy, data, want)
		_, _, _ = read[map[string]chan int](busy, data, want)
		require.NotPanics(t, func() { _ = fmt.Sprint(err) })
	})
}

// on is a bubble with a bench.
func on(name string, t *testing.T, opt guard.Options, f func(*testing.T, *bench)) {
	bubble(name, t, func(t *testing.T) { f(t, newBench(t, opt)) })
}
