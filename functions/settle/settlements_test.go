package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
)

func TestParse(t *testing.T) {
	w, err := parse(`{"account": "7", "id": "s-1", "amount": 500}`)
	require.NoError(t, err)
	require.Equal(t, accounts.Withdrawal{Account: "7", ID: "s-1", Amount: 500}, w)
	for body, want := range map[string]string{
		``:                             "body: want a JSON object with account, id and amount",
		`{"id": "s-1", "amount": 500}`: "account: is missing",
		`{"account": "7", "id": "s-1", "amount": -1}`:                     `amount: is "-1"`,
		`{"account": "7", "id": "s-1", "amount": 500, "currency": "EUR"}`: `"currency": is unknown`,
	} {
		t.Run("F52 "+want, func(t *testing.T) {
			_, err := parse(body)
			assert.ErrorContains(t, err, want, body)
		})
	}
}
