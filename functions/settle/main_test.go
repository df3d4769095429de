package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
)

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	// withdrawn checks what was withdrawn on the accounts 7 and 9, in cents.
	withdrawn := func(seven, nine int64) func(*testing.T, functest.World) {
		return func(t *testing.T, w functest.World) {
			assert.Equal(t, [2]int64{functest.Opening - seven, functest.Opening - nine}, w.Balances(t))
		}
	}
	free := func(check func(*testing.T, functest.World)) func(*testing.T, functest.World) {
		return func(t *testing.T, w functest.World) {
			check(t, w)
			w.Free(t, accounts.Key("7"), accounts.Key("8"), accounts.Key("9"))
		}
	}
	functest.Events(t, "settle", func(w functest.World) any {
		return sqsbatch.Wrap(w.Guard, key, handle(w.Ledger)).Handle
	}, map[string]func(*testing.T, functest.World){
		"settle":           free(withdrawn(600, 250)),
		"settle-poison":    free(withdrawn(600, 0)),
		"settle-bad-input": free(withdrawn(100, 250)),
		"settle-busy":      withdrawn(0, 250),
		"settle-refused":   free(withdrawn(100, 0)),
		"settle-fifo":      free(withdrawn(500, 50)),
		"settle-empty":     free(withdrawn(0, 0)),
	})
}
