package testservers

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only DynamoDB sends the header x-amzn-RequestId.
func TestDynamoDB(t *testing.T) {
	resp, err := http.Get(DynamoDB(t))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NotEmpty(t, resp.Header.Get("x-amzn-RequestId"))
	require.NotEmpty(t, resp.Header.Get("Date"), "the store reads its clock there")
}

// The script of make dynamodb makes a table for every access key, and the server ends with
// the script.
func TestRunDynamoDB(t *testing.T) {
	find(t, "curl", "install curl")
	find(t, "java", installDynamo)
	dynamoLib(t)
	port := freePort(t, nil)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	script := exec.Command("sh", "run-dynamodb.sh", strconv.Itoa(port), "mine")
	script.SysProcAttr = dieWithParent()
	out, err := script.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, script.Start())
	end := sync.OnceFunc(func() {
		require.NoError(t, script.Process.Signal(syscall.SIGTERM))
		require.ErrorContains(t, script.Wait(), "exit status 130")
	})
	t.Cleanup(end)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "LOCK_URL='dynamodb://mine?endpoint=http://"+addr+"'\n", line)
	askDynamo(t, addr, "any", "GetItem", `{"TableName": "mine", "Key": {"key": {"S": "k"}}}`)
	end()
	_, err = net.Dial("tcp", addr)
	require.Error(t, err, "the server ends with the script")
}

func TestTheScriptsInstallTheseVersions(t *testing.T) {
	for script, version := range map[string]string{"install-dynamodb.sh": dynamoVersion, "install-stepfunctions.sh": stepFunctionsVersion, "install-cosmos.sh": cosmosVersion} {
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		inScript := regexp.MustCompile(`(?m)^version=(\S+)`).FindSubmatch(text)
		require.NotNil(t, inScript, script)
		require.Equal(t, version, string(inScript[1]), script)
	}
}
