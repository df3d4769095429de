package testservers

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// cosmosVersion is the version that install-cosmos.sh installs.
const cosmosVersion = "1.0.1"

const installCosmos = "run internal/testservers/install-cosmos.sh"

// Cosmos starts a server with the API of Azure Cosmos DB, without TLS, and returns its
// address. It has the containers db/locks, and db/other, which is not for locks. The server
// does not check keys.
//
// The address is a proxy's, which mends one answer: to a read of an item that is not there
// the server answers 500, the service 404.
func Cosmos(t testing.TB) (addr string) {
	t.Helper()
	node := find(t, "node", installCosmos)
	program := filepath.Join(cache(t), "cosmosdb-server-"+cosmosVersion, "node_modules", ".bin", "cosmosdb-server")
	if _, err := os.Stat(program); err != nil {
		missing(t, "cosmosdb-server "+cosmosVersion, installCosmos)
	}
	server := start(t, spec{
		name:  "cosmosdb-server",
		ready: answersHTTP,
		command: func(port int, _ string) *exec.Cmd {
			return exec.Command(node, program, "--no-ssl", "--host", "127.0.0.1", "-p", strconv.Itoa(port))
		},
	})
	forward := Forward(t, "http://"+server.Addr)
	forward.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method == http.MethodGet && strings.Contains(r.Request.URL.Path, "/docs/") && r.StatusCode == http.StatusInternalServerError {
			r.StatusCode, r.Status = http.StatusNotFound, "404 Not Found"
		}
		return nil
	}
	proxy := httptest.NewServer(forward)
	t.Cleanup(proxy.Close)
	for _, made := range []struct{ path, body string }{
		{"/dbs", `{"id": "db"}`},
		{"/dbs/db/colls", `{"id": "locks", "partitionKey": {"paths": ["/id"], "kind": "Hash"}}`},
		{"/dbs/db/colls", `{"id": "other", "partitionKey": {"paths": ["/tenant"], "kind": "Hash"}, "defaultTtl": 60}`},
	} {
		resp, err := proxy.Client().Post(proxy.URL+made.path, "application/json", strings.NewReader(made.body))
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusCreated {
			t.Fatalf("cosmosdb-server, %s: %s %v", made.path, resp.Status, err)
		}
	}
	return strings.TrimPrefix(proxy.URL, "http://")
}
