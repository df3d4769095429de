package storeurl

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// What is refused is checked by storetest.URLs, for each store.
func TestParams(t *testing.T) {
	params := func(raw string, others bool) (map[string]string, error) {
		u, err := lockstore.ParseURL(raw)
		require.NoError(t, err)
		return Params(u, Parts{Want: "redis://HOST", User: true, Host: true, Params: []string{"name", "pool"}, OtherParams: others})
	}
	got, err := params("redis://u:%3F%2F%40%25%23@host/?pool=3&name=a%20b%26%2B%23%40", false)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"pool": "3", "name": "a b&+#@"}, got)
	got, err = params("redis://host?x=hunter2&pool=3&y=", true)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"pool": "3"}, got)
	_, err = params("redis://host?x=hunter2&x=3", true)
	require.ErrorContains(t, err, "parameter number 2 twice")
	_, err = params("redis://host?pol=hunter2", false)
	require.EqualError(t, err, "lockstore: the redis URL has the unknown parameter number 1 (write & in a value as %26); known: name, pool; want redis://HOST")
	_, err = Params(nil, Parts{Want: "a://"})
	require.ErrorIs(t, err, lockstore.ErrInvalid, "F51")
	require.ErrorContains(t, err, "URL is nil")
}

func TestIsThisMachine(t *testing.T) {
	for _, host := range []string{"localhost", "LocalHost", "redis.localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "host.docker.internal"} {
		assert.True(t, IsThisMachine(host), host)
	}
	for _, host := range []string{
		"", "cache", "cache.example.com", "10.0.0.5", "172.17.0.1", "0.0.0.0", "::", "2001:db8::1", "fe80::1", "128.0.0.1",
		"localhost.example.com", "notlocalhost", "127.0.0.1.example.com", "2130706433", "127.1", "localhost.", "docker.internal",
	} {
		assert.False(t, IsThisMachine(host), host)
	}
}

func TestEndpoint(t *testing.T) {
	for _, raw := range []string{"http://127.0.0.1:8000", "https://host", "http://[::1]:1/"} {
		u, err := Endpoint(raw)
		require.NoError(t, err, raw)
		assert.Equal(t, raw, u.String())
	}
	for raw, says := range map[string]string{
		"hunter2://host": "another scheme", "http://": "no host", "http://user:hunter2@host": "a user or a password", "http://host/hunter2": "a path", "http://host?hunter2=1": "unknown parameter",
		"http://host:65536": "1 to 65535", "http://host#hunter2": "%23", "127.0.0.1": "SCHEME://",
	} {
		_, err := Endpoint(raw)
		require.ErrorIs(t, err, lockstore.ErrInvalid, raw)
		assert.ErrorContains(t, err, says)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestIsLocalDynamoDB(t *testing.T) {
	for endpoint, local := range map[string]bool{
		"http://127.0.0.1:8000": true, "http://localhost:8000": true, "http://[::1]:8000": true,
		"": false, "https://dynamodb.eu-central-1.amazonaws.com": false, "http://localhost.example.com": false, "http://192.168.1.2:8000": false, ":": false,
	} {
		u := &url.URL{Scheme: "dynamodb", Host: "locks", RawQuery: url.Values{"endpoint": {endpoint}}.Encode()}
		assert.Equal(t, local, IsLocalDynamoDB(u), endpoint)
		u.Scheme = "redis"
		assert.False(t, IsLocalDynamoDB(u), endpoint)
	}
}
