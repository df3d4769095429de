package testservers

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// dynamoVersion is the version that install-dynamodb.sh installs.
const dynamoVersion = "2.6.1"

const installDynamo = "run internal/testservers/install-dynamodb.sh"

// DynamoDB starts an empty DynamoDB Local for the test and returns its endpoint. A start
// takes about two seconds, so let subtests share one server.
//
// DynamoDB Local accepts all credentials of letters and digits. Each access key has its
// own tables in each region. The server listens on all interfaces, as long as the
// test runs: it has no option for the loopback interface alone.
func DynamoDB(t testing.TB) (endpoint string) {
	t.Helper()
	return "http://" + StartDynamoDB(t).Addr
}

// StartDynamoDB is DynamoDB for a test that kills, restarts or pauses the server. A killed
// server loses its tables.
func StartDynamoDB(t testing.TB) *Server {
	t.Helper()
	java := find(t, "java", installDynamo)
	lib := dynamoLib(t)
	server := start(t, spec{
		name:  "DynamoDB Local",
		ready: answersHTTP,
		command: func(port int, _ string) *exec.Cmd {
			// A small heap and only the first compiler make the start faster.
			return exec.Command(java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
				"-Djava.library.path="+lib, "-cp", filepath.Join(lib, "*"),
				"com.amazonaws.services.dynamodbv2.local.main.ServerRunner",
				"-inMemory", "-disableTelemetry", "-port", strconv.Itoa(port))
		},
	})
	warm(t, server.Addr)
	return server
}

// warm sends requests like those of the tests. On a busy machine the first writes of a
// server take so long that a lease of one second ends before its reply. The table has
// another access key, so no test sees it.
func warm(t testing.TB, addr string) {
	t.Helper()
	const key = `"Key": {"key": {"S": "k"}}, "TableName": "warm"`
	createTable(t, addr, "warm", "warm", "key")
	for range 30 {
		askDynamo(t, addr, "warm", "UpdateItem", `{`+key+`, "UpdateExpression": "SET #n = :n", "ConditionExpression": "attribute_not_exists(#n) OR #n <= :n",
			"ExpressionAttributeNames": {"#n": "n"}, "ExpressionAttributeValues": {":n": {"N": "1"}}, "ReturnValues": "ALL_OLD"}`)
		askDynamo(t, addr, "warm", "GetItem", `{`+key+`, "ConsistentRead": true}`)
	}
}

// Table makes a table in DynamoDB Local and returns its URL. The partition key is a
// string. The table is of the access key "local" and of us-east-1.
func Table(t testing.TB, endpoint, name, partitionKey string) (url string) {
	t.Helper()
	createTable(t, strings.TrimPrefix(endpoint, "http://"), "local", name, partitionKey)
	return "dynamodb://" + name + "?region=us-east-1&endpoint=" + endpoint
}

func createTable(t testing.TB, addr, accessKey, name, partitionKey string) {
	t.Helper()
	askDynamo(t, addr, accessKey, "CreateTable", fmt.Sprintf(`{"TableName": %q, "BillingMode": "PAY_PER_REQUEST",
		"AttributeDefinitions": [{"AttributeName": %[2]q, "AttributeType": "S"}], "KeySchema": [{"AttributeName": %[2]q, "KeyType": "HASH"}]}`, name, partitionKey))
}

func askDynamo(t testing.TB, addr, accessKey, action, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-amz-json-1.0")
	r.Header.Set("X-Amz-Target", "DynamoDB_20120810."+action)
	// DynamoDB Local accepts every signature.
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+accessKey+"/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("DynamoDB Local, %s: %v", action, err)
	}
	answer, err := io.ReadAll(resp.Body)
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("DynamoDB Local, %s: %s: %s %v", action, resp.Status, answer, err)
	}
}

// dynamoLib returns the folder with DynamoDB Local's libraries, or ends the test.
func dynamoLib(t testing.TB) string {
	t.Helper()
	lib := filepath.Join(cache(t), "dynamodb-local-"+dynamoVersion, "lib")
	if _, err := os.Stat(lib); err != nil {
		missing(t, "DynamoDB Local "+dynamoVersion, installDynamo)
	}
	return lib
}

// cache is the folder in which the scripts install what the machine's packages do not have.
func cache(t testing.TB) string {
	t.Helper()
	// On macOS os.UserCacheDir is not the folder of the scripts.
	folder := os.Getenv("XDG_CACHE_HOME")
	if folder == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		folder = filepath.Join(home, ".cache")
	}
	return filepath.Join(folder, "lambdalock")
}

// answersHTTP returns nil when the server answers a request, with any answer below 500.
func answersHTTP(addr string) error {
	client := http.Client{Timeout: time.Second}
	resp, err := client.Get("http://" + addr + "/")
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("answers %s", resp.Status)
	}
	return nil
}
