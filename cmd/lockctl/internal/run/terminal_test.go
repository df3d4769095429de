package run

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/testservers"
)

// ptyTerminal is a terminal with a program in its session.
type ptyTerminal struct {
	file *os.File
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed when everything that was written has been read

	mu   sync.Mutex
	text bytes.Buffer
	seen int // of text
}

func openPTY(t *testing.T, addr, program string, args ...string) *ptyTerminal {
	t.Helper()
	s := &ptyTerminal{t: t, cmd: exec.Command(program, args...), done: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), "LOCK_URL=redis://"+addr, "LOCKCTL="+lockctl, "PS1=$ ", "TERM=dumb")
	var err error
	s.file, err = pty.Start(s.cmd)
	require.NoError(t, err)
	go func() {
		defer close(s.done)
		_, _ = io.Copy(s, s.file) // ends with an error when the session has ended
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		_ = s.file.Close()
		<-s.done
	})
	return s
}

// Write keeps what the terminal shows.
func (s *ptyTerminal) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// shows waits until the terminal shows a text, behind what was waited for before.
func (s *ptyTerminal) shows(text string) {
	s.t.Helper()
	eventually(s.t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		rest := s.text.Bytes()[s.seen:]
		at := bytes.Index(rest, []byte(text))
		if at < 0 {
			return fmt.Errorf("the terminal shows %q; want %q", rest, text)
		}
		s.seen += at + len(text)
		return nil
	})
}

func (s *ptyTerminal) types(text string) {
	s.t.Helper()
	_, err := s.file.WriteString(text)
	require.NoError(s.t, err)
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

func TestTerminal(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	t.Run("the command reads from it", func(t *testing.T) {
		s := openPTY(t, addr, lockctl, "run", "reads", "--", "sh", "-c", "echo ready; read a; echo got $a")
		s.shows("ready")
		s.types("word\n")
		s.shows("got word")
		require.NoError(t, s.cmd.Wait())
	})
	t.Run("Ctrl-C reaches the command, and lockctl waits for it", func(t *testing.T) {
		s := openPTY(t, addr, lockctl, "run", "ctrl-c", "--", "sh", "-c", "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done")
		s.shows("ready")
		s.types(ctrlC)
		s.shows("caught")
		require.Error(t, s.cmd.Wait())
		assert.Equal(t, 9, s.cmd.ProcessState.ExitCode())
	})
	t.Run("a script goes on with it", func(t *testing.T) {
		s := openPTY(t, addr, "sh", "-c", `"$LOCKCTL" run script -- sh -c 'echo ready; read a; echo got $a'; read b; echo then $b`)
		s.shows("ready")
		s.types("one\n")
		s.shows("got one")
		s.types("two\n")
		s.shows("then two")
		require.NoError(t, s.cmd.Wait())
	})
	t.Run("input from elsewhere, and the terminal when the command asks for it", func(t *testing.T) {
		s := openPTY(t, addr, "sh", "-c", `"$LOCKCTL" run elsewhere -- sh -c 'echo ready; read a < /dev/tty; echo got $a' < /dev/null`)
		s.shows("ready")
		s.types("word\n")
		s.shows("got word")
		require.NoError(t, s.cmd.Wait())
	})
	t.Run("a reader of the output has it", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		s := openPTY(t, addr, "sh", "-c", `"$LOCKCTL" run piped -- sh -c 'sleep 0.3; echo ready; while [ ! -e "$1" ]; do sleep 0.05; done' sh "$1" |
			sh -c 'read a; echo $a; read b < /dev/tty; echo typed $b; echo > "$1"' sh "$1"`, "sh", file)
		s.shows("ready")
		s.types("word\n")
		s.shows("typed word")
		require.NoError(t, s.cmd.Wait())
	})
	t.Run("Ctrl-Z without a shell that could continue it does nothing", func(t *testing.T) {
		s := openPTY(t, addr, lockctl, "run", "orphan", "--", "sh", "-c", "echo ready; read a; echo got $a")
		s.shows("ready")
		s.types(ctrlZ)
		s.types("word\n")
		s.shows("got word")
		require.NoError(t, s.cmd.Wait())
	})
}

// A command that reads at once is stopped before lockctl has given it the terminal. lockctl is
// told so afterwards, continues it, and does not stop itself.
func TestStoppedBeforeItGotTheTerminal(t *testing.T) {
	s := openPTY(t, "", "sh", "-c", "read a; echo got $a")
	group := s.cmd.Process.Pid // the foreground group
	orders, itsOrders, err := os.Pipe()
	require.NoError(t, err)
	defer orders.Close()
	defer itsOrders.Close()
	h := &hold{
		terminal: &terminal{file: s.file, own: syscall.Getpgrp()},
		command:  &guarded{process: s.cmd.Process, orders: itsOrders},
		group:    group,
	}
	eventually(t, func() error { return wants(h.terminal.foreground() == group, "the command has the terminal") })
	require.True(t, h.terminal.give(group))
	require.Nil(t, h.stopped(syscall.SIGTTIN))
	order, err := bufio.NewReader(orders).ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("signal %d\n", int(syscall.SIGCONT)), order)
	s.types("word\n")
	s.shows("got word")
	require.NoError(t, s.cmd.Wait())
}

// A shell with job control stops and continues lockctl and its command.
func TestJobControl(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	addr := testservers.Redis(t)
	begin := func(t *testing.T, args string) *ptyTerminal {
		s := openPTY(t, addr, bash, "--norc", "--noprofile", "--noediting", "-i")
		s.types(`"$LOCKCTL" run ` + args + ` -- sh -c 'echo "beg"ins; read begin; echo "ready "now; read a; echo got $a'; echo "status "$?` + "\n")
		s.shows("begins")
		s.types("\n") // who has read has the terminal, and Ctrl-Z reaches it
		s.shows("ready now")
		s.types(ctrlZ)
		s.shows("Stopped")
		s.types("echo a shell\n")
		s.shows("\na shell")
		return s
	}
	t.Run("continued in time", func(t *testing.T) {
		s := begin(t, "in-time")
		s.types("fg; echo and $?\n")
		s.types("word\n")
		s.shows("got word")
		s.shows("and 0")
	})
	t.Run("continued after the lease", func(t *testing.T) {
		s := begin(t, "--ttl 3 too-late")
		eventually(t, func() error { return wants(!inspect(t, addr, "too-late").State.Taken(), "the lease has ended") })
		s.types("fg; echo and $?\n")
		s.shows(fmt.Sprintf("and %d", exit.Lost))
	})
	t.Run("a command without the terminal works on", func(t *testing.T) {
		dir := t.TempDir()
		s := openPTY(t, addr, bash, "--norc", "--noprofile", "--noediting", "-i")
		s.types(`cd ` + dir + `; "$LOCKCTL" run works-on -- sh -c 'echo "ready "now; while [ ! -e go-on ]; do sleep 0.05; done; echo worked > file' < /dev/null; echo "status "$?` + "\n")
		s.shows("ready now")
		s.types(ctrlZ)
		s.shows("Stopped")
		s.types("touch go-on\n")
		assert.Equal(t, []string{"worked"}, lines(t, filepath.Join(dir, "file"), 1))
		s.types("fg; echo and $?\n")
		s.shows("and 0")
	})
	t.Run("begun in the background", func(t *testing.T) {
		s := openPTY(t, addr, bash, "--norc", "--noprofile", "--noediting", "-i")
		s.types("set -b\n") // the shell tells a stop at once
		s.types(`"$LOCKCTL" run background -- sh -c 'echo "ready "now; read a; echo got $a' &` + "\n")
		s.shows("ready now")
		s.shows("Stopped") // an fg before that would find it running, and it would stop afterwards
		s.types("fg; echo and $?\n")
		s.types("word\n")
		s.shows("got word")
		s.shows("and 0")
	})
}
