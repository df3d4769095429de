package lockservice

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

const testSecret = "0123456789abcdef0123456789abcdef"

func newService(t *testing.T) *Service {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	require.NoError(t, err)
	return &Service{g, func(context.Context, time.Duration) ([]secret, error) { return []secret{secret(testSecret)}, nil }, callers{Anonymous: {""}}}
}

func ask(t *testing.T, s *Service, method, key, body string, headers ...string) (httpapi.Response, map[string]any) {
	r := httpapi.Request{Body: body, PathParameters: map[string]string{"key": key}, Headers: map[string]string{}}
	r.RequestContext = events.APIGatewayV2HTTPRequestContext{HTTP: events.APIGatewayV2HTTPRequestContextHTTPDescription{Method: method}}
	for i := 0; i < len(headers); i += 2 {
		r.Headers[headers[i]] = headers[i+1]
	}
	answer, err := s.Handle(t.Context(), r)
	require.NoError(t, err)
	var out map[string]any
	if answer.Body != "" {
		require.NoError(t, json.Unmarshal([]byte(answer.Body), &out))
	}
	return answer, out
}

func TestLifeOfALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		answer, had := ask(t, s, "PUT", "reports/daily", `{"ttl": 30, "holder": "cron"}`)
		require.Equal(t, http.StatusOK, answer.StatusCode, answer.Body)
		require.Equal(t, 29.75, had["expiresIn"])

		answer, busy := ask(t, s, "PUT", "reports/daily", `{"ttl": 30}`)
		require.Equal(t, http.StatusConflict, answer.StatusCode, answer.Body)
		require.Equal(t, "cron", busy["holder"].(map[string]any)["name"])

		answer, state := ask(t, s, "GET", "reports/daily", "")
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.Equal(t, true, state["held"])
		require.NotContains(t, answer.Body, had["token"])

		<-time.After(20 * time.Second)
		answer, renewed := ask(t, s, "PATCH", "reports/daily", `{"ttl": 60}`, "lock-token", had["token"].(string))
		require.Equal(t, http.StatusOK, answer.StatusCode, answer.Body)
		require.Equal(t, had["fence"], renewed["fence"])
		require.Equal(t, 59.75, renewed["expiresIn"])

		for range 2 {
			answer, _ = ask(t, s, "DELETE", "reports/daily", "", "Lock-Token", renewed["token"].(string))
			require.Equal(t, http.StatusNoContent, answer.StatusCode, answer.Body)
		}
		answer, _ = ask(t, s, "PATCH", "reports/daily", `{"ttl": 60}`, "Lock-Token", renewed["token"].(string))
		require.Equal(t, http.StatusNotFound, answer.StatusCode)
	})
}
