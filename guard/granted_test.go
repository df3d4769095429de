package guard

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type seenKey struct{}

func TestGranted(t *testing.T) {
	ctx := context.Background()
	// The hook asks the context that it gets, as a tracer may, and adds the key to its value.
	open := func(t *testing.T) (b *bench, granted *[]Report, observed map[string]any) {
		granted, observed = new([]Report), map[string]any{}
		b = newBench(t, Options{Granted: func(ctx context.Context, r Report) context.Context {
			_, _ = ctx.Deadline()
			assert.NoError(t, ctx.Err())
			*granted = append(*granted, r)
			before, _ := ctx.Value(seenKey{}).(string)
			return context.WithValue(ctx, seenKey{}, before+r.Key)
		}})
		b.opt.Observe = func(ctx context.Context, r Report) {
			assert.NoError(t, ctx.Err())
			observed[r.Key] = ctx.Value(seenKey{})
		}
		return b, granted, observed
	}
	bubble("the values reach the work and the observer", t, func(t *testing.T) {
		b, granted, observed := open(t)
		b.store.acquire = b.slow(time.Second)
		require.NoError(t, b.Do(ctx, "k", func(ctx context.Context, lock Lock) error {
			require.Equal(t, "k", ctx.Value(seenKey{}))
			require.Len(t, *granted, 1)
			r := (*granted)[0]
			require.Equal(t, []any{"k", lock.Fence, time.Second, 1}, []any{r.Key, r.Fence, r.WaitTime, r.Calls})
			return nil
		}))
		require.Equal(t, map[string]any{"k": "k"}, observed)
	})
	bubble("each key of a DoAll, inside the one before", t, func(t *testing.T) {
		b, _, observed := open(t)
		require.NoError(t, b.DoAll(ctx, []string{"b", "a"}, func(ctx context.Context, _ []Lock) error {
			require.Equal(t, "ab", ctx.Value(seenKey{}))
			return nil
		}))
		require.Equal(t, map[string]any{"a": "a", "b": "ab"}, observed)
	})
	bubble("a run that gets no lock", t, func(t *testing.T) {
		b, granted, observed := open(t)
		b.occupy(t, "k", time.Minute)
		require.IsType(t, &LockBusy{}, b.Do(ctx, "k", neverRuns(t)))
		require.Empty(t, *granted)
		require.Equal(t, map[string]any{"k": nil}, observed)
	})
	on("a hook that returns no context", t, newBench, Options{Granted: func(context.Context, Report) context.Context { return nil }}, func(t *testing.T, b *bench) {
		require.NoError(t, b.Do(context.WithValue(ctx, seenKey{}, "caller's"), "k", func(ctx context.Context, _ Lock) error {
			require.Equal(t, "caller's", ctx.Value(seenKey{}))
			return nil
		}))
	})
}
