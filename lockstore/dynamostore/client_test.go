package dynamostore_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
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

func TestOpen(t *testing.T) {
	storetest.URLs(t, dynamostore.Opener, func(name string) string { return staticEnv()[name] }, "dynamodb://locks?region=r")
	for _, query := range []string{"key=PK&sort=SK&prefix=LOCK%23&ttl=expires_at", "sort=key2", "key=ttl&ttl=key", "prefix=" + strings.Repeat("p", 1024)} {
		_, err := dynamostore.Open(t.Context(), config(t, "dynamodb://locks?region=r&"+query, staticEnv()))
		require.NoError(t, err, query)
	}
	for name, tc := range map[string]struct {
		url  string
		env  map[string]string
		says []string
		not  string
	}{
		"no table":           {url: "dynamodb://?region=r", says: []string{"table name"}},
		"short table":        {url: "dynamodb://ab?region=r", says: []string{"3 to 255"}},
		"endpoint":           {url: "dynamodb://locks?region=r&endpoint=http://me:secret%40host", says: []string{"the parameter endpoint: "}, not: "secret@"},
		"F48 skew":           {url: "dynamodb://locks?region=r&skew=1", says: []string{"skew"}},
		"F48 skew zero":      {url: "dynamodb://locks?region=r&skew=0s", says: []string{"above 0"}},
		"F48 skew too large": {url: "dynamodb://locks?region=r&skew=2m", says: []string{"up to 1m0s"}},
		"an attribute":       {url: "dynamodb://locks?region=r&key=owner", says: []string{`Key is "owner", which is another attribute`}},
		"another attribute":  {url: "dynamodb://locks?region=r&sort=size", says: []string{`Sort is "size"`}},
		"a third attribute":  {url: "dynamodb://locks?region=r&ttl=started", says: []string{`TTL is "started"`}},
		"one name twice":     {url: "dynamodb://locks?region=r&key=PK&sort=PK", says: []string{`Sort is "PK"`}},
		"a default name":     {url: "dynamodb://locks?region=r&key=ttl", says: []string{`TTL is "ttl"`}},
		"a long name":        {url: "dynamodb://locks?region=r&key=" + strings.Repeat("k", 256), says: []string{"Key is no name"}},
		"a long prefix":      {url: "dynamodb://locks?region=r&prefix=" + strings.Repeat("p", 1025), says: []string{"Prefix has 1025 bytes"}},
		"a prefix of bytes":  {url: "dynamodb://locks?region=r&prefix=%FF", says: []string{"Prefix"}},
		"no region":          {url: "dynamodb://locks", says: []string{"AWS_REGION"}, not: "AWS_ACCESS_KEY_ID"},
		"no credentials":     {url: "dynamodb://locks?region=r", env: map[string]string{}, says: []string{"AWS_ACCESS_KEY_ID"}, not: "AWS_REGION"},
		"all that is missing": {
			url: "dynamodb://locks?endpoint=http://192.0.2.1:8000", env: map[string]string{},
			says: []string{"?region=", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_CONTAINER_CREDENTIALS_FULL_URI"},
		},
		"id without key": {url: "dynamodb://locks?endpoint=http://localhost:8000", env: map[string]string{"AWS_ACCESS_KEY_ID": "a"}, says: []string{"only one"}},
		"key without id": {url: "dynamodb://locks?endpoint=http://localhost:8000", env: map[string]string{"AWS_SECRET_ACCESS_KEY": "s"}, says: []string{"only one"}},
		"credentials from far away": {
			url: "dynamodb://locks?endpoint=http://localhost:8000", env: map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://192.0.2.1/creds"},
			says: []string{"AWS_CONTAINER_CREDENTIALS_FULL_URI"},
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
			for _, says := range tc.says {
				require.ErrorContains(t, err, says)
			}
			if tc.not != "" {
				require.NotContains(t, err.Error(), tc.not)
			}
		})
	}
	for _, cfg := range []lockstore.Config{{}, {Getenv: os.Getenv}, {URL: config(t, "dynamodb://locks", nil).URL}} {
		_, err := dynamostore.Open(t.Context(), cfg)
		require.ErrorIs(t, err, lockstore.ErrInvalid, "F51")
		_, err = dynamostore.Client(cfg)
		require.ErrorIs(t, err, lockstore.ErrInvalid, "F51")
	}
}

// DynamoDB Local needs some region and some credentials. Settings in the environment
// have priority over the defaults. What is this machine, TestIsThisMachine of package storeurl says.
func TestDefaultsOnThisMachine(t *testing.T) {
	for name, tc := range map[string]struct {
		query       string
		env         map[string]string
		region, key string
	}{
		"nothing":        {"endpoint=http://127.0.0.1:8000", nil, "us-east-1", "local"},
		"region in URL":  {"endpoint=http://localhost:8000&region=eu-west-1", nil, "eu-west-1", "local"},
		"a region":       {"endpoint=http://localhost:8000", map[string]string{"AWS_REGION": "eu-west-2"}, "eu-west-2", "local"},
		"another region": {"endpoint=http://localhost:8000", map[string]string{"AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3", "local"},
		"credentials":    {"endpoint=http://localhost:8000", map[string]string{"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "s"}, "us-east-1", "mine"},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := dynamostore.Client(config(t, "dynamodb://locks?"+tc.query, tc.env))
			require.NoError(t, err)
			require.Equal(t, tc.region, client.Options().Region)
			creds, err := client.Options().Credentials.Retrieve(t.Context())
			require.NoError(t, err)
			require.Equal(t, tc.key, creds.AccessKeyID)
			require.NotEmpty(t, creds.SecretAccessKey)
		})
	}
}

// Managed instances and SnapStart provide credentials at an endpoint, which Open does not ask.
func TestCredentialsEndpoint(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("from-a-file\n"), 0o600))
	fails, requests := false, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
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
			_, _ = fmt.Fprintf(w, `{"AccessKeyId":"FROMENDPOINT","SecretAccessKey":"s","Token":"t","Expiration":%q}`, time.Now().Add(4*time.Minute).UTC().Format(time.RFC3339))
		}
	}))
	defer server.Close()
	env := map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.URL + "/creds", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token, "AWS_REGION": "eu-west-1"}
	acquire := func() error {
		s, err := dynamostore.Open(t.Context(), config(t, "dynamodb://my_locks.v-2?skew=1m&endpoint="+server.URL, env))
		require.NoError(t, err)
		require.Zero(t, requests)
		_, err = s.Acquire(t.Context(), request(time.Minute))
		return err
	}
	err := acquire()
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "throttled", "the credentials were accepted")
	require.Equal(t, 3+3, requests, "credentials end within five minutes, and an attempt used old ones")

	fails, requests = true, 0
	err = acquire()
	require.ErrorIs(t, err, lockstore.ErrUnavailable, "F71: nothing was sent to DynamoDB")
	require.ErrorContains(t, err, "credentials endpoint")
}
