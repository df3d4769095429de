package testservers

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The script of make dynamodb makes a table for every access key, and the server ends with
// the script.
func TestRunDynamoDB(t *testing.T) {
	find(t, "curl", "install curl")
	find(t, "javac", installDynamo)
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
	resp, err := http.Get("http://" + addr)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NotEmpty(t, resp.Header.Get("x-amzn-RequestId"), "only DynamoDB sends it")
	require.NotEmpty(t, resp.Header.Get("Date"), "the store reads its clock there")
	for _, other := range otherAddresses(t) {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(other, strconv.Itoa(port)), time.Second)
		if err == nil {
			_ = conn.Close()
		}
		require.Error(t, err, "it listens on 127.0.0.1 only, and answers at %s", other)
	}
	text, err := exec.Command("sh", "run-dynamodb.sh", strconv.Itoa(port)).CombinedOutput()
	require.Error(t, err)
	require.Equal(t, fmt.Sprintf("make dynamodb: port %d is taken by another DynamoDB Local; end it, or choose another port, as in make dynamodb PORT=%d\n", port, port+1), string(text))
	end()
	_, err = net.Dial("tcp", addr)
	require.Error(t, err, "the server ends with the script")
}

// otherAddresses are addresses of this machine other than 127.0.0.1, at which a server answers
// if it listens on all interfaces.
func otherAddresses(t *testing.T) []string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	others := []string{"127.0.0.2"}
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			others = append(others, ip.IP.String())
		}
	}
	return others
}

// A port that is taken, or no port, is told before anything is installed or started.
func TestRunDynamoDBRefuses(t *testing.T) {
	find(t, "curl", "install curl")
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it never answers
	require.NoError(t, err)
	defer silent.Close()
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	for _, taken := range []net.Addr{silent.Addr(), web.Listener.Addr()} {
		port := taken.(*net.TCPAddr).Port
		text, err := exec.Command("sh", "run-dynamodb.sh", strconv.Itoa(port)).CombinedOutput()
		require.ErrorContains(t, err, "exit status 1")
		require.Equal(t, fmt.Sprintf("make dynamodb: port %d is taken by another program; end it, or choose another port, as in make dynamodb PORT=%d\n", port, port+1), string(text))
	}
	for _, port := range []string{"0", "65536", "-1", "http", "100000"} {
		text, err := exec.Command("sh", "run-dynamodb.sh", port).CombinedOutput()
		require.ErrorContains(t, err, "exit status 1")
		require.Equal(t, "make dynamodb: PORT is "+port+"; want 1 to 65535, as in make dynamodb PORT=8001\n", string(text))
	}
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
