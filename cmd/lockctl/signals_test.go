package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/testservers"
)

// A stop reaches the command once, whoever sends it and to whom.
func TestStopReachesTheCommandOnce(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	const term, hup = syscall.SIGTERM, syscall.SIGHUP
	// send sends to lockctl, its guard process, the command, and its children, as far as they are chosen.
	send := func(t *testing.T, sig syscall.Signal, pids []int) {
		for _, pid := range pids {
			if err := syscall.Kill(pid, sig); !errors.Is(err, syscall.ESRCH) { // a sleep of the command may have ended
				require.NoError(t, err)
			}
		}
	}
	for name, c := range map[string]struct {
		choose func(tree []int) []int
		sends  []syscall.Signal
		gets   string
	}{
		"lockctl alone, as kill or KillMode=mixed":        {func(all []int) []int { return all[:1] }, []syscall.Signal{term}, "TERM"},
		"lockctl alone, twice":                            {func(all []int) []int { return all[:1] }, []syscall.Signal{term, term}, "TERM"},
		"lockctl alone, two signals, as SendSIGHUP":       {func(all []int) []int { return all[:1] }, []syscall.Signal{term, hup}, "HUP TERM"},
		"lockctl's group, as timeout or a shell":          {func(all []int) []int { return []int{-all[0]} }, []syscall.Signal{term}, "TERM"},
		"all, lockctl first, as KillMode=control-group":   {func(all []int) []int { return all }, []syscall.Signal{term}, "TERM"},
		"all, lockctl last":                               {func(all []int) []int { slices.Reverse(all); return all }, []syscall.Signal{term}, "TERM"},
		"all, two signals":                                {func(all []int) []int { return all }, []syscall.Signal{term, hup}, "HUP TERM"},
		"lockctl alone, from a terminal":                  {func(all []int) []int { return all[:1] }, []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT}, "INT QUIT"},
		"the command, and later lockctl and the other":    {nil, []syscall.Signal{term}, "TERM"},
		"lockctl, and the guard process long before that": {func(all []int) []int { return all[:1] }, []syscall.Signal{hup}, "HUP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, file := begun(t, addr, `for s in TERM HUP INT QUIT; do trap "echo $s >> '$1'" $s; done; `+job+"exit 5", "once-"+strconv.FormatInt(time.Now().UnixNano(), 36))
			if strings.Contains(name, "long before") {
				send(t, c.sends[0], tree(t, p.Process.Pid)[1:2])
				<-time.After(time.Second)
			}
			for i, sig := range c.sends {
				if i > 0 {
					<-time.After(20 * time.Millisecond) // two signals, and not one that is sent twice at once
				}
				all := tree(t, p.Process.Pid)
				require.GreaterOrEqual(t, len(all), 3)
				if c.choose == nil {
					send(t, sig, all[2:])
					lines(t, file, 2)
					c.choose = func(all []int) []int { return []int{all[1], all[0]} }
				}
				send(t, sig, c.choose(all))
			}
			lines(t, file, 1+len(strings.Fields(c.gets)))
			<-time.After(time.Second / 2) // one more would have come by then
			goOn(t, file)
			assert.Equal(t, 5, p.status(t), p.err.String())
			got := lines(t, file, 1)[1:]
			slices.Sort(got)
			assert.Equal(t, c.gets, strings.Join(got, " "))
		})
	}
}

// The first signal lets the answers that are under way end, for 5 s; a second one ends lockctl at once.
func TestASecondSignal(t *testing.T) {
	t.Parallel()
	out, in, err := os.Pipe()
	require.NoError(t, err)
	defer out.Close()
	p := lockctl("memory://", "serve", "0")
	p.Stdout = in
	p.start(t)
	require.NoError(t, in.Close())
	said, err := bufio.NewReader(out).ReadString(',')
	require.NoError(t, err)
	address := strings.TrimSuffix(said[strings.LastIndex(said, "/")+1:], ",")
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprint(conn, "PUT /locks/k HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
	require.NoError(t, err)
	_, err = bufio.NewReader(conn).ReadString('\n') // it waits for the body
	require.NoError(t, err)
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	for err == nil { // until it listens no more: the first signal has been handled
		var other net.Conn
		if other, err = net.Dial("tcp", address); err == nil {
			other.Close()
		}
	}
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.status(t)
	require.True(t, p.ProcessState.Sys().(syscall.WaitStatus).Signaled(), "by the second one")
}

// Who ends all processes with the name of lockctl means lockctl, which passes the signal on.
func TestNameOfTheGuardProcess(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no process can change its name here")
	}
	p, _ := begun(t, testservers.Redis(t), `echo begun > "$1"; exec sleep 60`, "name")
	for file, name := range map[string]string{"comm": "command-guard\n", "cmdline": "command-guard\x00"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", guardOf(t, p), file))
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(string(text), name), "%q", text)
	}
}

// A signal in the first milliseconds ends lockctl by this signal, and the command does not run to its end. Each delay
// is tried, because no program can be stopped between two of its instructions.
func TestSignalAtTheStart(t *testing.T) {
	addr, file := testservers.Redis(t), filepath.Join(t.TempDir(), "file")
	t.Cleanup(func() { // a command that still runs has written by then
		<-time.After(2 * time.Second)
		assert.NoFileExists(t, file)
	})
	for first := range atOnce {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for n := first; n < 200; n += atOnce {
				p := start(t, addr, "run", "-n", t.Name(), "--", "sh", "-c", `sleep 1; echo ran >> "$1"`, "sh", file)
				<-time.After(time.Duration(n%100) * 100 * time.Microsecond)
				require.NoError(t, p.Process.Signal(syscall.SIGTERM))
				require.Equal(t, exit.Signal+int(syscall.SIGTERM), p.status(t), "%d: %s", n, p.err.String())
			}
		})
	}
}

// nobodyReads are files for standard error whose reader is gone, or reads nothing, or that have no room.
func nobodyReads(t *testing.T) map[string]*os.File {
	t.Helper()
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		return r, w
	}
	gone, closed := pipe()
	require.NoError(t, gone.Close())
	_, full := pipe()
	fd := int(full.Fd())
	require.NoError(t, unix.SetNonblock(fd, true))
	for err := error(nil); err == nil; {
		_, err = unix.Write(fd, bytes.Repeat([]byte{'x'}, 512))
	}
	require.NoError(t, unix.SetNonblock(fd, false))
	noRoom, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Logf("this system has no full disk to write to: %v", err)
		noRoom = closed
	}
	return map[string]*os.File{"its reader has ended": closed, "its reader does not read": full, "the disk is full": noRoom}
}

// What lockctl says costs neither the lease nor the status, also if nobody reads it.
func TestNobodyReadsWhatLockctlSays(t *testing.T) {
	t.Parallel()
	addr := testservers.Redis(t)
	for name, stderr := range nobodyReads(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "file")
			proxy := testservers.Proxy(t, addr)
			run := func(args ...string) *process {
				p := lockctl("redis://"+proxy.Addr, append([]string{"run"}, args...)...)
				p.Stderr = stderr
				return p.start(t)
			}
			p := run("--ttl", "6", name, "--", "sh", "-c", job+"exit 5", "sh", file)
			lines(t, file, 1)
			assert.Equal(t, exit.Busy, run("-n", name, "--", "true").status(t))
			proxy.CutRequests("") // the next renewal fails, and lockctl says so
			until(t, "a request and its repeat are cut", func() bool { return proxy.Cuts() >= 2 })
			proxy.Forward()
			until(t, "the lease is renewed", func() bool { return inspect(t, addr, name).Remaining > 5*time.Second })
			goOn(t, file)
			assert.Equal(t, 5, p.status(t))
			assert.False(t, inspect(t, addr, name).State.Taken())
		})
	}
}

// At a terminal COMMAND is in the background: to read from it is an error and no stop, Ctrl-C comes by lockctl, and stty
// tostop stops neither COMMAND nor lockctl.
func TestTerminal(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", `stty tostop; exec "$0" run terminal -- sh -c 'trap "echo caught; exit 9" INT; read a || echo ready; while :; do sleep 0.05; done'`, binary)
	cmd.Env = append(os.Environ(), "LOCK_URL=redis://"+testservers.Redis(t))
	terminal, err := pty.Start(cmd)
	require.NoError(t, err)
	defer terminal.Close()
	shown := bufio.NewScanner(terminal)
	shows := func(text string) {
		for !strings.HasSuffix(shown.Text(), text) {
			require.True(t, shown.Scan(), text)
		}
	}
	shows("ready")
	_, err = terminal.WriteString("\x03")
	require.NoError(t, err)
	shows("caught")
	require.Error(t, cmd.Wait())
	assert.Equal(t, 9, cmd.ProcessState.ExitCode())
}
