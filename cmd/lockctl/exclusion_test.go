package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
)

const (
	runsOfAKind = 10
	atOnce      = 10 // runs
	shortTTL    = time.Second
	// late is a delay of this machine that says nothing about lockctl: a process that
	// gets no processor for that long cannot keep its promise.
	late = 100 * time.Millisecond
	// mostRepeats is how often a round may begin again because this machine was too slow:
	// a lease of shortTTL was lost before anything happened to it, or a delay was late.
	mostRepeats = 10
)

// atWork is a lockctl whose command ignores SIGTERM and has a child.
type atWork struct {
	*process
	key  string
	pids []string // of the command and its child
}

// startWork returns when the command and its child are at work.
func startWork(t *testing.T, addr string) *atWork {
	for range mostRepeats {
		file := filepath.Join(t.TempDir(), "file")
		key := fmt.Sprintf("%s/%d", t.Name(), rand.Int64())
		w := &atWork{key: key, process: start(t, addr, "run", "--ttl", "1", key, "--", "sh", "-c",
			`trap '' TERM; sleep 60 & echo $$ $! > "$1"; wait; sleep 60`, "sh", file)}
		eventually(t, func() error {
			text, _ := os.ReadFile(file) // the command writes it when it begins
			w.pids = strings.Fields(string(text))
			return wants(len(w.pids) == 2 || w.hasEnded(), "the command and its child are at work")
		})
		if !w.hasEnded() {
			return w
		}
		t.Logf("lockctl has ended before anything happened: again. %s", w.err.String())
	}
	t.Fatal("lockctl ends before anything happens")
	return nil
}

func (w *atWork) hasEnded() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// kill ends a lockctl that nobody needs any more. Its guard process ends the command.
func (w *atWork) kill() {
	_ = w.Process.Kill() // it may have ended
	<-w.done
}

// others waits until another owner is granted the key, and returns the processes of the
// command that are still there.
func (w *atWork) others(t *testing.T, g *guard.Guard) (left []string) {
	lease, err := g.Acquire(t.Context(), guard.LeaseRequest{Key: w.key, TTL: 10 * time.Second, Wait: patience})
	for _, pid := range w.pids { // at once
		if works(pid) {
			left = append(left, pid)
		}
	}
	assert.NoError(t, err)
	assert.NotZero(t, lease.Fence)
	return left
}

// works says that a process is there and no zombie. It is faster than alive.
func works(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return state != "" && state[0] != 'Z' && state[0] != 'X'
}

// delays measures how long this process gets no processor. It returns the longest delay
// since the last call.
func delays(t *testing.T) func() time.Duration {
	var longest atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var joined sync.WaitGroup
	joined.Go(func() {
		for before := time.Now(); ctx.Err() == nil; before = time.Now() {
			<-time.After(5 * time.Millisecond)
			if d := int64(time.Since(before) - 5*time.Millisecond); d > longest.Load() {
				longest.Store(d)
			}
		}
	})
	t.Cleanup(func() { cancel(); joined.Wait() })
	return func() time.Duration { return time.Duration(longest.Swap(0)) }
}

// When something happens to lockctl, to the server or to the network, the command's
// process group is dead before another owner is granted the key.
func TestNobodyElseIsAtWork(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("this test looks into /proc, which this system does not have")
	}
	for name, c := range map[string]struct {
		happens func(*testservers.Server, *testservers.CutProxy, []*atWork) error
		told    bool // lockctl goes on, and returns that the lock was lost
	}{
		"lockctl is stopped or killed": {func(_ *testservers.Server, _ *testservers.CutProxy, all []*atWork) error {
			for i, w := range all {
				<-time.After(rand.N(shortTTL / atOnce))
				if err := w.Process.Signal([]syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL}[i%2]); err != nil {
					return err
				}
			}
			return nil
		}, false},
		"the server is paused": {func(server *testservers.Server, _ *testservers.CutProxy, _ []*atWork) error {
			<-time.After(rand.N(shortTTL))
			server.Pause()
			<-time.After(shortTTL * 3 / 2)
			server.Resume()
			return nil
		}, true},
		"the network is cut": {func(_ *testservers.Server, proxy *testservers.CutProxy, _ []*atWork) error {
			<-time.After(rand.N(shortTTL))
			proxy.Swallow()
			if rand.N(2) == 0 {
				proxy.Disconnect()
			}
			return nil
		}, true},
	} {
		// One after the other: a lease of shortTTL is lost on a machine with too much to do.
		t.Run(name, func(t *testing.T) {
			server := testservers.Start(t, testservers.RedisServer)
			g, err := guard.New(open(t, server.Addr), guard.Options{})
			require.NoError(t, err)
			delay := delays(t)
			for n, repeats := 0, 0; n < runsOfAKind; {
				proxy := testservers.Proxy(t, server.Addr)
				var all []*atWork
				for range atOnce {
					all = append(all, startWork(t, proxy.Addr))
				}
				delay()
				early := c.happens(server, proxy, all)
				var left atomic.Int32
				var ended sync.WaitGroup
				for _, w := range all {
					ended.Go(func() {
						if early == nil {
							left.Add(int32(len(w.others(t, g))))
						}
					})
				}
				ended.Wait()
				stood := delay()
				if c.told {
					for _, w := range all {
						assert.Equal(t, exit.Lost, w.status(t), w.err.String())
					}
				}
				for _, w := range all {
					w.kill()
				}
				if slow := early != nil || left.Load() > 0 && stood > late; slow && repeats < mostRepeats {
					t.Logf("%d processes were still there, this machine stood still for %v, a lockctl had ended before: %v. Again", left.Load(), stood, early)
					repeats++
					continue
				}
				require.NoError(t, early)
				assert.Zero(t, left.Load(), "processes at work when another owner was granted the key; longest delay %v", stood)
				n += atOnce
			}
		})
	}
}
