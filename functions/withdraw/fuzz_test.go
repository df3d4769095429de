package main

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

func request(account, body string) httpapi.Request {
	return httpapi.Request{PathParameters: map[string]string{"id": account}, Body: []byte(body)}
}

// FuzzParse: whatever comes in, what is let through is within its bounds, has a
// key that can be locked, and means the same when it is written down again.
func FuzzParse(f *testing.F) {
	for _, body := range []string{
		`{"id": "w-1", "amount": 500}`, `{"amount":1,"id":"\ud83d\ude00"}`, `{"id":"w","amount":1e2}`, `{"id":{},"amount":[]}`, `{`, "\x00",
	} {
		f.Add("7", body)
		f.Add("", body)
	}
	f.Fuzz(func(t *testing.T, account, body string) {
		w, err := parse(request(account, body))
		if err != nil {
			require.NotEmpty(t, err.Error())
			require.Less(t, len(err.Error()), 400)
			return
		}
		require.NoError(t, lockstore.ValidateKey(accounts.Key(w.Account)))
		require.True(t, len(w.ID) >= 1 && len(w.ID) <= 64 && utf8.ValidString(w.ID))
		require.True(t, w.Amount >= 1 && w.Amount <= 1_000_000_000_00)
		text, err := json.Marshal(map[string]any{"id": w.ID, "amount": w.Amount})
		require.NoError(t, err)
		again, err := parse(request(w.Account, string(text)))
		require.NoError(t, err)
		require.Equal(t, w, again)
	})
}
