package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard/schedule"
)

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	// booked checks what was booked on the accounts 7 and 9, in cents.
	booked := func(seven, nine int64) func(*testing.T, functest.World) {
		return func(t *testing.T, w functest.World) {
			assert.Equal(t, [2]int64{functest.Opening - seven, functest.Opening - nine}, w.Balances(t))
			w.Free(t, accounts.Key("7"), accounts.Key("8"), accounts.Key("9"))
		}
	}
	functest.Events(t, "nightly", key, func(w functest.World) any {
		return schedule.Wrap(w.Guard, key, handle(w.Guard, w.Book))
	}, map[string]func(*testing.T, functest.World){
		"nightly":           booked(150, 150),
		"nightly-busy":      booked(0, 0),
		"nightly-refused":   booked(0, 150),
		"nightly-bad-input": booked(0, 0),
	})
}
