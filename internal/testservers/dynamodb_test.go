package testservers

import (
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDynamoDB looks for a header that only DynamoDB sends.
func TestDynamoDB(t *testing.T) {
	resp, err := http.Get(DynamoDB(t))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NotEmpty(t, resp.Header.Get("x-amzn-RequestId"))
	require.NotEmpty(t, resp.Header.Get("Date"), "the store reads its clock there")
}

func TestDynamoDBVersionIsTheInstalledOne(t *testing.T) {
	script, err := os.ReadFile("install-dynamodb.sh")
	require.NoError(t, err)
	inScript := regexp.MustCompile(`(?m)^version=(\S+)`).FindSubmatch(script)
	require.NotNil(t, inScript)
	require.Equal(t, dynamoVersion, string(inScript[1]))
}
