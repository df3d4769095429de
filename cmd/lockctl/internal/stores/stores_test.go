package stores

import (
	"errors"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTablesAreMadeOnlyHere(t *testing.T) {
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

func TestShort(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain",
		`account "a": operation error DynamoDB: UpdateItem, https response error StatusCode: 400, RequestID: 55feab0a-8d86, ResourceNotFoundException: no table`:                                                            `account "a": ResourceNotFoundException: no table`,
		`operation error DynamoDB: UpdateItem, exceeded maximum number of attempts, 3, https response error StatusCode: 0, RequestID: , request send failed, Post "http://h:1/": dial tcp h:1: connect: connection refused`: "dial tcp h:1: connect: connection refused",
		"operation error DynamoDB: GetItem, get identity: no credentials": "get identity: no credentials",
	} {
		long := errors.New(text)
		assert.EqualError(t, short(long), want)
		require.ErrorIs(t, short(long), long)
	}
}
