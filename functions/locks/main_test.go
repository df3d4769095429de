package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockhttp"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

const key = "shared/report"

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	free := func(t *testing.T, w functest.World) { w.Free(t, key) }
	held := func(t *testing.T, w functest.World) { w.Held(t, key) }
	functest.Events(t, "locks", func(w functest.World) any {
		service, err := lockhttp.Open(w.Guard, &url.URL{Scheme: "text", Path: "/any secret that has at least 32 bytes"},
			func(string) string { return `{"*": ["shared/"]}` })
		require.NoError(t, err)
		return service.Handle
	}, map[string]func(*testing.T, functest.World){
		"locks":           held,
		"locks-busy":      held,
		"locks-get":       free,
		"locks-get-busy":  held,
		"locks-bad-input": free,
		"locks-forbidden": func(t *testing.T, w functest.World) { w.Free(t, "payroll/october") },
		"locks-no-lease":  free,
		"locks-openapi":   free,
	})
}

// Whoever releases a key over HTTP wakes the state machine that waits for it.
func TestWakes(t *testing.T) {
	tokens := make(chan string, 10)
	stepFunctions := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "AWSStepFunctions.SendTaskSuccess", r.Header.Get("X-Amz-Target"))
		var in struct{ TaskToken string }
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&in))
		tokens <- in.TaskToken
		_, _ = io.WriteString(w, "{}")
	}))
	defer stepFunctions.Close()
	lockURL := "redis://" + testservers.Redis(t)
	store, err := lockstore.Open(t.Context(), lockURL, os.Getenv, redisstore.Opener)
	require.NoError(t, err)
	defer store.Close()
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), ".", binary))
	function, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: binary, Timeout: 10 * time.Second, Env: []string{
		"LOCK_URL=" + lockURL, `LOCK_CALLERS={"*": ["shared/"]}`, "LOCK_TOKEN_SECRET=text:///any-secret-that-has-at-least-32-bytes", "AWS_ENDPOINT_URL_SFN=" + stepFunctions.URL,
	}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, function.Close()) }()
	put, err := os.ReadFile("../../events/locks.json")
	require.NoError(t, err)
	ask := func(status int, event string) (body struct{ Token string }) {
		result, err := function.Invoke(t.Context(), []byte(event))
		require.NoError(t, err)
		var answer struct {
			StatusCode int
			Body       string
		}
		require.NoError(t, json.Unmarshal(result.Payload, &answer), "%s", result.Payload)
		require.Equal(t, status, answer.StatusCode, "%s", result.Payload)
		if answer.Body != "" {
			require.NoError(t, json.Unmarshal([]byte(answer.Body), &body))
		}
		return body
	}
	held := ask(http.StatusOK, string(put))
	_, err = store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute, JoinQueue: true,
		Parked: lockstore.MaxParkedTurn, Address: lockstore.TaskToken("token-of-parked")})
	require.ErrorIs(t, err, lockstore.ErrRefused)
	ask(http.StatusNoContent, strings.NewReplacer(`"PUT"`, `"DELETE"`, `"accept":`, `"lock-token": "`+held.Token+`", "accept":`).Replace(string(put)))
	require.Len(t, tokens, 1)
	require.Equal(t, "token-of-parked", <-tokens)
}
