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

func TestTheScriptsInstallTheseVersions(t *testing.T) {
	for script, version := range map[string]string{"install-dynamodb.sh": dynamoVersion, "install-stepfunctions.sh": stepFunctionsVersion} {
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		inScript := regexp.MustCompile(`(?m)^version=(\S+)`).FindSubmatch(text)
		require.NotNil(t, inScript, script)
		require.Equal(t, version, string(inScript[1]), script)
	}
}
