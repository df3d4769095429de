package driver_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

func TestTexts(t *testing.T) {
	var kinds, states []string
	for k := driver.Inspect; k <= driver.AwaitTurn; k++ {
		kinds = append(kinds, k.String())
	}
	for s := driver.Free; s <= driver.InDoubt; s++ {
		states = append(states, s.String())
	}
	assert.Equal(t, []string{"inspect", "acquire", "renew", "release", "abandon", "leave", "mark started", "complete", "resolve", "revoke", "await turn"}, kinds)
	assert.Equal(t, []string{"free", "reserved", "held", "revoked", "completed", "cooldown", "in doubt"}, states)
	assert.Equal(t, "state 7", (driver.InDoubt + 1).String())
	assert.Equal(t, "state -1", driver.State(-1).String())
}

func TestNextFence(t *testing.T) {
	const now = 1_790_942_400_000_000
	for previous, want := range map[driver.Fence]driver.Fence{0: now, 5: now, now - 1: now, now: now + 1, now + 100_000_000: now + 100_000_001} {
		assert.Equal(t, want, driver.NextFence(previous, time.UnixMicro(now)), "F20 after %d", previous)
	}
	assert.Equal(t, driver.Fence(1), driver.NextFence(0, time.Unix(-5, 0)), "a clock before 1970 gives no fence below 1")
	text, err := driver.Fence(now).MarshalBinary() // as an argument of go-redis
	assert.NoError(t, err)
	assert.Equal(t, "1790942400000000", string(text))
}

func TestState(t *testing.T) {
	var taken, done []driver.State
	for s := driver.Free; s <= driver.InDoubt; s++ {
		if s.Taken() {
			taken = append(taken, s)
		}
		if s.Done() {
			done = append(done, s)
		}
	}
	assert.Equal(t, []driver.State{driver.Held, driver.Revoked, driver.Completed, driver.Cooldown, driver.InDoubt}, taken)
	assert.Equal(t, []driver.State{driver.Completed, driver.Cooldown}, done)
}

// plain is a driver without an optional interface.
type plain struct{}

func (plain) Do(context.Context, string, driver.Request) (driver.Answer, error) {
	return driver.Answer{}, nil
}

func (plain) Await(context.Context, string, driver.Request) (driver.Answer, error) {
	return driver.Answer{}, nil
}

// closer is a driver with an optional interface.
type closer struct{ driver.Driver }

func (closer) Close() error { return nil }

type wrapper struct{ driver.Driver }

func (w wrapper) Unwrap() driver.Driver { return w.Driver }

type closingWrapper struct{ wrapper }

func (closingWrapper) Close() error { return nil }

// optional is a driver that says who has the interface.
type optional struct {
	driver.Driver
	closer io.Closer
}

func (o optional) Optional() []any { return []any{o.closer} }

func TestAs(t *testing.T) {
	inner := closer{plain{}}
	for _, d := range []driver.Driver{inner, wrapper{inner}, wrapper{wrapper{inner}}} {
		found, ok := driver.As[io.Closer](d)
		assert.True(t, ok)
		assert.Equal(t, inner, found)
	}
	outer := closingWrapper{wrapper{inner}}
	found, ok := driver.As[io.Closer](wrapper{outer})
	assert.True(t, ok)
	assert.Equal(t, outer, found, "the outermost wins")

	found, ok = driver.As[io.Closer](wrapper{optional{plain{}, inner}})
	assert.True(t, ok)
	assert.Equal(t, inner, found, "in the driver's place")

	hides := struct{ driver.Driver }{inner}
	for _, d := range []driver.Driver{plain{}, wrapper{plain{}}, wrapper{nil}, nil, hides, wrapper{hides}} {
		_, ok := driver.As[io.Closer](d)
		assert.False(t, ok, "%#v", d)
	}
}
