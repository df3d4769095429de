package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	// withdrawn checks what was withdrawn on the accounts 7 and 9, in cents.
	withdrawn := func(seven, nine int64) func(*testing.T, functest.World) {
		return func(t *testing.T, w functest.World) {
			assert.Equal(t, [2]int64{functest.Opening - seven, functest.Opening - nine}, w.Balances(t))
			w.Free(t, accounts.Key("7"), accounts.Key("8"), accounts.Key("9"))
		}
	}
	functest.Events(t, "nightly", func(w functest.World) any {
		return handler(w.Guard, w.Ledger).Handle
	}, map[string]func(*testing.T, functest.World){
		"nightly":           withdrawn(150, 150),
		"nightly-busy":      withdrawn(0, 0),
		"nightly-refused":   withdrawn(0, 150),
		"nightly-bad-input": withdrawn(0, 0),
	})
}

// An event that cannot be decoded is a failure and not a skip, so that Lambda
// puts it into the queue of failures.
func TestUnreadableEvents(t *testing.T) {
	w := functest.NewWorld(t)
	for in, want := range map[string]string{
		`[]`:   "UnmarshalTypeError",
		`null`: "BadInput",
		`{}`:   "BadInput",
		`{"time": "tonight", "detail": {"accounts": ["7"], "fee": 150}}`:                "ParseError",
		`{"time": "2026-11-21T02:15:00Z", "detail": {"accounts": "7", "fee": 150}}`:     "UnmarshalTypeError",
		`{"time": "2026-11-21T02:15:00Z", "detail": {"accounts": ["7"], "fee": "150"}}`: "UnmarshalTypeError",
	} {
		var got struct{ ErrorType string }
		out := functest.Invoke(t, handler(w.Guard, w.Ledger).Handle, []byte(in))
		require.NoError(t, json.Unmarshal(out, &got))
		assert.Equal(t, want, got.ErrorType, "%s: %s", in, out)
	}
	assert.Equal(t, [2]int64{functest.Opening, functest.Opening}, w.Balances(t))
}

// An event is skipped while a run does the same work, and only then: nobody does the work of another event.
func TestOnlyTheSameWorkIsSkipped(t *testing.T) {
	const event = `{"time": "2026-11-21T02:15:00Z", "detail": {"accounts": ["7"], "fee": 150}}`
	var e feeEvent
	require.NoError(t, json.Unmarshal([]byte(event), &e))
	key, err := e.key()
	require.NoError(t, err)
	for _, c := range []struct {
		old, new string
		skipped  bool
	}{
		{"", "", true}, {"02:15", "02:16", true},
		{"-21T", "-22T", false}, {`"7"`, `"9"`, false}, {`"7"`, `"7", "9"`, false}, {"150", "151", false},
	} {
		w := functest.NewWorld(t)
		_, err := w.Store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		out, err := handler(w.Guard, w.Ledger).Handle(t.Context(), []byte(strings.Replace(event, c.old, c.new, 1)))
		require.NoError(t, err, c.new)
		assert.Equal(t, c.skipped, out.Skipped, c.new)
		assert.Equal(t, c.skipped, w.Balances(t) == [2]int64{functest.Opening, functest.Opening}, c.new)
	}
}
