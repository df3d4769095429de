package testservers

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	installZooKeeper = "run internal/testservers/install-packages.sh zookeeper"
	javaFolder       = "/usr/share/java/" // Debian's
)

// zooKeeperJars are ZooKeeper, what shows its log, and what TLS needs.
var zooKeeperJars = []string{"zookeeper", "slf4j-simple", "netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver", "netty-transport"}

// ZooKeeper starts an empty ZooKeeper server for the test, with these lines more in its
// configuration. A killed server keeps its nodes.
func ZooKeeper(t testing.TB, lines ...string) *Server {
	t.Helper()
	java := zooKeeperJava(t)
	return start(t, spec{
		name:    "ZooKeeper",
		ready:   serves,
		command: func(port int, dir string) *exec.Cmd { return zooKeeper(t, java, port, dir, strings.Join(lines, "\n")) },
	})
}

// ZooKeeperTLS starts a server that speaks TLS at addr, with a certificate for 127.0.0.1.
func ZooKeeperTLS(t testing.TB) (addr string, roots *x509.CertPool) {
	t.Helper()
	java := zooKeeperJava(t)
	both, roots := certificate(t)
	start(t, spec{
		name:    "ZooKeeper with TLS",
		ready:   serves,
		ports:   2,
		prepare: func(dir string) error { return os.WriteFile(filepath.Join(dir, "both.pem"), both, 0o600) },
		command: func(port int, dir string) *exec.Cmd {
			addr = loopback(port + 1)
			store := filepath.Join(dir, "both.pem")
			return zooKeeper(t, java, port, dir, fmt.Sprintf("secureClientPort=%d\nsecureClientPortAddress=127.0.0.1\n"+
				"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nssl.clientAuth=none\n"+
				"ssl.keyStore.location=%s\nssl.keyStore.type=PEM\nssl.trustStore.location=%s\nssl.trustStore.type=PEM\n", port+1, store, store))
		},
	})
	return addr, roots
}

// certificate is that of package httptest, for 127.0.0.1, with its key.
func certificate(t testing.TB) (both []byte, roots *x509.CertPool) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AddCert(server.Certificate())
	both = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	return append(both, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})...), roots
}

// Ensemble is three ZooKeeper servers, of which one leads.
type Ensemble struct {
	Servers []*Server
	t       testing.TB
}

// ZooKeeperEnsemble starts an ensemble and waits until each server serves. When the
// leader is killed or paused, the two others elect another leader in about two seconds.
func ZooKeeperEnsemble(t testing.TB) *Ensemble {
	t.Helper()
	java := zooKeeperJava(t)
	e := &Ensemble{t: t}
	var err error
	for range 5 { // another program may take a port meanwhile
		if err = e.start(java); err == nil {
			return e
		}
		e.kill()
	}
	t.Fatalf("the ensemble does not start: %v", err)
	return nil
}

func (e *Ensemble) start(java string) error {
	e.Servers = nil
	members := "initLimit=10\nsyncLimit=4\n"
	for port := freePorts(e.t, 9); len(e.Servers) < 3; port += 3 { // for clients, for the leader's followers, for elections
		server := newServer(e.t, spec{
			name:    "a server of the ensemble",
			ready:   func(addr string) error { return answers(addr, "ruok", "imok") },
			command: func(port int, dir string) *exec.Cmd { return zooKeeper(e.t, java, port, dir, members) },
		}, port)
		e.Servers = append(e.Servers, server)
		members += fmt.Sprintf("server.%d=127.0.0.1:%d:%d\n", len(e.Servers), port+1, port+2)
		if err := os.WriteFile(filepath.Join(server.Dir, "myid"), []byte(strconv.Itoa(len(e.Servers))), 0o600); err != nil {
			return err
		}
	}
	for _, server := range e.Servers {
		if err := server.run(); err != nil {
			return err
		}
		e.t.Cleanup(server.Kill)
	}
	return e.await(e.Servers)
}

func (e *Ensemble) kill() {
	for _, server := range e.Servers {
		server.Kill()
	}
}

// await waits until these servers serve.
func (e *Ensemble) await(servers []*Server) error {
	return within(func() error {
		for _, server := range servers {
			if err := serves(server.Addr); err != nil {
				return err
			}
		}
		return nil
	})
}

// AwaitQuorum waits until all servers serve, but one that is killed or paused; nil is none.
func (e *Ensemble) AwaitQuorum(but *Server) {
	e.t.Helper()
	rest := slices.DeleteFunc(slices.Clone(e.Servers), func(s *Server) bool { return s == but })
	if err := e.await(rest); err != nil {
		e.t.Fatalf("the ensemble does not recover: %v", err)
	}
}

// Addrs are the addresses of the servers, separated by commas.
func (e *Ensemble) Addrs() string {
	var addrs []string
	for _, server := range e.Servers {
		addrs = append(addrs, server.Addr)
	}
	return strings.Join(addrs, ",")
}

// Leader returns the server that leads.
func (e *Ensemble) Leader() (leader *Server) {
	e.t.Helper()
	err := within(func() error {
		i := slices.IndexFunc(e.Servers, func(s *Server) bool { return answers(s.Addr, "srvr", "Mode: leader") == nil })
		if i < 0 {
			return errors.New("the ensemble has no leader")
		}
		leader = e.Servers[i]
		return nil
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return leader
}

// zooKeeper is the command of a server. A tick of half a second allows sessions of one
// second, and a client on a busy machine may ask for a minute.
func zooKeeper(t testing.TB, java string, port int, dir, more string) *exec.Cmd {
	t.Helper()
	config := filepath.Join(dir, "zoo.cfg")
	text := fmt.Sprintf("tickTime=500\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"+
		"4lw.commands.whitelist=srvr,ruok\nmaxClientCnxns=0\nforceSync=no\nmaxSessionTimeout=60000\n%s", dir, port, more)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", strings.Join(jars(), ":"),
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
}

// zooKeeperJava returns Java, or ends the test.
func zooKeeperJava(t testing.TB) string {
	t.Helper()
	java := find(t, "java", installZooKeeper)
	for _, jar := range jars() {
		if _, err := os.Stat(jar); err != nil {
			missing(t, jar, installZooKeeper)
		}
	}
	return java
}

// zooKeeperVersion asks the program, without starting a server.
func zooKeeperVersion(t testing.TB) string {
	t.Helper()
	out, err := exec.Command(zooKeeperJava(t), "-cp", strings.Join(jars(), ":"), "org.apache.zookeeper.version.VersionInfoMain").Output()
	_, after, _ := strings.Cut(string(out), "version ")
	version, _, found := strings.Cut(after, " ")
	if err != nil || !found {
		t.Fatalf("ZooKeeper's version: %q, %v", out, err)
	}
	return version
}

func jars() (paths []string) {
	for _, jar := range zooKeeperJars {
		paths = append(paths, javaFolder+jar+".jar")
	}
	return paths
}

// serves returns nil when the server answers requests of clients.
func serves(addr string) error { return answers(addr, "srvr", "Mode: ") }

// answers sends one of the server's four-letter commands, and wants a text in its answer.
func answers(addr, command, want string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, command); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if !strings.Contains(string(answer), want) {
		return fmt.Errorf("%s answers %.100q, %v", command, answer, err)
	}
	return nil
}
