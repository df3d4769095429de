package cosmosstore

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

const secret = "s3cret-s3cret"

func getenv(key string) func(string) string {
	return func(name string) string { return map[string]string{"AZURE_COSMOS_KEY": key}[name] }
}

func TestOpen(t *testing.T) {
	for rawURL, endpoint := range map[string]string{
		"cosmos://account/db/locks": "https://account.documents.azure.com:443/",
		"cosmos://account-2/db%20a/locks?endpoint=https://a.documents.azure.cn": "https://a.documents.azure.cn/",
		"cosmos://account/db/locks?endpoint=http://127.0.0.1:8081/":             "http://127.0.0.1:8081/",
	} {
		u, err := url.Parse(rawURL)
		require.NoError(t, err)
		set, err := parse(lockstore.Config{URL: u, Getenv: getenv("a2V5")})
		require.NoError(t, err, rawURL)
		require.Equal(t, endpoint, set.endpoint)
		_, err = lockstore.Open(t.Context(), rawURL, getenv("a2V5"), Opener)
		require.NoError(t, err, rawURL)
	}
	_, err := lockstore.Open(t.Context(), "cosmos://account/db/locks?endpoint=http://localhost:8081", getenv(""), Opener)
	require.NoError(t, err, "the emulator's key")
	_, err = open(t.Context(), lockstore.Config{})
	require.ErrorIs(t, err, lockstore.ErrInvalid)
}

func TestOpenRefusesBadURLs(t *testing.T) {
	storetest.URLs(t, Opener, getenv("a2V5"), "cosmos://account/db/locks?endpoint=https://host", "path")
	for rawURL, says := range map[string]string{
		"cosmos:///db/locks":                                              "account",
		"cosmos://Account/db/locks":                                       "account",
		"cosmos://a.b.c/db/locks":                                         "account",
		"cosmos://account":                                                "path",
		"cosmos://account/db":                                             "path",
		"cosmos://account/db/locks/" + secret:                             "path",
		"cosmos://account/db/lo%23cks":                                    "path",
		"cosmos://account/db/locks?endpoint=" + secret:                    "endpoint",
		"cosmos://account/db/locks?endpoint=https://u:" + secret + "%40h": "endpoint",
		"cosmos://account/db/locks?endpoint=https://h/" + secret:          "endpoint",
		"cosmos://account/db/locks?endpoint=http://192.0.2.1:8081":        "without TLS",
	} {
		_, err := lockstore.Open(t.Context(), rawURL, getenv("a2V5"), Opener)
		require.ErrorIs(t, err, lockstore.ErrInvalid, rawURL)
		require.ErrorContains(t, err, says, rawURL)
		require.NotContains(t, err.Error(), secret)
	}
	for key, says := range map[string]string{"": "missing", secret + "!": "not base64"} {
		_, err := lockstore.Open(t.Context(), "cosmos://account/db/locks", getenv(key), Opener)
		require.ErrorIs(t, err, lockstore.ErrInvalid)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), secret)
	}
}
