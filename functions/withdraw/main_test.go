package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	// booked checks what was booked on the account 7, in cents, and which keys are free.
	booked := func(cents int64, free ...string) func(*testing.T, functest.World) {
		return func(t *testing.T, w functest.World) {
			assert.Equal(t, [2]int64{functest.Opening - cents, functest.Opening}, w.Balances(t))
			w.Free(t, free...)
		}
	}
	functest.Events(t, "withdraw", accounts.Key("7"), func(w functest.World) any {
		return httpapi.Wrap(w.Guard, key, handle(w.Book))
	}, map[string]func(*testing.T, functest.World){
		"withdraw":                 booked(500, accounts.Key("7")),
		"withdraw-base64":          booked(500, accounts.Key("7")),
		"withdraw-busy":            booked(0),
		"withdraw-bad-input":       booked(0, accounts.Key("7")),
		"withdraw-insufficient":    booked(0, accounts.Key("7")),
		"withdraw-unknown-account": booked(0, accounts.Key("8")),
	})
}
