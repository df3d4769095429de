package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// TestAKeyThatIsHeldForLong: a holder that hangs renews its lease, so only what refused runs say tells of it.
func TestAKeyThatIsHeldForLong(t *testing.T) {
	ctx := context.Background()
	line := func(t *testing.T, store *lockstore.Store, opt Options, do func(*Guard)) map[string]any {
		var out bytes.Buffer
		opt.Observe = LogReports(slog.New(slog.NewJSONHandler(&out, nil)))
		g, err := New(store, opt)
		require.NoError(t, err)
		do(g)
		var all map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &all))
		return all
	}
	asks := func(g *Guard) { _ = g.Do(ctx, "k", nothing) }
	// hangs begins a run that renews until the end of the test.
	hangs := func(t *testing.T, store *lockstore.Store, opt Options) {
		ctx, cancel := context.WithCancel(ctx)
		t.Cleanup(cancel)
		opt.MaxHold = lockstore.MaxTTL
		g, err := New(store, opt)
		require.NoError(t, err)
		go func() {
			_ = g.Do(ctx, "k", func(ctx context.Context, _ Lock) error { <-ctx.Done(); return nil })
		}()
		synctest.Wait()
	}
	for name, c := range map[string]struct {
		after time.Duration
		opt   Options
		level string
	}{
		"shorter than a run of this guard": {14 * time.Minute, Options{}, "INFO"},
		"longer than MaxHold":              {16 * time.Minute, Options{}, "WARN"},
		"longer than another MaxHold":      {3 * time.Minute, Options{MaxHold: 2 * time.Minute}, "WARN"},
		"a job of hours":                   {3 * time.Hour, Options{MaxHold: 4 * time.Hour}, "INFO"},
	} {
		bubble(name, t, func(t *testing.T) {
			store := memstore.New(nil)
			hangs(t, store, Options{})
			pass(c.after)
			got := line(t, store, c.opt, asks)
			require.Equal(t, c.level, got["level"])
			require.Equal(t, "busy", got["outcome"])
			require.InDelta(t, milliseconds(c.after), got["held_ms"], 1)
		})
	}
}
