package testservers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Programs that Start and Cluster take.
const (
	RedisServer  = "redis-server"
	ValkeyServer = "valkey-server"
)

const installRedis = "run internal/testservers/install-packages.sh redis valkey"

// Redis starts a redis-server for the test and returns its address. args are
// further settings as redis-server takes them, such as "--maxmemory", "4mb".
func Redis(t testing.TB, args ...string) (addr string) {
	t.Helper()
	return Start(t, RedisServer, args...).Addr
}

// Valkey is Redis with a valkey-server.
func Valkey(t testing.TB, args ...string) (addr string) {
	t.Helper()
	return Start(t, ValkeyServer, args...).Addr
}

// Start starts RedisServer or ValkeyServer for a test that kills, restarts or
// pauses it. Without "--appendonly", "yes" a killed server forgets everything.
func Start(t testing.TB, program string, args ...string) *Server {
	t.Helper()
	return start(t, redisSpec(t, program, args...))
}

func redisSpec(t testing.TB, program string, args ...string) spec {
	t.Helper()
	path := find(t, program, installRedis)
	return spec{
		name:  program,
		ready: pong,
		command: func(port int, dir string) *exec.Cmd {
			return exec.Command(path, append([]string{
				"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
				"--save", "", "--appendfsync", "always", "--daemonize", "no",
			}, args...)...)
		},
	}
}

// Versions are the servers' names and versions, for a record of what was tested.
func Versions(t testing.TB) []string {
	t.Helper()
	all := []string{"DynamoDB Local " + dynamoVersion}
	for _, program := range []string{RedisServer, ValkeyServer} {
		out, err := exec.Command(find(t, program, installRedis), "--version").Output()
		if err != nil {
			t.Fatalf("%s --version: %v", program, err)
		}
		_, after, _ := strings.Cut(string(out), "v=")
		version, _, _ := strings.Cut(after, " ")
		all = append(all, program+" "+version)
	}
	return append(all, "ZooKeeper "+zooKeeperVersion(t), "PostgreSQL "+postgresVersion(t))
}

func pong(addr string) error {
	answer, err := ask(addr, "PING")
	if err != nil {
		return err
	}
	// A server that wants a password, or waits for its primary, is ready too.
	if answer != "+PONG" && !strings.HasPrefix(answer, "-NOAUTH") && !strings.HasPrefix(answer, "-MASTERDOWN") {
		return fmt.Errorf("answers %q", answer)
	}
	return nil
}

// Cluster starts three masters without replicas, of RedisServer or ValkeyServer, and waits
// until they agree about all slots. args are further settings of each node. No node is taken
// for dead because the machine is busy.
func Cluster(t testing.TB, program string, args ...string) (addrs []string) {
	t.Helper()
	for _, s := range StartCluster(t, program, append([]string{"--cluster-node-timeout", "60000"}, args...)...) {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// StartCluster is Cluster for a test that kills, restarts or pauses a node.
func StartCluster(t testing.TB, program string, args ...string) []*Server {
	t.Helper()
	node := redisSpec(t, program, append([]string{"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", "5000", "--cluster-announce-ip", "127.0.0.1"}, args...)...)
	node.ports = 2 // the second is the bus
	alone := node.command
	node.command = func(port int, dir string) *exec.Cmd {
		cmd := alone(port, dir)
		cmd.Args = append(cmd.Args, "--cluster-port", strconv.Itoa(port+1))
		return cmd
	}
	nodes := []*Server{start(t, node), start(t, node), start(t, node)}
	const slots = 16384
	for i, node := range nodes {
		mustOK(t, node.Addr, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*slots/3, (i+1)*slots/3-1))
		if i > 0 {
			mustOK(t, nodes[0].Addr, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %d %d", node.port, node.port+1))
		}
	}
	for _, node := range nodes {
		err := within(func() error {
			info, err := ask(node.Addr, "CLUSTER INFO")
			if err == nil && !(strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_size:3")) {
				err = errors.New(info)
			}
			return err
		})
		if err != nil {
			t.Fatalf("the cluster node %s is not ready after %v: %v", node.Addr, startTime, err)
		}
	}
	return nodes
}

func mustOK(t testing.TB, addr, command string) {
	t.Helper()
	if answer, err := ask(addr, command); err != nil || answer != "+OK" {
		t.Fatalf("%s: %s, %v", command, answer, err)
	}
}

// ask sends one command and returns its one-line or bulk answer.
func ask(addr, command string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "$") {
		return line, nil
	}
	size, err := strconv.Atoi(line[1:])
	if err != nil || size < 0 {
		return "", err
	}
	bulk := make([]byte, size)
	_, err = io.ReadFull(r, bulk)
	return string(bulk), err
}
