package dynamostore_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func config(t testing.TB, rawURL string, env map[string]string) lockstore.Config {
	u, err := lockstore.ParseURL(rawURL)
	require.NoError(t, err)
	return lockstore.Config{URL: u, Getenv: func(name string) string { return env[name] }}
}

func staticEnv() map[string]string {
	return map[string]string{"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
}

func TestOpenRefuses(t *testing.T) {
	storetest.URLs(t, dynamostore.Opener, func(name string) string { return staticEnv()[name] }, "dynamodb://locks?region=r")
	for name, tc := range map[string]struct {
		url  string
		env  map[string]string
		says string
	}{
		"no table":           {url: "dynamodb://?region=r", says: "table name"},
		"short table":        {url: "dynamodb://ab?region=r", says: "3 to 255"},
		"no region":          {url: "dynamodb://locks", says: "AWS_REGION"},
		"endpoint":           {url: "dynamodb://locks?region=r&endpoint=127.0.0.1", says: "endpoint"},
		"endpoint's user":    {url: "dynamodb://locks?region=r&endpoint=http://me:secret%40host", says: "the parameter endpoint: "},
		"endpoint's path":    {url: "dynamodb://locks?region=r&endpoint=http://host/secret", says: "has a path"},
		"endpoint's query":   {url: "dynamodb://locks?region=r&endpoint=http://host?secret=1", says: "unknown parameter number 1"},
		"F48 skew":           {url: "dynamodb://locks?region=r&skew=1", says: "skew"},
		"F48 skew zero":      {url: "dynamodb://locks?region=r&skew=0s", says: "above 0"},
		"F48 skew too large": {url: "dynamodb://locks?region=r&skew=2m", says: "up to 1m0s"},
		"no credentials":     {url: "dynamodb://locks?region=r", env: map[string]string{}, says: "AWS_ACCESS_KEY_ID"},
		"one of two keys":    {url: "dynamodb://locks?region=r", env: map[string]string{"AWS_ACCESS_KEY_ID": "a"}, says: "only one"},
		"credentials from far away": {
			url:  "dynamodb://locks?region=r",
			env:  map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://192.0.2.1/creds"},
			says: "AWS_CONTAINER_CREDENTIALS_FULL_URI",
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := tc.env
			if env == nil {
				env = staticEnv()
			}
			s, err := dynamostore.Open(t.Context(), config(t, tc.url, env))
			require.Nil(t, s)
			require.ErrorIs(t, err, lockstore.ErrInvalid)
			require.ErrorContains(t, err, tc.says)
			require.NotContains(t, err.Error(), "secret@")
			t.Log(err)
		})
	}
}

// One error names everything that is missing.
func TestOpenNamesAllThatIsMissing(t *testing.T) {
	none := map[string]string{}
	_, err := dynamostore.Open(t.Context(), config(t, "dynamodb://locks?endpoint=http://192.0.2.1:8000", none))
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	for _, says := range []string{"?region=", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		require.ErrorContains(t, err, says)
	}
	_, err = dynamostore.Open(t.Context(), config(t, "dynamodb://locks", staticEnv()))
	require.ErrorContains(t, err, "AWS_REGION")
	require.NotContains(t, err.Error(), "AWS_ACCESS_KEY_ID")
	_, err = dynamostore.Open(t.Context(), config(t, "dynamodb://locks?region=r", none))
	require.ErrorContains(t, err, "AWS_ACCESS_KEY_ID")
	require.NotContains(t, err.Error(), "AWS_REGION")

	for _, cfg := range []lockstore.Config{{}, {Getenv: os.Getenv}, {URL: config(t, "dynamodb://locks", nil).URL}} {
		_, err := dynamostore.Open(t.Context(), cfg)
		require.ErrorIs(t, err, lockstore.ErrInvalid, "F51")
		_, err = dynamostore.Client(cfg)
		require.ErrorIs(t, err, lockstore.ErrInvalid, "F51")
	}
}

// DynamoDB Local needs some region and some credentials. Settings in the environment
// have priority over the defaults.
func TestDefaultsOnThisMachine(t *testing.T) {
	for _, endpoint := range []string{"http://127.0.0.1:8000", "http://127.1.2.3:8000", "http://localhost:8000", "http://[::1]:8000", "https://localhost"} {
		for name, tc := range map[string]struct {
			query       string
			env         map[string]string
			region, key string
		}{
			"nothing":            {region: "us-east-1", key: "local"},
			"region in URL":      {query: "&region=eu-west-1", region: "eu-west-1", key: "local"},
			"a region":           {env: map[string]string{"AWS_REGION": "eu-west-2"}, region: "eu-west-2", key: "local"},
			"another region":     {env: map[string]string{"AWS_DEFAULT_REGION": "eu-west-3"}, region: "eu-west-3", key: "local"},
			"credentials":        {env: map[string]string{"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "s"}, region: "us-east-1", key: "mine"},
			"id without key":     {env: map[string]string{"AWS_ACCESS_KEY_ID": "mine"}},
			"key without id":     {env: map[string]string{"AWS_SECRET_ACCESS_KEY": "s"}},
			"an unsafe endpoint": {env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://192.0.2.1/creds"}},
		} {
			t.Run(name+" "+endpoint, func(t *testing.T) {
				client, err := dynamostore.Client(config(t, "dynamodb://locks?endpoint="+url.QueryEscape(endpoint)+tc.query, tc.env))
				if tc.key == "" {
					require.ErrorIs(t, err, lockstore.ErrInvalid)
					return
				}
				require.NoError(t, err)
				require.Equal(t, tc.region, client.Options().Region)
				creds, err := client.Options().Credentials.Retrieve(t.Context())
				require.NoError(t, err)
				require.Equal(t, tc.key, creds.AccessKeyID)
				require.NotEmpty(t, creds.SecretAccessKey)
			})
		}
	}
	for _, elsewhere := range []string{"", "?endpoint=http://192.0.2.1:8000", "?endpoint=http://localhost.example.com", "?endpoint=http://[::2]:8000"} {
		_, err := dynamostore.Client(config(t, "dynamodb://locks"+elsewhere, nil))
		require.ErrorIs(t, err, lockstore.ErrInvalid, elsewhere)
	}
}

func TestOpenSendsNothing(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests++ }))
	defer server.Close()
	env := map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.URL, "AWS_REGION": "eu-west-1"}
	s, err := dynamostore.Open(t.Context(), config(t, "dynamodb://my_locks.v-2?endpoint="+server.URL+"&skew=1m", env))
	require.NoError(t, err)
	require.NotNil(t, s)
	require.Zero(t, requests)
}

// Managed instances and SnapStart provide credentials at an endpoint.
func TestCredentialsEndpoint(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("from-a-file\n"), 0o600))
	fails := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/creds":
			require.Contains(t, r.Header.Get("Authorization"), "Credential=FROMENDPOINT/")
			w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"__type":"ThrottlingException"}`))
		case fails:
			w.WriteHeader(http.StatusForbidden)
		default:
			require.Equal(t, "from-a-file", r.Header.Get("Authorization"))
			_, _ = w.Write([]byte(`{"AccessKeyId":"FROMENDPOINT","SecretAccessKey":"s","Token":"t"}`))
		}
	}))
	defer server.Close()
	env := map[string]string{
		"AWS_CONTAINER_CREDENTIALS_FULL_URI":     server.URL + "/creds",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token,
	}
	open := func() *dynamostore.Store {
		s, err := dynamostore.Open(t.Context(), config(t, "dynamodb://locks?region=eu-west-1&endpoint="+server.URL, env))
		require.NoError(t, err)
		return s
	}
	_, err := open().Acquire(t.Context(), request(time.Minute))
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "throttled", "the credentials were accepted")

	fails = true
	_, err = open().Acquire(t.Context(), request(time.Minute))
	require.ErrorIs(t, err, lockstore.ErrUnavailable, "F71: nothing was sent to DynamoDB")
	require.ErrorContains(t, err, "credentials endpoint")
}

// A server that refuses connections is reported before the client's timeout.
func TestRefusedConnection(t *testing.T) {
	s, err := dynamostore.Open(t.Context(), config(t, "dynamodb://locks?region=eu-west-1&endpoint=http://127.0.0.1:1", staticEnv()))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = s.Acquire(ctx, request(time.Minute))
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "refused", "F21")
	require.NoError(t, ctx.Err())
	require.Less(t, strings.Count(err.Error(), "\n"), 1)
}
