// Package testservers starts real servers for tests: Redis, Valkey, DynamoDB Local,
// ZooKeeper, PostgreSQL, etcd and others. Each server has a free loopback port and a temporary directory, and stops
// when the test ends. No function links this package.
//
// If a server's program is not installed, the test is skipped. If the environment
// variable CI is set, the test fails instead, so that a pipeline does not pass without its
// tests. With -short no test starts a server.
package testservers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startTime bounds how long a server may take until it answers, also on a machine that is
// busy with many other tests.
const startTime = 3 * time.Minute

// errEnded is the error of a server that has ended instead of answering.
var errEnded = errors.New("it ended")

// HeedSignals lets processes that the test starts heed the signals that nohup, or a job in the background, makes
// the test itself ignore.
func HeedSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// Server is a server process that belongs to a test.
type Server struct {
	Addr string // host:port
	Dir  string // its working directory; a Restart keeps it

	t      testing.TB
	port   int
	spec   spec
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has been waited for
}

// spec says how to start a kind of server.
type spec struct {
	name string
	// command builds the process for an address; it runs in dir.
	command func(port int, dir string) *exec.Cmd
	// ready returns nil when the server answers.
	ready func(addr string) error
	// ports is how many ports in a row the server opens; 0 is one.
	ports int
	// prepare fills the directory before the first start, if it is not nil.
	prepare func(dir string) error
	// as is the user of the process; nil is the test's own.
	as *syscall.Credential
	// folder is where the further processes of the server work, if it has any.
	folder string
	// kill is the signal on which all of them end at once; 0 is SIGKILL.
	kill syscall.Signal
}

// missing skips or fails the test because a program is not installed. make test counts the lines of the file
// that TESTS_SKIPPED names.
func missing(t testing.TB, what, how string) {
	t.Helper()
	text := fmt.Sprintf("%s is not installed; %s", what, how)
	if os.Getenv("CI") != "" {
		t.Fatal(text)
	}
	if name := os.Getenv("TESTS_SKIPPED"); name != "" {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = fmt.Fprintln(f, what)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Skip(text)
}

func newServer(t testing.TB, s spec, port int) *Server {
	t.Helper()
	return &Server{Addr: loopback(port), Dir: t.TempDir(), t: t, port: port, spec: s}
}

// start starts a server and waits until it answers. If the server ends early, start tries
// another port, because another program may have taken the port meanwhile. A slow server is
// not started again, because that would take as long.
func start(t testing.TB, s spec) *Server {
	t.Helper()
	var err error
	for range 5 {
		server := newServer(t, s, freePorts(t, max(1, s.ports)))
		if s.prepare != nil {
			if err = s.prepare(server.Dir); err != nil {
				break
			}
		}
		if err = server.run(); err == nil {
			t.Cleanup(server.Kill)
			return server
		}
		server.Kill()
		if !errors.Is(err, errEnded) {
			break
		}
	}
	t.Fatalf("%s does not start: %v", s.name, err)
	return nil
}

// run starts the process and waits until it answers, ends or takes too long.
func (s *Server) run() error {
	logFile, err := os.OpenFile(filepath.Join(s.Dir, "server.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()

	cmd := s.spec.command(s.port, s.Dir)
	cmd.Dir = s.Dir
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = dieWithParent()
	cmd.SysProcAttr.Credential = s.spec.as
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // a killed server's exit status says nothing
		close(exited)
	}()
	s.cmd, s.exited = cmd, exited

	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	for {
		err := errors.New("it does not answer")
		answered := make(chan error, 1)
		go func() { answered <- s.spec.ready(s.Addr) }() // it may hang
		select {
		case err = <-answered:
		case <-exited:
		case <-ctx.Done():
		}
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("%w: %s", errEnded, s.logTail())
		case <-ctx.Done():
			return fmt.Errorf("it does not answer after %v: %w: %s", startTime, err, s.logTail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// within asks again and again until the error is nil, for startTime at most.
func within(ask func() error) (err error) {
	for late := time.Now().Add(startTime); time.Now().Before(late); <-time.After(10 * time.Millisecond) {
		if err = ask(); err == nil {
			return nil
		}
	}
	return err
}

// Kill ends the server at once (SIGKILL, PostgreSQL SIGQUIT) and waits for its end. Restart
// starts the server again.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	if s.spec.kill != 0 {
		s.signal(s.spec.kill)
		s.signal(syscall.SIGCONT) // a paused process handles the signal first
		select {
		case <-s.exited:
		case <-time.After(startTime):
		}
	}
	_ = s.cmd.Process.Kill() // an error means that the process has ended
	<-s.exited
	s.cmd = nil
}

// Restart starts the server again with the same port, directory and arguments.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.run(); err != nil {
		s.t.Fatalf("%s does not start again: %v", s.spec.name, err)
	}
}

// Pause stops the server (SIGSTOP). Its connections stay open, and it does not answer.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume continues a paused server.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

// signal sends a signal to the process and then to those that it has started.
func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Fatalf("%v to %s: %v", sig, s.spec.name, err)
	}
	if s.spec.folder == "" {
		return
	}
	for _, pid := range workingIn(filepath.Join(s.Dir, s.spec.folder)) {
		if pid != s.cmd.Process.Pid {
			_ = syscall.Kill(pid, sig) // an error means that it has ended
		}
	}
}

func (s *Server) logTail() string {
	text, err := os.ReadFile(filepath.Join(s.Dir, "server.log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}

// A test process takes its ports from a block of blockSize. It listens on the first one until it ends, so no other
// test process takes this block, and no server of another test answers on a port that this process gave to a server.
// The system takes the ports of outgoing connections from a higher range, so a restarted server finds its port free.
const (
	firstPort, lastPort = 10000, 19999
	blockSize           = 100
)

var block struct {
	sync.Mutex
	reserved net.Listener
	first    int
	used     int // ports given away since the last turn through the block
}

// freePorts returns the first of count free ports in a row.
func freePorts(t testing.TB, count int) int {
	t.Helper()
	block.Lock()
	defer block.Unlock()
	for port := firstPort; block.reserved == nil; port += blockSize {
		if port > lastPort {
			t.Fatalf("each block of %d loopback ports between %d and %d is in use", blockSize, firstPort, lastPort)
		}
		if l, err := net.Listen("tcp", loopback(port)); err == nil {
			block.reserved, block.first = l, port
		}
	}
	for range blockSize {
		if block.used+count >= blockSize {
			block.used = 0
		}
		port := block.first + 1 + block.used
		block.used += count
		if allFree(port, count) {
			return port
		}
	}
	t.Fatalf("no %d free loopback ports between %d and %d", count, block.first+1, block.first+blockSize-1)
	return 0
}

func allFree(port, count int) bool {
	for ; count > 0; port, count = port+1, count-1 {
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			return false
		}
		if l.Close() != nil {
			return false
		}
	}
	return true
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// find returns the path of an installed program, or ends the test.
func find(t testing.TB, program, how string) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short starts no %s", program)
	}
	path, err := exec.LookPath(program)
	if errors.Is(err, exec.ErrNotFound) {
		missing(t, program, how)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
