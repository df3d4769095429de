package elasticache

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

var lambdaEnv = map[string]string{
	"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG", "AWS_SESSION_TOKEN": "session",
}

func config(t *testing.T, raw string, env map[string]string) lockstore.Config {
	u, err := lockstore.ParseURL(raw)
	require.NoError(t, err)
	return lockstore.Config{URL: u, Getenv: func(name string) string { return env[name] }}
}

func TestOpen(t *testing.T) {
	storetest.URLs(t, Opener, func(name string) string { return lambdaEnv[name] }, "elasticache://locks@host?cache=my", "user", "port")
	for name, c := range map[string]struct {
		url  string
		env  map[string]string
		want string // part of the error; "" if Open succeeds
	}{
		"serverless":             {"elasticache://locks@my.serverless.euw1.cache.amazonaws.com:6379?cache=my", lambdaEnv, ""},
		"a space in the prefix":  {"elasticache://locks@host?cache=my&prefix=a%20b%2B", lambdaEnv, ""},
		"replication group":      {"elasticache://locks@host?cache=my&serverless=false&cluster=false&prefix=p:", lambdaEnv, ""},
		"no user":                {"elasticache://host?cache=my", lambdaEnv, "no user"},
		"a password":             {"elasticache://locks:hunter2@host?cache=my", lambdaEnv, "has a password"},
		"no cache":               {"elasticache://locks@host", lambdaEnv, "cache is missing"},
		"no region":              {"elasticache://locks@host?cache=my", map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, "AWS_REGION"},
		"no credentials":         {"elasticache://locks@host?cache=my", map[string]string{"AWS_REGION": "x"}, "no credentials"},
		"serverless, no cluster": {"elasticache://locks@host?cache=my&cluster=false", lambdaEnv, "cluster mode"},
		"an endpoint for a name": {"elasticache://locks@host?cache=my.serverless.euw1.cache.amazonaws.com", lambdaEnv, "cache is not a name"},
		"a path for a name":      {"elasticache://locks@host?cache=my/x", lambdaEnv, "cache is not a name"},
		"a bad flag":             {"elasticache://locks@host?cache=my&serverless=perhaps", lambdaEnv, "serverless is not true or false"},
		"no host":                {"elasticache://locks@?cache=my", lambdaEnv, "no host"},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := Open(t.Context(), config(t, c.url, c.env))
			if c.want == "" {
				require.NoError(t, err)
				require.NotNil(t, store)
				return
			}
			require.ErrorContains(t, err, c.want)
			require.ErrorIs(t, err, lockstore.ErrInvalid)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestPrefix(t *testing.T) {
	for raw, want := range map[string]string{
		"elasticache://locks@host?cache=my":           "cluster=true",
		"elasticache://locks@host?cache=my&prefix=p:": "cluster=true&prefix=p%3A",
	} {
		cfg, _, err := parse(config(t, raw, lambdaEnv), nil)
		require.NoError(t, err)
		require.Equal(t, want, cfg.URL.RawQuery)
	}
}

func TestOpenWithoutURLOrEnvironment(t *testing.T) {
	cfg := config(t, "elasticache://locks@host?cache=my", lambdaEnv)
	for says, cfg := range map[string]lockstore.Config{
		"URL is nil":           {Getenv: cfg.Getenv},
		"Config.Getenv is nil": {URL: cfg.URL},
	} {
		_, err := Open(t.Context(), cfg)
		require.ErrorIs(t, err, lockstore.ErrInvalid, "F51")
		require.ErrorContains(t, err, says)
	}
}

func TestToken(t *testing.T) {
	_, tok, err := parse(config(t, "elasticache://locks@host?cache=My-Cache", lambdaEnv), nil)
	require.NoError(t, err)
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	tok.now = func() time.Time { return now }
	user, text, err := tok.credentials(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "locks", user)
	require.True(t, strings.HasPrefix(text, "my-cache/?"), "no scheme, the cache's name in lower case")
	u, err := url.Parse("http://" + text)
	require.NoError(t, err)
	q := u.Query()
	assert.Equal(t, "connect", q.Get("Action"))
	assert.Equal(t, "locks", q.Get("User"))
	assert.Equal(t, "ServerlessCache", q.Get("ResourceType"))
	assert.Equal(t, "900", q.Get("X-Amz-Expires"))
	assert.Equal(t, "AWS4-HMAC-SHA256", q.Get("X-Amz-Algorithm"))
	assert.Equal(t, "20261121T040000Z", q.Get("X-Amz-Date"))
	assert.Equal(t, "AKIDEXAMPLE/20261121/eu-west-1/elasticache/aws4_request", q.Get("X-Amz-Credential"))
	assert.Equal(t, "session", q.Get("X-Amz-Security-Token"))
	assert.Equal(t, "host", q.Get("X-Amz-SignedHeaders"))
	assert.Len(t, q.Get("X-Amz-Signature"), 64)

	first := now
	now = first.Add(10*time.Minute - time.Second)
	_, again, err := tok.credentials(t.Context())
	require.NoError(t, err)
	assert.Equal(t, text, again, "a token is used again")
	now = first.Add(10 * time.Minute)
	_, fresh, err := tok.credentials(t.Context())
	require.NoError(t, err)
	assert.NotEqual(t, text, fresh, "a new token before the old one is invalid")
	now = now.Add(-time.Hour)
	_, back, err := tok.credentials(t.Context())
	require.NoError(t, err)
	assert.NotEqual(t, fresh, back, "a new token after the clock stepped back")
}

// "The IAM authentication token is valid for 15 minutes" (Amazon ElastiCache, Authenticating with IAM): at each time
// the token of a new connection says so, and is valid for minutes more, because the connection is made after it.
func TestNoTokenIsTooOld(t *testing.T) {
	const valid = 15 * time.Minute
	_, tok, err := parse(config(t, "elasticache://locks@host?cache=my", lambdaEnv), nil)
	require.NoError(t, err)
	began := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	for now := began; now.Before(began.Add(time.Hour)); now = now.Add(10 * time.Second) {
		tok.now = func() time.Time { return now }
		_, text, err := tok.credentials(t.Context())
		require.NoError(t, err)
		u, err := url.Parse("http://" + text)
		require.NoError(t, err)
		signed, err := time.Parse("20060102T150405Z", u.Query().Get("X-Amz-Date"))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(int(valid.Seconds())), u.Query().Get("X-Amz-Expires"))
		require.Less(t, now.Sub(signed), valid-2*time.Minute, now)
		require.GreaterOrEqual(t, now.Sub(signed), time.Duration(0), now)
	}
}

// The monotonic clock may stand still while the process is frozen. The server uses the wall
// clock, so a token's age is wall time.
func TestAgeOfATokenIsWallTime(t *testing.T) {
	_, tok, err := parse(config(t, "elasticache://locks@host?cache=my", lambdaEnv), nil)
	require.NoError(t, err)
	_, _, err = tok.credentials(t.Context())
	require.NoError(t, err)
	require.NotContains(t, tok.signed.String(), "m=", "F08 a reading of the monotonic clock")
}

func TestTokenOfAReplicationGroup(t *testing.T) {
	_, tok, err := parse(config(t, "elasticache://locks@host?cache=my&serverless=false", lambdaEnv), nil)
	require.NoError(t, err)
	_, text, err := tok.credentials(t.Context())
	require.NoError(t, err)
	assert.NotContains(t, text, "ResourceType")
}

func TestNewCredentialsSignANewToken(t *testing.T) {
	_, tok, err := parse(config(t, "elasticache://locks@host?cache=my", lambdaEnv), nil)
	require.NoError(t, err)
	_, first, err := tok.credentials(t.Context())
	require.NoError(t, err)
	tok.source = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "AKIDOTHER", SecretAccessKey: "s"}, nil
	})
	_, second, err := tok.credentials(t.Context())
	require.NoError(t, err)
	assert.NotEqual(t, first, second)
	gone := errors.New("no credentials now")
	tok.source = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, gone })
	_, _, err = tok.credentials(t.Context())
	require.ErrorIs(t, err, gone, "F71")
}
