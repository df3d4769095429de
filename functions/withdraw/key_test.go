package main

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// An Idempotency-Key is the caller's own: the replay is for who has sent the first request. The ledger's id is for all.
func TestKeysAreTheCallersOwn(t *testing.T) {
	w := functest.NewWorld(t)
	const shop = "arn:aws:sts::123456789012:assumed-role/shop"
	request := httpapi.Request{
		Method: "POST", URL: url.URL{Path: "/accounts/7/withdrawals"}, PathParameters: map[string]string{"id": "7"},
		Body: []byte(`{"id": "w-1", "amount": 500}`), Header: http.Header{"Idempotency-Key": {"k-1"}},
	}
	send := func(caller string) httpapi.Response {
		request.Caller = caller
		answer, err := serve(w.Guard, key, handle(w.Ledger)).Handle(t.Context(), request)
		require.NoError(t, err)
		require.NoError(t, described.check(answer))
		return answer
	}
	first := send(shop)
	replay := first
	replay.Header = first.Header.Clone()
	replay.Header.Set("Idempotent-Replayed", "true")
	require.Equal(t, replay, send(shop))
	for name, caller := range map[string]string{"another role": shop + "-2", "a user": "https://id.example.com#ann", "no authorizer": ""} {
		assert.Equal(t, first, send(caller), "%s: by the ledger's id", name)
		require.Equal(t, replay, send(caller), name)
	}
	request.Authorizer = map[string]any{"lambda": map[string]any{"user": "ann"}}
	answer := send("")
	assert.Equal(t, 400, answer.StatusCode)
	assert.Contains(t, string(answer.Body), "the caller is not known")
	request.Header = nil
	assert.Equal(t, 200, send("").StatusCode)
}
