package elasticache

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/redis/go-redis/v9"
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
		"connections":            {"elasticache://locks@host?cache=my&connections=500", lambdaEnv, ""},
		"a bad number of them":   {"elasticache://locks@host?cache=my&connections=1", lambdaEnv, "connections that is not 2 to 1000"},
		"a bad flag":             {"elasticache://locks@host?cache=my&serverless=perhaps", lambdaEnv, "serverless is not true or false"},
		"no host":                {"elasticache://locks@?cache=my", lambdaEnv, "no host"},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := open(t.Context(), config(t, c.url, c.env))
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
	store, err := open(t.Context(), config(t, "elasticache://locks@127.0.0.1:1?cache=my", lambdaEnv))
	require.NoError(t, err)
	require.NoError(t, store.Close())
	_, err = store.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, redis.ErrClosed)
	_, err = open(t.Context(), lockstore.Config{Getenv: func(string) string { return "" }})
	require.ErrorIs(t, err, lockstore.ErrInvalid, "F51")
	_, err = open(t.Context(), lockstore.Config{URL: config(t, "elasticache://locks@host?cache=my", nil).URL})
	require.ErrorContains(t, err, "Config.Getenv is nil")
}

// newToken is the token of a URL.
func newToken(t *testing.T, params string) *token {
	cfg, tok, err := parse(config(t, "elasticache://locks@host?"+params, lambdaEnv), nil)
	require.NoError(t, err)
	require.Equal(t, !strings.Contains(params, "cluster=false"), cfg.URL.Query().Get("cluster") == "true")
	return tok
}

// text is the password of a new connection.
func text(t *testing.T, tok *token) string {
	user, text, err := tok.credentials(t.Context())
	require.NoError(t, err)
	require.Equal(t, "locks", user)
	return text
}

func TestToken(t *testing.T) {
	tok := newToken(t, "cache=My-Cache")
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	tok.now = func() time.Time { return now }
	signed := text(t, tok)
	require.True(t, strings.HasPrefix(signed, "my-cache/?"), "no scheme, the cache's name in lower case")
	u, err := url.Parse("http://" + signed)
	require.NoError(t, err)
	q := u.Query()
	signature := q.Get("X-Amz-Signature")
	assert.Len(t, signature, 64)
	q.Del("X-Amz-Signature")
	assert.Equal(t, "Action=connect&ResourceType=ServerlessCache&User=locks&X-Amz-Algorithm=AWS4-HMAC-SHA256"+
		"&X-Amz-Credential=AKIDEXAMPLE%2F20261121%2Feu-west-1%2Felasticache%2Faws4_request"+
		"&X-Amz-Date=20261121T040000Z&X-Amz-Expires=900&X-Amz-Security-Token=session&X-Amz-SignedHeaders=host", q.Encode())

	now = now.Add(-time.Hour)
	again := text(t, tok)
	assert.Contains(t, again, "X-Amz-Date=20261121T030000Z", "after the clock stepped back")
	assert.NotContains(t, again, signature)
}

// "The IAM authentication token is valid for 15 minutes" (Amazon ElastiCache, Authenticating with IAM): at each time
// the token of a new connection says so, and is valid for minutes more, because the connection is made after it.
func TestNoTokenIsTooOld(t *testing.T) {
	const valid = 15 * time.Minute
	tok := newToken(t, "cache=my")
	began := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	for now := began; now.Before(began.Add(time.Hour)); now = now.Add(10 * time.Second) {
		tok.now = func() time.Time { return now }
		u, err := url.Parse("http://" + text(t, tok))
		require.NoError(t, err)
		signed, err := time.Parse("20060102T150405Z", u.Query().Get("X-Amz-Date"))
		require.NoError(t, err)
		require.Less(t, now.Sub(signed), valid-2*time.Minute, now)
		require.GreaterOrEqual(t, now.Sub(signed), time.Duration(0), now)
	}
}

func TestNewCredentialsSignANewToken(t *testing.T) {
	assert.NotContains(t, text(t, newToken(t, "cache=my&serverless=false&cluster=false")), "ResourceType", "of a replication group")
	tok := newToken(t, "cache=my")
	first := text(t, tok)
	tok.source = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: "AKIDOTHER", SecretAccessKey: "s"}, nil
	})
	assert.NotEqual(t, first, text(t, tok))
	gone := errors.New("no credentials now")
	tok.source = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, gone })
	_, _, err := tok.credentials(t.Context())
	require.ErrorIs(t, err, gone, "F71")
}
