package dynamostore_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// The bounds themselves are allowed.
func TestBoundsAreAllowed(t *testing.T) {
	client := dynamostore.ClientOver(refusingTransport{}, fakeEndpoint, 0)
	for _, name := range []string{"abc", strings.Repeat("t", 255)} {
		_, err := dynamostore.New(client, name, dynamostore.Options{Skew: dynamostore.MaxSkew})
		require.NoError(t, err)
	}
	_, err := dynamostore.Open(t.Context(), config(t, "dynamodb://locks?region=r&skew=1m", staticEnv()))
	require.NoError(t, err)
}

// Each timeout of the client is short enough for a call, and long enough for a slow reply.
func TestTimeoutsOfTheClient(t *testing.T) {
	client := dynamostore.HTTPClient()
	between := func(what string, least, d, most time.Duration) {
		t.Helper()
		require.GreaterOrEqual(t, d, least, what)
		require.LessOrEqual(t, d, most, what)
	}
	transport := client.Transport.(*http.Transport)
	between("a request", time.Second, client.Timeout, 2*time.Second)
	between("a handshake", time.Second/2, transport.TLSHandshakeTimeout, client.Timeout)
	between("a reply", time.Second/2, transport.ResponseHeaderTimeout, client.Timeout)
	between("an idle connection", 30*time.Second, transport.IdleConnTimeout, 2*time.Minute)
	between("a connection", time.Second/2, dynamostore.DialTimeout, client.Timeout)
}

// Fenced leaves an expression that ends in SET to DynamoDB, which refuses it.
func TestFencedUpdateThatEndsInSET(t *testing.T) {
	in := &dynamodb.UpdateItemInput{UpdateExpression: aws.String("REMOVE a SET")}
	require.NoError(t, dynamostore.Fenced(in, 7))
	require.True(t, strings.HasSuffix(*in.UpdateExpression, "REMOVE a SET"), *in.UpdateExpression)
}
