package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	// withdrawn checks what was withdrawn on the account 7, in cents, and which keys are free.
	withdrawn := func(cents int64, free ...string) func(*testing.T, functest.World) {
		return func(t *testing.T, w functest.World) {
			assert.Equal(t, [2]int64{functest.Opening - cents, functest.Opening}, w.Balances(t))
			w.Free(t, free...)
		}
	}
	functest.Events(t, "withdraw", func(w functest.World) any {
		return serve(w.Guard, key, handle(w.Ledger)).Handle
	}, map[string]func(*testing.T, functest.World){
		"withdraw":                 withdrawn(500, accounts.Key("7")),
		"withdraw-base64":          withdrawn(500, accounts.Key("7")),
		"withdraw-busy":            withdrawn(0),
		"withdraw-bad-input":       withdrawn(0, accounts.Key("7")),
		"withdraw-insufficient":    withdrawn(0, accounts.Key("7")),
		"withdraw-unknown-account": withdrawn(0, accounts.Key("8")),
		"withdraw-key":             withdrawn(500, accounts.Key("7")),
		"withdraw-jwt":             withdrawn(500, accounts.Key("7")),
		"withdraw-rest":            withdrawn(500, accounts.Key("7")),
		"withdraw-key-busy":        withdrawn(0),
		"withdraw-key-two":         withdrawn(0, accounts.Key("7")),
		"withdraw-key-long":        withdrawn(0, accounts.Key("7")),
	})
}

// TestMistakesOfClients sends what a client may send by mistake, and one withdrawal twice.
func TestMistakesOfClients(t *testing.T) {
	w := functest.NewWorld(t)
	send := func(account, body string) httpapi.Response {
		r, err := serve(w.Guard, key, handle(w.Ledger)).Handle(t.Context(), request(account, body))
		require.NoError(t, err)
		return r
	}
	const good = `{"id": "w-1", "amount": 500}`
	made := send("7", good)
	require.Equal(t, 200, made.StatusCode)
	require.Equal(t, made, send("7", good), "a replay gets the first outcome")

	for name, c := range map[string]struct {
		account, body string
		status        int
		detail        string
	}{
		"nothing":                      {"", "", 400, "body: want a JSON object"},
		"no path parameter":            {"", good, 400, "account: want 1 to 64"},
		"missing field":                {"7", `{"id": "w-2"}`, 400, "amount: is missing"},
		"unknown field":                {"7", `{"id": "w-2", "amount": 500, "currency": "EUR"}`, 400, "is unknown; want id and amount"},
		"oversize":                     {"7", good + strings.Repeat(" ", accounts.MaxTextBytes), 400, "body: want at most 1024 bytes"},
		"the id of another withdrawal": {"7", `{"id": "w-1", "amount": 501}`, 422, "was used before"},
	} {
		t.Run("F55 "+name, func(t *testing.T) {
			r := send(c.account, c.body)
			assert.Equal(t, c.status, r.StatusCode)
			assert.Contains(t, string(r.Body), c.detail)
			assert.Empty(t, r.Header.Get("Retry-After"), "another try does not help")
		})
	}
	assert.Equal(t, [2]int64{functest.Opening - 500, functest.Opening}, w.Balances(t))
	w.Free(t, accounts.Key("7"))
}

// What goes wrong behind the lock: another holder has been at the account, or nobody knows what was done.
func TestAnswer(t *testing.T) {
	refused, err := answer(accounts.Receipt{}, fmt.Errorf("account 7: %w", accounts.ErrStaleFence))
	require.NoError(t, err)
	assert.Equal(t, 409, refused.StatusCode)
	assert.Equal(t, "1", refused.Header.Get("Retry-After"), "only a conflict is worth a retry")
	require.NoError(t, described.check(refused))
	unknown := errors.New("connection reset")
	_, err = answer(accounts.Receipt{}, unknown)
	require.Equal(t, unknown, err, "an unknown outcome is never dressed up as an answer")
}
