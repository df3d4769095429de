package stores

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// A store that cannot be used is told in one line, without a password, with what is wrong: not as one that does not answer, if
// another try would not mend it.
func TestStoresThatCannotBeUsed(t *testing.T) {
	for name, variable := range map[string]string{
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": "", "AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
	} {
		t.Setenv(name, variable)
	}
	_, err := x509.SystemCertPool() // the first time it reads files, on a busy machine for longer than a call may last
	require.NoError(t, err)
	secret := httptest.NewUnstartedServer(http.NotFoundHandler())
	secret.Config.ErrorLog = log.New(io.Discard, "", 0)
	secret.StartTLS() // with a certificate that nobody knows
	defer secret.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	guarded := miniredis.RunT(t)
	guarded.RequireAuth("the password")
	addr := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	for storeURL, want := range map[string]struct {
		text   string
		status int
	}{
		"nonsense":                                     {"^--store, LOCK_URL: lockstore: the URL has no scheme", exit.Config},
		"redis://:hunter2@[::1":                        {"^--store, LOCK_URL: lockstore: the URL cannot be read", exit.Config},
		"memory://":                                    {`no store for the scheme "memory"; linked here: dsql, dynamodb, elasticache, mariadb, mysql, postgres, postgresql, redis, rediss, sqlite, valkey, valkeys, zookeeper`, exit.Config},
		"zookeeper://127.0.0.1:1":                      {"connection refused", exit.Unavailable},
		"redis://:hunter2@127.0.0.1:1":                 {"connection refused", exit.Unavailable},
		"redis://:hunter2@" + guarded.Addr():           {"WRONGPASS", exit.Permission},
		"redis://" + guarded.Addr():                    {"NOAUTH", exit.Permission},
		"redis://:hunter2@cache.example.com":           {"rediss://", exit.Config},
		"redis://127.0.0.1?x=y":                        {"the redis URL has the unknown parameter number 1", exit.Config},
		"rediss://" + addr(secret):                     {"certificate signed by unknown authority", exit.Config},
		"rediss://" + addr(plain):                      {"first record does not look like a TLS handshake", exit.Config},
		"dynamodb://x?region=eu-central-1":             {"dynamostore: the table name", exit.Config},
		"dynamodb://locks":                             {"the region is missing", exit.Config},
		"dynamodb://locks?region=eu-central-1":         {"^there are no AWS credentials to ask with: sign in, or set --profile or AWS_PROFILE: ", exit.Config},
		"dynamodb://locks?endpoint=http://127.0.0.1:1": {"there is no connection to DynamoDB", exit.Unavailable},
		"dynamodb://locks?region=us-east-1&endpoint=https://" + addr(secret): {"certificate signed by unknown authority", exit.Config},
		"elasticache://me@127.0.0.1:1?cache=c":                               {"^there are no AWS credentials to ask with: ", exit.Config},
	} {
		s := Settings{URL: storeURL}
		if strings.HasPrefix(storeURL, "elasticache") {
			s.Region = "eu-central-1"
		}
		store, err := s.Open(t.Context())
		if err == nil {
			_, err = Call(t.Context(), func(ctx context.Context) (lockstore.Status, error) { return store.Inspect(ctx, "k") })
		}
		require.Error(t, err, storeURL)
		assert.Equal(t, want.status, exit.Status(err), "%s: %v", storeURL, err)
		assert.Regexp(t, want.text, err.Error())
		for _, never := range []string{"hunter2", "lock store is unavailable", "\n"} {
			assert.NotContains(t, err.Error(), never)
		}
	}
}

// What the guard says around the store's error is not said twice.
func TestFailedSaysItOnce(t *testing.T) {
	inner := fmt.Errorf("dynamostore: there is no connection: %w: refused", lockstore.ErrUnavailable)
	err := Failed(&guard.LockStoreUnavailable{Key: "k", Err: inner})
	require.EqualError(t, err, "dynamostore: there is no connection: refused")
	assert.Equal(t, exit.Unavailable, exit.Status(err))
	err = Failed(&guard.LockCorrupt{Key: "k", Err: fmt.Errorf("there is no such table: %w", lockstore.ErrCorrupt)})
	require.EqualError(t, err, "there is no such table: lock entry is foreign or corrupt")
	assert.Equal(t, exit.Damaged, exit.Status(err))
}

func TestShort(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain",
		`account "a": operation error DynamoDB: UpdateItem, https response error StatusCode: 400, RequestID: 55feab0a-8d86, ResourceNotFoundException: no table`:                                                            `account "a": ResourceNotFoundException: no table`,
		`operation error DynamoDB: UpdateItem, exceeded maximum number of attempts, 3, https response error StatusCode: 0, RequestID: , request send failed, Post "http://h:1/": dial tcp h:1: connect: connection refused`: "dial tcp h:1: connect: connection refused",
		`dynamostore: table locks: there is no connection (key "k"): lock store is unavailable: dial tcp`:                                                                                                                   `dynamostore: table locks: there is no connection (key "k"): dial tcp`,
		`dynamostore: table locks: it does not exist (key "k"): lock entry is foreign or corrupt: no table`:                                                                                                                 `dynamostore: table locks: it does not exist (key "k"): no table`,
		"operation error DynamoDB: GetItem, get identity: no credentials":                                                                                                                                                   "get identity: no credentials",
	} {
		long := errors.New(text)
		assert.EqualError(t, short{long}, want)
		require.ErrorIs(t, short{long}, long)
	}
}
