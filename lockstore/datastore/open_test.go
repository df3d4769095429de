package datastore

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/httpclient"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

const secret = "s3cret-s3cret"

func TestOpen(t *testing.T) {
	addr := testservers.Datastore(t).Addr
	_, err := patient(t, addr).Write(t.Context(), "first", []byte("first"), "")
	require.NoError(t, err)
	env := map[string]string{"DATASTORE_EMULATOR_HOST": addr}
	for _, rawURL := range []string{
		"datastore://project", "datastore://project/", "datastore://project/(default)", "datastore://project/other",
		"datastore://project/other?kind=Kind", "datastore://project-2/other?kind=a%20b",
	} {
		t.Run(rawURL, func(t *testing.T) {
			s, err := lockstore.Open(t.Context(), rawURL, func(name string) string { return env[name] }, Opener)
			require.NoError(t, err)
			// In (default) the first two names are the same lock.
			lease, err := s.Acquire(t.Context(), request())
			require.NoError(t, err)
			require.NoError(t, s.Release(t.Context(), lease))
		})
	}
}

func TestOpenRefusesBadURLs(t *testing.T) {
	emulator := map[string]string{"DATASTORE_EMULATOR_HOST": "localhost:1"}
	storetest.URLs(t, Opener, func(name string) string { return emulator[name] }, "datastore://project/database?kind=Kind", "path")
	for rawURL, says := range map[string]string{
		"datastore://":                                         "project",
		"datastore:///database":                                "project",
		"datastore://project/" + secret + "/more":              "database",
		"datastore://project/a_b":                              "database",
		"datastore://pro.ject":                                 "project",
		"datastore://project?kind=__Lock__":                    "kind",
		"datastore://project?kind=" + strings.Repeat("k", 101): "kind",
	} {
		t.Run(rawURL, func(t *testing.T) {
			_, err := lockstore.Open(t.Context(), rawURL, func(string) string { return "" }, Opener)
			require.ErrorIs(t, err, lockstore.ErrInvalid)
			require.ErrorContains(t, err, says)
			require.NotContains(t, err.Error(), secret)
		})
	}
	_, err := open(t.Context(), lockstore.Config{})
	require.ErrorIs(t, err, lockstore.ErrInvalid)
}

// Without TLS there is only this machine.
func TestEmulatorHost(t *testing.T) {
	for host, ok := range map[string]bool{
		"127.0.0.1:8081": true, "localhost:8081": true, "[::1]:8081": true, "http://127.0.0.1:8081": true, "host.docker.internal:8081": true,
		"192.0.2.1:8081": false, "emulator:8081": false, "user@localhost:8081": false, "localhost:8081/" + secret: false, ":8081": false,
	} {
		_, err := open(t.Context(), config(t, "datastore://project", map[string]string{"DATASTORE_EMULATOR_HOST": host}))
		if ok {
			require.NoError(t, err, host)
			continue
		}
		require.ErrorIs(t, err, lockstore.ErrInvalid, host)
		require.NotContains(t, err.Error(), secret)
	}
}

// Workload identity federation, as in Lambda: a token of another service is exchanged for
// Google's.
func TestCredentials(t *testing.T) {
	var asked, status atomic.Int32
	status.Store(http.StatusOK)
	var hang atomic.Bool
	var last atomic.Value // the body of the last request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if hang.Load() {
			<-r.Context().Done()
			return
		}
		asked.Add(1)
		last.Store(body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Load()))
		if status.Load() != http.StatusOK {
			fmt.Fprintf(w, `{"error": "invalid_grant", "error_description": %q}`, body) // quotes the token
			return
		}
		fmt.Fprint(w, `{"access_token": "`+secret+`", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "token_type": "Bearer", "expires_in": 3600}`)
	}))
	defer server.Close()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	subject := file("subject", secret)
	good := file("external.json", fmt.Sprintf(`{"type": "external_account", "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/p",
		"subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": %q, "credential_source": {"file": %q}}`, server.URL, subject))
	client := httpclient.Client(httpclient.ReplyTimeout)
	defer client.CloseIdleConnections()

	token, err := credentials(good, client)
	require.NoError(t, err)
	for range 3 {
		got, err := token(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, secret, got)
	}
	require.EqualValues(t, 1, asked.Load())

	status.Store(http.StatusBadRequest)
	token, err = credentials(good, client)
	require.NoError(t, err)
	_, err = token(t.Context(), "")
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.NotContains(t, fmt.Sprintf("%+v", err), secret)
	status.Store(http.StatusOK)
	_, err = token(t.Context(), "")
	require.NoError(t, err, "a refusal is not kept")

	hang.Store(true)
	token, err = credentials(good, client)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = token(ctx, "")
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), 250*time.Millisecond)
	_, err = token(ctx, "")
	require.ErrorIs(t, err, lockstore.ErrUnavailable, "another call waits for its own context only")
	hang.Store(false)

	// In Lambda: a request to AWS, signed and not sent, proves who the function is.
	t.Setenv("AWS_REGION", "eu-west-1")
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_SESSION_TOKEN", "session")
	token, err = credentials(file("aws.json", fmt.Sprintf(`{"type": "external_account", "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/aws",
		"subject_token_type": "urn:ietf:params:aws:token-type:aws4_request", "token_url": %q, "credential_source": {"environment_id": "aws1",
		"regional_cred_verification_url": "https://sts.{region}.amazonaws.com?Action=GetCallerIdentity&Version=2011-06-15"}}`, server.URL)), client)
	require.NoError(t, err)
	got, err := token(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, secret, got)
	form, err := url.ParseQuery(string(last.Load().([]byte)))
	require.NoError(t, err)
	require.Contains(t, form.Get("subject_token"), "AWS4-HMAC-SHA256")
	require.Contains(t, form.Get("subject_token"), "sts.eu-west-1.amazonaws.com")

	for name, path := range map[string]string{
		"missing": filepath.Join(dir, "none"), "no JSON": file("text", secret), "an unknown type": file("unknown.json", `{"type": "`+secret+`"}`),
	} {
		_, err := open(t.Context(), config(t, "datastore://project", map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": path}))
		require.ErrorIs(t, err, lockstore.ErrInvalid, name)
		require.NotContains(t, err.Error(), secret)
	}
}
