package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// TestNoSecretIsShown runs the function as it is deployed through everything
// that can become of a lock, and looks for its secrets in what it wrote: log
// lines, which are the metrics, too, answers, and the store.
func TestNoSecretIsShown(t *testing.T) {
	const secret = "0123456789abcdef0123456789abcdef"
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), "github.com/lambdalock/lambdalock/functions/locks", binary))
	redis := miniredis.RunT(t)
	process := func(tokenSecret string) (*lambdatest.Environment, error) {
		return lambdatest.Start(t.Context(), lambdatest.Config{Binary: binary, Timeout: 2 * time.Second, Env: []string{
			"LOCK_URL=redis://" + redis.Addr(), "LOCK_METRICS=test", "LOCK_TOKEN_SECRET=" + tokenSecret, `LOCK_CALLERS={"anonymous": ["shared/"]}`}})
	}
	e, err := process("text:///" + secret)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Close()) })

	var shown, stored strings.Builder
	var tokens []string
	ask := func(status int, method, key, body string, headers ...string) {
		t.Helper()
		in := events.APIGatewayV2HTTPRequest{Body: body, PathParameters: map[string]string{"key": key}, Headers: map[string]string{}}
		in.RequestContext.HTTP.Method = method
		for i := 0; i < len(headers); i += 2 {
			in.Headers[headers[i]] = headers[i+1]
		}
		text, err := json.Marshal(in)
		require.NoError(t, err)
		r, err := e.Invoke(t.Context(), text)
		require.NoError(t, err)
		var out events.APIGatewayV2HTTPResponse
		require.NoError(t, json.Unmarshal(r.Payload, &out))
		require.Equal(t, status, out.StatusCode, out.Body)
		var had struct{ Token string }
		if status == http.StatusOK {
			require.NoError(t, json.Unmarshal([]byte(out.Body), &had))
		}
		if had.Token != "" {
			tokens = append(tokens, had.Token)
			require.Equal(t, 1, strings.Count(string(r.Payload), had.Token), "in its one place")
		} else {
			shown.Write(r.Payload)
		}
		for _, key := range redis.Keys() {
			value, err := redis.Get(key)
			require.NoError(t, err)
			stored.WriteString(key + " " + value)
		}
	}
	const key, terms = "shared/report", `{"ttl": 30}`
	last := func() string { return tokens[len(tokens)-1] }

	ask(200, "PUT", key, terms, "Idempotency-Key", "7")
	ask(200, "PUT", key, terms, "Idempotency-Key", "7")
	ask(409, "PUT", key, terms)
	ask(200, "PATCH", key, terms, "Lock-Token", last())
	ask(200, "GET", key, "", "Lock-Token", last())
	ask(400, "PUT", key, `{"ttl": "`+last()+`"}`)
	ask(404, "DELETE", key, "", "Lock-Token", last()+"A")
	ask(404, "DELETE", "shared/other", "", "Lock-Token", last())
	ask(403, "DELETE", "secret", "", "Lock-Token", last())
	ask(415, "PATCH", key, terms, "Lock-Token", last(), "Content-Type", last())
	ask(405, "POST", key, terms, "Lock-Token", last())
	redis.SetError("LOADING the data set")
	ask(503, "PUT", key, terms, "Idempotency-Key", "7")
	ask(503, "GET", key, "", "Lock-Token", last())
	redis.SetError("an error that says nothing")
	ask(503, "PATCH", key, terms, "Lock-Token", last())
	ask(503, "DELETE", key, "", "Lock-Token", last())
	redis.SetError("")
	ask(204, "DELETE", key, "", "Lock-Token", last())
	ask(204, "DELETE", key, "", "Lock-Token", last())
	ask(404, "PATCH", key, terms, "Lock-Token", last())
	ask(422, "PUT", key, terms, "Idempotency-Key", "7")
	ask(200, "PUT", key, terms)
	require.NoError(t, redis.Set(redisstore.DefaultPrefix+key, "not a lock's entry"))
	ask(500, "PUT", key, terms, "Idempotency-Key", "8")
	ask(500, "PATCH", key, terms, "Lock-Token", last())
	ask(500, "DELETE", key, "", "Lock-Token", last())
	ask(500, "GET", key, "", "Lock-Token", last())
	for _, wrong := range []string{"text:///" + secret[:31], "text://" + secret + "/" + secret, secret, "text:///%zz" + secret, "text:///" + secret + "?" + secret} {
		_, err := process(wrong)
		require.Error(t, err)
		shown.WriteString(err.Error())
	}

	for _, line := range e.Logs() {
		shown.WriteString(line)
	}
	for _, there := range []string{"acquired", "renewed", "released", "busy", "unknown", "corrupt", `"_aws"`, "the secret has 31 bytes"} {
		require.Contains(t, shown.String(), there, "else nothing was looked at")
	}
	require.Contains(t, stored.String(), key)
	secrets := []string{secret, secret[:31], hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret))}
	owners := []string{}
	for _, token := range tokens {
		raw, err := base64.RawURLEncoding.DecodeString(token)
		require.NoError(t, err)
		tag, owner := raw[9:41], raw[41:]
		secrets = append(secrets, token, token[12:54], string(tag), hex.EncodeToString(tag), base64.StdEncoding.EncodeToString(tag))
		owners = append(owners, string(owner))
	}
	for _, secret := range secrets {
		_, after, found := strings.Cut(stored.String()+shown.String(), secret)
		require.False(t, found, "%q, and then %.80q", secret, after)
	}
	for _, owner := range owners {
		_, after, found := strings.Cut(shown.String(), owner)
		require.False(t, found, "%q, and then %.80q", owner, after)
	}
	require.Contains(t, stored.String(), owners[0], "the store needs it, and it is no token")
}
