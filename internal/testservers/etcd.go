package testservers

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

const installEtcd = "run internal/testservers/install-packages.sh etcd"

// Etcd starts an empty etcd of one member for the test. A killed server keeps its keys.
func Etcd(t testing.TB) *Server {
	t.Helper()
	etcd := find(t, "etcd", installEtcd)
	return start(t, spec{
		name:  "etcd",
		ports: 2,
		command: func(port int, dir string) *exec.Cmd {
			clients, peers := fmt.Sprintf("http://127.0.0.1:%d", port), fmt.Sprintf("http://127.0.0.1:%d", port+1)
			return exec.Command(etcd, "--data-dir", "data", "--listen-client-urls", clients, "--advertise-client-urls", clients,
				"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
		},
		ready: func(addr string) error {
			reply, err := http.Get("http://" + addr + "/health")
			if err != nil {
				return err
			}
			defer reply.Body.Close()
			text, err := io.ReadAll(reply.Body)
			if !strings.Contains(string(text), `"health":"true"`) {
				return fmt.Errorf("etcd answers %.100q, %v", text, err)
			}
			return nil
		},
	})
}
