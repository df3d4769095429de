package testservers_test

import (
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// TestDynamoDB looks for a header that only DynamoDB sends.
func TestDynamoDB(t *testing.T) {
	resp, err := http.Get(testservers.DynamoDB(t))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NotEmpty(t, resp.Header.Get("x-amzn-RequestId"))
	require.NotEmpty(t, resp.Header.Get("Date"), "the store reads its clock there")
}

func TestDynamoDBVersionIsTheInstalledOne(t *testing.T) {
	script, err := os.ReadFile("install-dynamodb.sh")
	require.NoError(t, err)
	code, err := os.ReadFile("dynamodb.go")
	require.NoError(t, err)
	inScript := regexp.MustCompile(`(?m)^version=(\S+)`).FindSubmatch(script)
	inCode := regexp.MustCompile(`dynamoVersion = "(.+)"`).FindSubmatch(code)
	require.NotNil(t, inScript)
	require.NotNil(t, inCode)
	require.Equal(t, string(inCode[1]), string(inScript[1]))
}
