package main

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"
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

// session is a session of the role shop.
const session = "AROASHOPSHOPSHOPSHOP:session-1"

// keyedRequest is a request of the session, with an Idempotency-Key unless it is "".
func keyedRequest(key, account, body string) httpapi.Request {
	r := httpapi.Request{PathParameters: map[string]string{"id": account}, Body: body, Headers: map[string]string{}}
	r.RawPath = "/accounts/" + account + "/withdrawals"
	r.RequestContext.HTTP.Method = "POST"
	if key != "" {
		r.Headers["idempotency-key"] = key
	}
	return by(r, session)
}

func by(r httpapi.Request, callerID string) httpapi.Request {
	r.RequestContext.Authorizer = &events.APIGatewayV2HTTPRequestContextAuthorizerDescription{
		IAM: &events.APIGatewayV2HTTPRequestContextAuthorizerIAMDescription{CallerID: callerID},
	}
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
	want.Headers = maps.Clone(first.Headers)
	want.Headers["Idempotent-Replayed"] = "true"
	require.Equal(t, want, got)
}

const five = `{"id": "w-1", "amount": 500}`

func TestKeysAreTheCallersOwn(t *testing.T) {
	a := newAPI(t)
	mine := keyedRequest("k-1", "7", five)
	first := a.send(mine)
	isReplay(t, first, a.send(by(mine, strings.Replace(session, "session-1", "session-2", 1))))
	anonymous := mine
	anonymous.RequestContext.Authorizer = nil
	for name, r := range map[string]httpapi.Request{
		"another role": by(mine, "AROAMAILMAILMAILMAIL:session-1"), "a user": by(mine, "AIDASHOPSHOPSHOPSHOP"), "no authorizer": anonymous,
	} {
		answer := a.send(r)
		assert.Equal(t, first, answer, "%s: by the ledger's id", name)
		isReplay(t, first, a.send(r))
	}
	unknown := mine
	unknown.RequestContext.Authorizer = &events.APIGatewayV2HTTPRequestContextAuthorizerDescription{Lambda: map[string]any{"user": "ann"}}
	for name, r := range map[string]httpapi.Request{"another authorizer": unknown, "no id": by(mine, "")} {
		answer := a.send(r)
		assert.Equal(t, 400, answer.StatusCode, name)
		assert.Contains(t, answer.Body, "the caller", name)
		delete(r.Headers, "idempotency-key")
		assert.Equal(t, 200, a.send(r).StatusCode, name)
		r.Headers["idempotency-key"] = "k-1"
	}
}
