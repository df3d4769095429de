package main

import (
	"context"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard/httpapi"
)

// api is the function in a world, and how often it has paid.
type api struct {
	functest.World
	t     *testing.T
	serve func(context.Context, httpapi.Request) (httpapi.Response, error)
	paid  int
}

func newAPI(t *testing.T) *api {
	a := &api{World: functest.NewWorld(t), t: t}
	a.Ledger.Pay = func(context.Context, accounts.Withdrawal) error { a.paid++; return nil }
	a.serve = serve(a.Guard, key, handle(a.Ledger)).Handle
	return a
}

// shop is a role.
const shop = "arn:aws:sts::123456789012:assumed-role/shop"

// keyedRequest is a request of the role, with an Idempotency-Key unless it is "".
func keyedRequest(key, account, body string) httpapi.Request {
	r := httpapi.Request{
		Method: "POST", URL: url.URL{Path: "/accounts/" + account + "/withdrawals"}, PathParameters: map[string]string{"id": account},
		Body: []byte(body), Header: http.Header{}, Caller: shop,
	}
	if key != "" {
		r.Header.Set(httpapi.IdempotencyKey, key)
	}
	return r
}

func by(r httpapi.Request, caller string) httpapi.Request {
	r.Caller = caller
	return r
}

// send sends a request, whose answer is one that openapi.json describes.
func (a *api) send(r httpapi.Request) httpapi.Response {
	a.t.Helper()
	answer, err := a.serve(a.t.Context(), r)
	require.NoError(a.t, err)
	require.NoError(a.t, described.check(answer))
	return answer
}

// isReplay checks that an answer is that of an earlier request.
func isReplay(t *testing.T, first, got httpapi.Response) {
	t.Helper()
	want := first
	want.Header = first.Header.Clone()
	want.Header.Set("Idempotent-Replayed", "true")
	require.Equal(t, want, got)
}

const five = `{"id": "w-1", "amount": 500}`

func TestKeysAreTheCallersOwn(t *testing.T) {
	a := newAPI(t)
	mine := keyedRequest("k-1", "7", five)
	first := a.send(mine)
	isReplay(t, first, a.send(mine))
	for name, r := range map[string]httpapi.Request{"another role": by(mine, shop+"-2"), "a user": by(mine, "https://id.example.com#ann"), "no authorizer": by(mine, "")} {
		answer := a.send(r)
		assert.Equal(t, first, answer, "%s: by the ledger's id", name)
		isReplay(t, first, a.send(r))
	}
	unknown := by(mine, "")
	unknown.Authorizer = map[string]any{"lambda": map[string]any{"user": "ann"}}
	answer := a.send(unknown)
	assert.Equal(t, 400, answer.StatusCode)
	assert.Contains(t, string(answer.Body), "the caller is not known")
	unknown.Header = nil
	assert.Equal(t, 200, a.send(unknown).StatusCode)
}
