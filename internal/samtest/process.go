package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process runs in the background until stop.
type process struct {
	name  string
	log   string // file of what it writes
	cmd   *exec.Cmd
	ended chan struct{}
	once  sync.Once
}

// background starts a process and waits until ready returns nil.
func background(ctx context.Context, dir, name string, cmd *exec.Cmd, bound time.Duration, ready func(context.Context) error) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), cmd: cmd, ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownGroup()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = cmd.Wait() // its log says why
		close(p.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return p, nil
		}
		select {
		case <-p.ended:
			return nil, fmt.Errorf("%s ended: %s", name, p.tail())
		case <-ctx.Done():
			p.stop()
			return nil, fmt.Errorf("%s does not answer after %v: %w; its last lines: %s", name, bound, err, p.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stopTime is how long a process may take to clean up after itself.
const stopTime = 20 * time.Second

// stop ends the process: with SIGTERM first, because the SAM CLI then removes
// its containers and the Docker engine its mounts.
func (p *process) stop() {
	p.once.Do(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it is gone already
		select {
		case <-p.ended:
		case <-time.After(stopTime):
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	})
}

// tail is the end of what the process wrote, in one line.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text), 4)
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// freePort is a loopback port that nobody listens on.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return strconv.Itoa(port), l.Close()
}

// connects returns a check that something listens on the loopback port.
func connects(port string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// find looks on the PATH and where a system's own programs are.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if errors.Is(err, exec.ErrNotFound) {
			path, err = exec.LookPath(filepath.Join(dir, program))
		}
	}
	return path, err
}
