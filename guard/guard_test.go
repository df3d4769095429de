package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/doonce"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
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
		opt  Options
		want string // a part of the error; "": it is fine
	}{
		{Options{}, ""},
		{Options{TTL: -1}, "TTL is -1ns; want 1s to 24h0m0s, or 0 for the default"},
		{Options{TTL: time.Microsecond}, "TTL is 1µs; want 1s to 24h"},
		{Options{TTL: lockstore.MaxTTL + 1}, "want 1s to 24h"},
		{Options{TTL: math.MaxInt64}, "want 1s to 24h"},
		{Options{TTL: 30 * time.Hour}, "TTL is 30h0m0s; want 1s to 24h"}, // and does not raise MaxHold over its bound
		{Options{MaxHold: -time.Second}, "MaxHold is -1s"},
		{Options{MaxHold: time.Millisecond}, "MaxHold is 1ms; want 1s to 24h"},
		{Options{MaxHold: 25 * time.Hour}, "MaxHold is 25h0m0s; want 1s to 24h"},
		{Options{Wait: -1}, "Wait is -1ns"},
		{Options{Wait: 25 * time.Hour}, "Wait is 25h0m0s; want 0s to 24h"},
		{Options{DeadlineMargin: -1}, "DeadlineMargin is -1ns"},
		{Options{TTL: time.Minute, MaxHold: 30 * time.Second}, "TTL is 1m0s but MaxHold is 30s"},
		{Options{DeadlineMargin: time.Minute, MaxHold: time.Minute}, "DeadlineMargin is 1m0s but MaxHold is 1m0s"},
		{Options{DeadlineMargin: 900*time.Millisecond + 1, MaxHold: time.Second}, "DeadlineMargin is 900.000001ms"},
		{Options{TTL: time.Second, MaxHold: time.Second}, ""},
		{Options{TTL: 24 * time.Hour, MaxHold: 24 * time.Hour, Wait: 24 * time.Hour}, ""},
		{Options{DeadlineMargin: 900 * time.Millisecond, MaxHold: time.Second}, ""},
		{Options{TTL: time.Hour}, ""},           // raises MaxHold
		{Options{MaxHold: 5 * time.Second}, ""}, // lowers TTL
	} {
		t.Run(fmt.Sprintf("F48 F49 %+v", c.opt), func(t *testing.T) {
			g, err := New(store, c.opt)
			if c.want == "" {
				require.NoError(t, err)
				require.NoError(t, g.Do(context.Background(), "k", nothing))
				return
			}
			require.Nil(t, g)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestNilArguments(t *testing.T) {
	t.Run("F51 a guard, a context and work that are nil are errors and no panic", func(t *testing.T) {
		ctx := context.Background()
		for _, g := range []*Guard{nil, new(Guard)} {
			require.ErrorIs(t, g.Do(ctx, "k", nothing), errNoGuard)
			require.ErrorIs(t, g.DoOnce(ctx, "k", doonce.Options{}, neverCompletes(t)), errNoGuard)
			require.ErrorIs(t, g.Release(ctx, lockstore.Lease{}), errNoGuard)
			require.ErrorIs(t, g.Abandon(ctx, "k", "o"), errNoGuard)
			require.ErrorIs(t, g.Complete(ctx, lockstore.Lease{}, time.Minute), errNoGuard)
			require.ErrorIs(t, g.WithCooldown(time.Minute).Validate(), errNoGuard)
			require.ErrorIs(t, g.WithMaxHolders(2).Validate(), errNoGuard)
			require.Zero(t, g.HolderInfo(ctx))
			require.Zero(t, g.MaxHolders())
			g.Shutdown()
			g.Shutdown()
		}
		b := newBench(t, Options{})
		require.ErrorIs(t, b.Do(ctx, "k", nil), errNoWork)
		require.ErrorIs(t, b.DoOnce(ctx, "k", doonce.Options{}, nil), errNoWork)
		var none context.Context
		require.ErrorIs(t, b.Do(none, "k", nothing), errNoContext)
		_, err := b.Acquire(none, LeaseRequest{Key: "k", TTL: time.Second})
		require.ErrorIs(t, err, errNoContext)
		_, err = b.Renew(none, lockstore.Lease{}, time.Second)
		require.ErrorIs(t, err, errNoContext)
		require.ErrorIs(t, b.Release(none, lockstore.Lease{}), errNoContext)
		require.ErrorIs(t, b.Abandon(none, "k", "o"), errNoContext)
		require.ErrorIs(t, b.Complete(none, lockstore.Lease{}, time.Minute), errNoContext)
		_, err = b.Inspect(none, "k")
		require.ErrorIs(t, err, errNoContext)
	})
}

// What wants its work to be alone refuses other guards, and asks for nothing.
func TestGuardsThatDoNotFit(t *testing.T) {
	b, ctx := newBench(t, Options{}), t.Context()
	for n, says := range map[int]string{0: "MaxHolders is 0; want 1 to 32", -1: "MaxHolders is -1", 33: "MaxHolders is 33; want 1 to 32"} {
		g := b.WithMaxHolders(n)
		require.ErrorContains(t, g.Do(ctx, "k", neverRuns(t)), says, "F48")
		_, err := g.Acquire(ctx, LeaseRequest{Key: "k", TTL: time.Minute})
		require.ErrorContains(t, err, says)
		_, err = Wrap(g, func(context.Context, int) (string, error) { return "k", nil }, Handler[int, int](nil)).Handle(ctx, 1)
		require.ErrorContains(t, err, says)
	}
	for _, d := range []time.Duration{math.MinInt64, -1, 0, lockstore.MinTTL - 1, lockstore.MaxTTL + 1, math.MaxInt64} {
		require.ErrorContains(t, b.WithCooldown(d).Do(ctx, "k", neverRuns(t)), "want 1s to 24h", "F48")
	}
	for _, d := range []time.Duration{lockstore.MinTTL, lockstore.MaxTTL} {
		require.NoError(t, b.WithCooldown(d).Validate())
	}
	several, cooled := b.WithMaxHolders(2), b.WithCooldown(time.Minute)
	const says = "MaxHolders (boot: LOCK_MAX_HOLDERS) is 2; "
	require.ErrorContains(t, several.DoAll(ctx, []string{"k"}, neverRunsAll(t)), says+"DoAll wants 1")
	require.ErrorContains(t, several.DoOnce(ctx, "k", doonce.Options{}, neverCompletes(t)), says+"DoOnce wants 1")
	require.ErrorContains(t, several.Complete(ctx, lockstore.Lease{Key: "k"}, time.Minute), says+"a cooldown wants 1")
	require.ErrorContains(t, several.WithCooldown(time.Minute).Validate(), says+"a cooldown wants 1")
	require.ErrorContains(t, cooled.WithMaxHolders(2).Validate(), says+"a cooldown wants 1")
	require.ErrorContains(t, cooled.DoAll(ctx, []string{"k"}, neverRunsAll(t)), "DoAll wants a guard without a cooldown")
	require.ErrorContains(t, cooled.DoOnce(ctx, "k", doonce.Options{}, neverCompletes(t)), "DoOnce wants a guard without a cooldown")
	require.Empty(t, b.store.requests)
	require.Equal(t, []int{1, 2}, []int{b.MaxHolders(), several.MaxHolders()})
}

func TestWhatGuardsShare(t *testing.T) {
	on("F69 Shutdown, and which keys are held", t, newBench, Options{}, func(t *testing.T, b *bench) {
		g, ctx := b.WithMaxHolders(2), t.Context()
		require.NoError(t, g.Do(ctx, "k", func(ctx context.Context, _ Lock) error {
			require.IsType(t, &LockBadRequest{}, b.Do(ctx, "k", neverRuns(t)), "F51: a run that would wait for itself")
			b.Shutdown()
			require.ErrorIs(t, context.Cause(ctx), errShutdown)
			pass(2 * time.Second)
			require.Empty(t, b.store.releases, "released under running work")
			return nil
		}))
		b.free(t, "k")
		err := g.Do(ctx, "k", neverRuns(t))
		require.IsType(t, &LockNoTime{}, err)
		require.ErrorIs(t, err, errShutdown)
	})
}

func TestPanicsOfStores(t *testing.T) {
	boom := func(context.Context, int, request) (driver.Answer, error) { panic("boom") }
	for name, set := range map[string]func(*bench){"acquire": func(b *bench) { b.store.acquire = boom }, "release": func(b *bench) { b.store.release = boom }} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			set(b)
			require.PanicsWithValue(t, "boom", func() { b.Do(context.Background(), "k", nothing) })
			require.Empty(t, b.runs.runs, "the guard still knows the run")
		})
	}
}

func TestWrap(t *testing.T) {
	key := func(_ context.Context, in string) (string, error) { return in, nil }
	echo := func(_ context.Context, lock Lock, in string) (string, error) { return in + " under " + lock.Key, nil }
	ctx := context.Background()

	on("F56 an error or a panic of the key function: nothing runs", t, newBench, Options{}, func(t *testing.T, b *bench) {
		bad := errors.New("no id in the event")
		_, err := Wrap(b.Guard, func(context.Context, string) (string, error) { return "", bad }, echo).Handle(ctx, "k")
		require.IsType(t, &LockBadRequest{}, err)
		require.ErrorIs(t, err, bad)
		h := Wrap(b.Guard, func(context.Context, string) (string, error) { panic("boom") }, echo)
		require.PanicsWithValue(t, "boom", func() { h.Handle(ctx, "k") })
		require.Empty(t, b.store.requests)
	})
	on("F51 nil functions and a nil guard are errors", t, newBench, Options{}, func(t *testing.T, b *bench) {
		for _, h := range []Wrapped[string, string]{
			Wrap[string, string](b.Guard, nil, echo), Wrap[string, string](b.Guard, key, nil),
			Wrap(b.Guard, key, WithoutFence[string, string](nil)), Wrap(nil, key, echo),
			WrapUnlocked[string, string](nil), {},
		} {
			_, err := h.Handle(ctx, "k")
			require.ErrorContains(t, err, "nil")
		}
	})
	on("F51 a handler wrapped twice is refused, not locked out by itself", t, newBench, Options{}, func(t *testing.T, b *bench) {
		twice := Wrap(b.Guard, key, WithoutFence(Wrap(b.Guard, key, echo).Handle))
		_, err := twice.Handle(ctx, "k")
		require.IsType(t, &LockBadRequest{}, err)
		b.free(t, "k")
	})
	on("a result that would be read after the release is refused", t, newBench, Options{}, func(t *testing.T, b *bench) {
		_, err := Wrap(b.Guard, key, func(context.Context, Lock, string) (io.ReadCloser, error) {
			t.Error("ran")
			return nil, nil
		}).Handle(ctx, "k")
		require.ErrorIs(t, err, errStream)
		_, err = Wrap(b.Guard, key, func(context.Context, Lock, string) (any, error) { return strings.NewReader("x"), nil }).Handle(ctx, "k")
		require.ErrorIs(t, err, errStream)
	})
	on("the handler's result and error pass", t, newBench, Options{}, func(t *testing.T, b *bench) {
		bad := errors.New("bad")
		out, err := Wrap(b.Guard, key, func(context.Context, Lock, string) (string, error) { return "half", bad }).Handle(ctx, "k")
		require.Equal(t, "half", out)
		require.Equal(t, bad, err)
	})
}

// Alarms and dashboards match the words of a line.
func TestLogReports(t *testing.T) {
	bubble("one line for each run", t, func(t *testing.T) {
		var out bytes.Buffer
		b := newBench(t, Options{HolderInfo: func(context.Context) lockstore.HolderInfo { return lockstore.HolderInfo{Name: "withdraw", ID: "req-1"} }})
		b.opt.Observe = LogReports(slog.New(slog.NewJSONHandler(&out, nil)))
		require.NoError(t, b.Do(t.Context(), "account/7", func(context.Context, Lock) error { pass(25 * time.Millisecond); return nil }))
		require.Equal(t, 1, strings.Count(out.String(), "\n"))
		require.NotContains(t, out.String(), string(b.store.requests[0].Owner), "the owner is a secret")
		var line map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &line))
		delete(line, "time")
		delete(line, "acquired_at")
		require.Equal(t, map[string]any{
			"level": "INFO", "msg": "lock", "requestId": "req-1", "key": "account/7", "outcome": "ok", "wait_ms": 0.0, "hold_ms": 25.0,
			"fence": float64(b.store.releases[0].Fence), "calls": 2.0,
		}, line)
	})
	cause := errors.New("denied")
	lost := func(work error) Report {
		return Report{Outcome: OutcomeLost, Fence: 7, AcquiredAt: time.Now(), Err: &LockLost{"k", work, nil}}
	}
	type line struct {
		report Report
		want   string // parts of the line, and its level
		not    string
	}
	lines := []line{
		{Report{Outcome: OutcomeBusy, MissedTurns: 2, NoPlace: true, FailedCalls: 3, OwnersWoken: 4}, "level=INFO failed_calls=3 no_place=true lapsed=2 woken=4", "state="},
		{Report{Outcome: OutcomeOK, WakeErr: cause}, "level=WARN wakeError=denied", "releaseError"},
		{Report{Outcome: OutcomeOK, ReleaseErr: cause}, "level=WARN releaseError=denied", "wakeError"},
		{Report{Outcome: OutcomeOK, CompleteErr: cause}, "level=WARN completeError=denied", "releaseError"},
		{Report{Outcome: OutcomeBusy, KeyState: lockstore.Held, HeldFor: 1500 * time.Millisecond}, "level=INFO state=held held_ms=1500", "fence=7"},
		{Report{Outcome: OutcomeBusy, KeyState: lockstore.Held, HeldFor: time.Second, heldLong: true}, "level=WARN held_ms=1000", "seat"},
		{Report{Outcome: OutcomeOK, HolderInfo: lockstore.HolderInfo{Caller: "jo"}, maxHolders: 3, seat: 2, Fence: 7}, "level=INFO fence=7 max_holders=3 seat=2 caller=jo", "lapsed"},
		{Report{Outcome: OutcomeOK, KeyState: lockstore.Held, HeldFor: time.Hour, heldLong: true, Fence: 7}, "level=INFO fence=7", "held_ms"}, // it had to wait
		{lost(nil), "level=WARN work_ok=true", "caller"},
		{lost(cause), "level=WARN", "work_ok"},
	}
	for level, outcomes := range map[string][]Outcome{
		"WARN": {doonce.InDoubt, doonce.NoResult, OutcomePanic, OutcomeCorrupt, OutcomeUnavailable, OutcomeUnknown},
		"INFO": {doonce.Replayed, doonce.Mismatch, OutcomeDeadline, OutcomeInvalid, OutcomeError, outcomeAcquired, outcomeRenewed, outcomeReleased},
	} {
		for _, o := range outcomes {
			lines = append(lines, line{Report{Outcome: o}, "level=" + level + " outcome=" + string(o), "state="})
		}
	}
	for _, c := range lines {
		t.Run("F51 without a logger, "+c.want, func(t *testing.T) {
			var out bytes.Buffer
			observe, before := LogReports(nil), slog.Default()
			t.Cleanup(func() { slog.SetDefault(before) })
			slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil))) // the default at the time of the line
			observe(t.Context(), c.report)
			for part := range strings.FieldsSeq(c.want) {
				require.Contains(t, out.String(), part)
			}
			require.NotContains(t, out.String(), c.not)
		})
	}
}

// A holder that hangs renews its lease, so only what refused runs say tells of it.
func TestAKeyThatIsHeldForLong(t *testing.T) {
	for _, c := range []struct {
		after, maxHold time.Duration
		long           bool
	}{{14 * time.Minute, 0, false}, {16 * time.Minute, 0, true}, {2 * time.Minute, 2 * time.Minute, false}, {3 * time.Minute, 2 * time.Minute, true}, {3 * time.Hour, 4 * time.Hour, false}} {
		on(c.after.String(), t, newBench, Options{MaxHold: c.maxHold}, func(t *testing.T, b *bench) {
			_, err := b.store.Store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "another", TTL: lockstore.MaxTTL, HolderInfo: lockstore.HolderInfo{Since: time.Now()}})
			require.NoError(t, err)
			pass(c.after)
			require.IsType(t, &LockBusy{}, b.Do(t.Context(), "k", neverRuns(t)))
			require.Equal(t, c.after, b.report(t).HeldFor)
			require.Equal(t, c.long, b.report(t).heldLong)
		})
	}
}

func TestErrorsMatch(t *testing.T) {
	cause := errors.New("cause")
	for err, want := range map[error][]error{
		&LockBusy{Key: "k"}:                       {lockstore.ErrRefused},
		&LockLost{"k", nil, nil}:                  {lockstore.ErrLost},
		&LockLost{"k", errors.New("work"), cause}: {lockstore.ErrLost, cause},
		&LockLost{"k", cause, nil}:                {lockstore.ErrLost, cause},
		&LockNoTime{Key: "k", Err: cause}:         {ErrDeadline, cause},
		&LockBadRequest{"k", cause}:               {lockstore.ErrInvalid, cause},
		&LockCorrupt{"k", cause}:                  {lockstore.ErrCorrupt, cause},
		&LockStoreUnavailable{"k", cause}:         {cause},
	} {
		for _, want := range want {
			require.ErrorIs(t, err, want)
		}
		require.Contains(t, err.Error(), `"k"`)
	}
}
