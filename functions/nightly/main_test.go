package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard/schedule"
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
		return schedule.Wrap(w.Guard, key, handle(w.Guard, w.Ledger)).Handle
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
		out := functest.Invoke(t, schedule.Wrap(w.Guard, key, handle(w.Guard, w.Ledger)).Handle, []byte(in))
		require.NoError(t, json.Unmarshal(out, &got))
		assert.Equal(t, want, got.ErrorType, "%s: %s", in, out)
	}
	assert.Equal(t, [2]int64{functest.Opening, functest.Opening}, w.Balances(t))
	w.Free(t, key)
}
