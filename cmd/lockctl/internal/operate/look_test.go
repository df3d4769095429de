package operate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
)

// scripted is a store whose answers are given, one for each look. The last one stays.
type scripted struct {
	answers []scriptedAnswer
	looks   int
}

type scriptedAnswer struct {
	status lockstore.Status
	err    error
	slow   bool // it comes after the time of the call
}

func (s *scripted) Inspect(ctx context.Context, _ string) (lockstore.Status, error) {
	a := s.answers[min(s.looks, len(s.answers)-1)]
	s.looks++
	if a.slow {
		<-ctx.Done()
		return lockstore.Status{}, fmt.Errorf("outcome unknown: %w", ctx.Err())
	}
	return a.status, a.err
}

var (
	closing = scriptedAnswer{status: lockstore.Status{Key: "k", Held: true, Broken: true, Fence: 7, Remaining: 10 * time.Second}}
	doubt   = scriptedAnswer{status: lockstore.Status{Key: "k", Held: true, InDoubt: true, Fence: 7}}
	open7   = scriptedAnswer{status: lockstore.Status{Key: "k", Fence: 7}}
	next    = scriptedAnswer{status: lockstore.Status{Key: "k", Held: true, Fence: 8, Remaining: time.Minute}}
	fails   = scriptedAnswer{err: fmt.Errorf("%w: connection refused", lockstore.ErrUnavailable)}
	slow    = scriptedAnswer{slow: true}
	damaged = scriptedAnswer{err: lockstore.ErrCorrupt}
)

// what has been said and printed until a wait of watch or break --wait has ended.
type ended struct {
	status    int
	err, said string
	printed   string
	looks     int
}

// waitsIn runs a wait in virtual time. Ctrl-C comes after interrupt.
func waitsIn(t *testing.T, interrupt time.Duration, answers []scriptedAnswer, wait func(ctx context.Context, s *stores.Settings, store *scripted, out, err *bytes.Buffer) error) (e ended) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), interrupt)
		defer cancel()
		var out, said bytes.Buffer
		store := &scripted{answers: answers}
		err := wait(ctx, &stores.Settings{Timeout: 3 * time.Second}, store, &out, &said)
		e = ended{status: exit.Status(err), said: said.String(), printed: out.String(), looks: store.looks}
		if _, silent := errors.AsType[*exit.Silent](err); err != nil && !silent {
			e.err = err.Error()
		}
	})
	return e
}

const (
	warned  = "lockctl: warning: the store does not answer; lockctl goes on waiting: "
	answers = "lockctl: the store answers again\n"
)

func refused() string { return warned + fails.err.Error() + "\n" }

func TestBreakWaits(t *testing.T) {
	const isBroken = `the lease of "k" is broken, and the key opens, or is in doubt, at 2000-01-01T00:00:10Z`
	for name, c := range map[string]struct {
		interrupt time.Duration
		answers   []scriptedAnswer
		want      ended
	}{
		"until it is open":             {time.Hour, []scriptedAnswer{closing, closing, open7}, ended{looks: 3}},
		"until another has it":         {time.Hour, []scriptedAnswer{closing, next}, ended{looks: 2}},
		"until it is in doubt":         {time.Hour, []scriptedAnswer{closing, doubt}, ended{status: exit.No, err: `"k" is in doubt: nobody holds it, and nobody may have it before lockctl settle`, looks: 2}},
		"for a store that fails":       {time.Hour, []scriptedAnswer{fails, fails, closing, fails, open7}, ended{said: refused() + answers + refused() + answers, looks: 5}},
		"for a slow store":             {time.Hour, []scriptedAnswer{closing, slow, open7}, ended{said: warned + "outcome unknown: context deadline exceeded\n" + answers, looks: 3}},
		"until Ctrl-C":                 {1500 * time.Millisecond, []scriptedAnswer{closing}, ended{status: exit.Interrupted, err: "stopped waiting; " + isBroken, looks: 2}},
		"until Ctrl-C in a call":       {1500 * time.Millisecond, []scriptedAnswer{closing, slow}, ended{status: exit.Interrupted, err: "stopped waiting; " + isBroken, looks: 2}},
		"until Ctrl-C without a store": {1500 * time.Millisecond, []scriptedAnswer{fails}, ended{status: exit.Interrupted, said: refused(), err: "stopped waiting; " + isBroken, looks: 2}},
		"until the entry is damaged":   {time.Hour, []scriptedAnswer{closing, damaged}, ended{status: exit.Damaged, err: "stopped waiting: " + damaged.err.Error() + "; " + isBroken, looks: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, waitsIn(t, c.interrupt, c.answers, func(ctx context.Context, s *stores.Settings, store *scripted, out, err *bytes.Buffer) error {
				b := breaker{Settings: *s, key: "k", wait: true, out: out, err: err}
				return b.await(ctx, store, closing.status)
			}))
		})
	}
}

func TestWatchGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		interrupt time.Duration
		answers   []scriptedAnswer
		want      ended
		lines     int
	}{
		"after a failure":            {time.Hour, []scriptedAnswer{next, fails, slow, next, closing, open7}, ended{said: refused() + answers, looks: 6}, 4},
		"until Ctrl-C":               {2500 * time.Millisecond, []scriptedAnswer{next}, ended{status: exit.Interrupted, looks: 3}, 2},
		"until Ctrl-C in a call":     {1500 * time.Millisecond, []scriptedAnswer{next, slow}, ended{status: exit.Interrupted, looks: 2}, 2},
		"until the entry is damaged": {time.Hour, []scriptedAnswer{next, damaged}, ended{status: exit.Damaged, err: damaged.err.Error(), looks: 2}, 2},
		"not without a first answer": {time.Hour, []scriptedAnswer{fails}, ended{status: exit.Unavailable, err: fails.err.Error(), looks: 1}, 0},
		"not for Ctrl-C before it":   {time.Second, []scriptedAnswer{slow}, ended{status: exit.Interrupted, looks: 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := waitsIn(t, c.interrupt, c.answers, func(ctx context.Context, s *stores.Settings, store *scripted, out, err *bytes.Buffer) error {
				return watch(ctx, &looker{Settings: s, inspector: store, key: "k", err: err}, stateFree, out)
			})
			assert.Equal(t, c.lines, bytes.Count([]byte(got.printed), []byte("\n")), got.printed)
			got.printed = ""
			assert.Equal(t, c.want, got)
		})
	}
}

// A second operator waits, too, and is told who was first.
func TestBreakWaitsForAnother(t *testing.T) {
	first := closing
	first.status.Holder = lockstore.HolderInfo{Name: "broken by ann"}
	for wait, want := range map[bool]ended{
		true:  {printed: "the lease of \"k\" was broken already: broken by ann; the key opens within 10s\n", looks: 2},
		false: {status: exit.No, err: `the lease of "k" was broken already: broken by ann; the key opens within 10s`},
	} {
		assert.Equal(t, want, waitsIn(t, time.Hour, []scriptedAnswer{first, open7}, func(ctx context.Context, s *stores.Settings, store *scripted, out, err *bytes.Buffer) error {
			b := breaker{Settings: *s, key: "k", wait: wait, out: out, err: err}
			require.NoError(t, b.refuse(first.status))
			return b.already(ctx, store, first.status)
		}))
	}
}
