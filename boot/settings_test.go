package boot

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// measured are the settings of a guard, as its runs show them.
type measured struct {
	ttl, maxHold, wait, margin time.Duration
	maxHolders                 int
}

// measure makes a guard from an environment and looks at what its runs do.
func measure(t *testing.T, env map[string]string) (m measured) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewFaulty(memstore.New(nil), func(c storetest.Call) storetest.Fault {
			if c.Kind == driver.Acquire && m.ttl == 0 {
				m.ttl = c.TTL
			}
			return storetest.Fault{}
		})
		g, err := newGuard(io.Discard, func(name string) string { return env[name] }, "LOCK_URL", nil, opens(store.Store))
		require.NoError(t, err)
		left := func(ctx context.Context) (d time.Duration) {
			require.NoError(t, g.Do(ctx, "k", func(ctx context.Context, _ guard.Lock) error {
				end, ok := ctx.Deadline()
				require.True(t, ok)
				d = time.Until(end)
				return nil
			}))
			return d
		}
		m.maxHold, m.maxHolders = left(t.Context()), g.MaxHolders()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		m.margin = 10*time.Second - left(ctx)
		require.NoError(t, g.WithMaxHolders(1).Do(t.Context(), "k", func(context.Context, guard.Lock) error {
			began := time.Now()
			require.IsType(t, &guard.LockBusy{}, g.WithMaxHolders(1).Do(context.WithoutCancel(t.Context()), "k", func(context.Context, guard.Lock) error { return nil }))
			m.wait = time.Since(began)
			return nil
		}))
	})
	return m
}

// TestDefaultsOfThePages: the pages name the variables that boot reads, with the defaults that a guard has.
func TestDefaultsOfThePages(t *testing.T) {
	defaults := map[string]string{ // as boot's page says it; "" is no default
		"LOCK_URL": "", "LOCK_TTL": "60s", "LOCK_MAX_HOLD": "15m", "LOCK_WAIT": "0", "LOCK_MAX_HOLDERS": "1", "LOCK_DEADLINE_MARGIN": "300ms",
		"LOCK_COALESCE": "", "LOCK_SIGTERM": "", "LOCK_METRICS": "", "LOCK_LOG": "",
	}
	read := func(file string) string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(text)
	}
	t.Run("boot", func(t *testing.T) {
		page := map[string]string{}
		for _, m := range regexp.MustCompile(`(?m)^//\t(LOCK_\w+) .*?(?:: (\S+) by default)?$`).FindAllStringSubmatch(read("boot.go"), -1) {
			page[m[1]] = m[2]
		}
		require.Equal(t, defaults, page)
	})
	t.Run("docs/start.md", func(t *testing.T) {
		want, page := map[string]string{}, map[string]string{}
		for name, value := range defaults {
			want[name] = value
			if words := map[string]string{"LOCK_URL": "required", "LOCK_COALESCE": "false", "LOCK_SIGTERM": "false", "LOCK_METRICS": "none", "LOCK_LOG": "none"}[name]; words != "" {
				want[name] = words
			}
		}
		for _, m := range regexp.MustCompile("(?m)^\\| `(LOCK_\\w+)` \\| ([^|,]+?)(?:, or [^|]*)? \\|").FindAllStringSubmatch(read("../docs/start.md"), -1) {
			page[m[1]] = m[2]
		}
		require.Equal(t, want, page)
	})
	t.Run("a guard", func(t *testing.T) {
		want := measured{ttl: time.Minute, maxHold: 15 * time.Minute, margin: 300 * time.Millisecond, maxHolders: 1}
		require.Equal(t, want, measure(t, map[string]string{"LOCK_URL": "memory://"}))
		spelled := map[string]string{"LOCK_URL": "memory://"}
		for name, value := range defaults {
			if value != "" {
				spelled[name] = value
			}
		}
		require.Equal(t, want, measure(t, spelled), "the defaults, spelled out")
		require.Equal(t, measured{ttl: 30 * time.Second, maxHold: 30 * time.Second, margin: 300 * time.Millisecond, maxHolders: 1},
			measure(t, map[string]string{"LOCK_URL": "memory://", "LOCK_MAX_HOLD": "30s"}), "a MaxHold below the TTL")
		require.Equal(t, measured{ttl: time.Hour, maxHold: time.Hour, margin: 300 * time.Millisecond, maxHolders: 1},
			measure(t, map[string]string{"LOCK_URL": "memory://", "LOCK_TTL": "1h"}), "a TTL above the MaxHold")
		require.Equal(t, measured{ttl: 20 * time.Second, maxHold: 2 * time.Minute, wait: 3 * time.Second, margin: time.Second, maxHolders: 4},
			measure(t, map[string]string{"LOCK_URL": "memory://", "LOCK_TTL": "20s", "LOCK_MAX_HOLD": "2m", "LOCK_WAIT": "3s", "LOCK_DEADLINE_MARGIN": "1s", "LOCK_MAX_HOLDERS": "4"}), "each variable sets its own")
	})
	t.Run("what boot reads", func(t *testing.T) {
		asked := map[string]string{}
		getenv := func(name string) string {
			asked[name] = defaults[name]
			return map[string]string{"LOCK_URL": "memory://"}[name]
		}
		g, err := newGuard(io.Discard, getenv, "LOCK_URL", nil, memstore.Opener)
		require.NoError(t, err)
		options, err := startOptions(g, getenv)
		require.NoError(t, err)
		require.Empty(t, options, "no SIGTERM")
		require.Equal(t, defaults, asked)
	})
}

// TestParametersOfTheTemplate: boot takes the smallest and the largest value that the pattern of a parameter lets through, and its
// default, for the functions that have them.
func TestParametersOfTheTemplate(t *testing.T) {
	text, err := os.ReadFile("../template.yaml")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		variable     string
		in, out      []string
		defaultValue string
	}{
		"LockTtl":  {"LOCK_TTL", []string{"1s", "899s", "1m", "15m"}, []string{"0s", "900s", "16m", "1h", "500ms", "60"}, "60s"},
		"LockWait": {"LOCK_WAIT", []string{"0ms", "0s", "999ms", "999s"}, []string{"1000s", "-1s", "2m", "2"}, "2s"},
	} {
		found := regexp.MustCompile(`(?m)^  ` + name + `:\n    Type: String\n    Default: (\S+)\n    AllowedPattern: "(.*)"\n`).FindStringSubmatch(string(text))
		require.NotNil(t, found, name)
		require.Equal(t, c.defaultValue, found[1])
		pattern := regexp.MustCompile("^(?:" + found[2] + ")$")
		for _, value := range append(c.in, found[1]) {
			require.Regexp(t, pattern, value)
			_, err := newGuard(io.Discard, func(name string) string {
				return map[string]string{"LOCK_URL": "memory://", c.variable: value}[name]
			}, "LOCK_URL", nil, memstore.Opener)
			require.NoError(t, err, "%s=%s", c.variable, value)
		}
		for _, value := range c.out {
			require.NotRegexp(t, pattern, value)
		}
	}
	require.Regexp(t, `(?m)^  HeldMinutes:\n    Type: Number\n    Default: 30\n    MinValue: 1\n`, string(text), "the filters LockHeld and LockWaited leave out what is less than a minute")

	parsed, err := template.Parse(text, nil)
	require.NoError(t, err)
	functions, err := parsed.Functions()
	require.NoError(t, err)
	require.NotEmpty(t, functions)
	for _, f := range functions {
		known := map[string]string{"LOCK_TTL": "60s", "LOCK_WAIT": "2s", "LOCK_METRICS": "stack", "LOCK_URL": "dynamodb://LockTable"}
		for name, value := range known {
			require.Equal(t, value, f.Environment.Variables[name], fmt.Sprint(f.ID, " ", name))
		}
	}
}
