package operate

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
)

// large is a table that is never read.
type large struct{ lockstore.Lister }

func (large) Extent(context.Context) (lockstore.Extent, error) {
	return lockstore.Extent{Entries: 8_000_000, Bytes: 2 << 30, ReadUnits: 524_288}, nil
}

func TestAsksBeforeItReadsMuch(t *testing.T) {
	ask := func(l *lister) (int, string) {
		var said bytes.Buffer
		l.err, l.Settings = &said, stores.Settings{Timeout: time.Second}
		return exit.Status(l.ask(t.Context(), large{})), said.String()
	}
	const price = "reading about 8000000 entries, 2147.5 MB, 524288 read units, about $0.0655"
	status, said := ask(&lister{in: strings.NewReader("y\n")})
	assert.Equal(t, exit.Usage, status, "nobody is there to ask")
	assert.Contains(t, said, price)
	status, said = ask(&lister{in: strings.NewReader(""), yes: true})
	assert.Equal(t, 0, status)
	assert.Contains(t, said, price)
	for line, want := range map[string]int{"y": 0, "Yes": 0, "": exit.No, "n": exit.No, "yess": exit.No} {
		user, terminal, err := pty.Open()
		require.NoError(t, err)
		_, err = user.WriteString(line + "\n")
		require.NoError(t, err)
		status, said = ask(&lister{in: terminal})
		assert.Equal(t, want, status, "%q", line)
		assert.Contains(t, said, "[y/N]")
		require.NoError(t, terminal.Close())
		require.NoError(t, user.Close())
	}
}

// Ctrl-C ends the wait for an answer.
func TestAsksUntilInterrupted(t *testing.T) {
	user, terminal, err := pty.Open()
	require.NoError(t, err)
	defer user.Close()
	defer terminal.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	question := asked{interrupt}
	l := &lister{in: terminal, err: question, Settings: stores.Settings{Timeout: time.Second}}
	require.ErrorIs(t, l.ask(ctx, large{}), context.Canceled)
	b := &breaker{in: terminal, err: question}
	require.ErrorIs(t, b.confirm(ctx, lockstore.Status{Held: true}), context.Canceled)
}

// asked is where a question is written. Nobody answers it.
type asked struct{ interrupt func() }

func (a asked) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "?") {
		a.interrupt()
	}
	return len(b), nil
}

// plain is a store that can do no more than locking, as Datastore and Cosmos DB cannot list.
type plain struct{ lockstore.Store }

func TestStoreThatCannot(t *testing.T) {
	_, err := find[lockstore.Lister](plain{}, "list its keys")
	require.EqualError(t, err, "this store (operate.plain) cannot list its keys")
	assert.Equal(t, exit.Config, exit.Status(err))
}

func TestNames(t *testing.T) {
	assert.Equal(t, "withdraw (4f1c)", named(lockstore.Holder{Name: "withdraw", ID: "4f1c"}))
	assert.Equal(t, "arn:aws:x", named(lockstore.Holder{Name: "me", Caller: "arn:aws:x"}))
	assert.Equal(t, "unnamed", named(lockstore.Holder{}))
	for state, status := range map[string]lockstore.Status{
		stateFree: {}, stateHeld: {Held: true}, stateClosing: {Held: true, Broken: true}, stateKept: {Held: true, Kept: true}, stateDoubt: {Held: true, InDoubt: true},
	} {
		assert.Equal(t, state, stateOf(status))
	}
}
