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
	atOnce   = 10 // runs
	shortTTL = 3 * time.Second
	// late is a delay of this machine that says nothing about lockctl: a process that
	// gets no processor for that long cannot keep its promise.
	late = 100 * time.Millisecond
)

// atWork is a lockctl whose command ignores SIGTERM and has a child.
type atWork struct {
	*process
	key  string
	pids []string // of the command and its child
}

// startWork returns when the command and its child are at work.
func startWork(t *testing.T, store string) *atWork {
	key := fmt.Sprintf("%s/%d", t.Name(), rand.Int64())
	p, file := begun(t, store, `trap '' TERM; sleep 60 & echo $$ $! > "$1"; wait; sleep 60`, "--ttl", fmt.Sprint(shortTTL.Seconds()), key)
	return &atWork{p, key, lines(t, file, 2)}
}

// others waits until another owner is granted the key, and returns how many processes of the command
// are still there.
func (w *atWork) others(t *testing.T, g *guard.Guard) (left int32) {
	lease, err := g.Acquire(t.Context(), guard.LeaseRequest{Key: w.key, TTL: 10 * time.Second, Wait: patience})
	for _, pid := range w.pids { // at once
		if alive(pid) {
			left++
		}
	}
	assert.NoError(t, err)
	assert.NotZero(t, lease.Fence)
	return left
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
		happens func(*testservers.Server, *testservers.CutProxy, []*atWork)
		told    bool // lockctl goes on, and returns that the lock was lost
		sqlite  bool
	}{
		// One that is stopped in the middle of a write would keep the file from all others, for as long as it is stopped.
		"lockctl is killed, on SQLite": {happens: func(_ *testservers.Server, _ *testservers.CutProxy, all []*atWork) {
			for _, w := range all {
				<-time.After(rand.N(shortTTL / atOnce))
				_ = w.Process.Kill() // on a slow machine it may have ended
			}
		}, sqlite: true},
		"lockctl is stopped or killed": {happens: func(_ *testservers.Server, _ *testservers.CutProxy, all []*atWork) {
			for i, w := range all {
				<-time.After(rand.N(shortTTL / atOnce))
				_ = w.Process.Signal([]syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL}[i%2]) // on a slow machine it may have ended
			}
		}},
		"the server is paused": {happens: func(server *testservers.Server, _ *testservers.CutProxy, _ []*atWork) {
			<-time.After(rand.N(shortTTL))
			server.Pause()
			<-time.After(shortTTL * 3 / 2)
			server.Resume()
		}, told: true},
		"the network is cut": {happens: func(_ *testservers.Server, proxy *testservers.CutProxy, _ []*atWork) {
			<-time.After(rand.N(shortTTL))
			proxy.Swallow()
			if rand.N(2) == 0 {
				proxy.Disconnect()
			}
		}, told: true},
	} {
		// One after the other: a short lease is lost on a machine with too much to do.
		t.Run(name, func(t *testing.T) {
			server := testservers.Start(t, testservers.RedisServer)
			url := "redis://" + server.Addr
			if c.sqlite {
				url = "sqlite://" + filepath.Join(t.TempDir(), "locks.db")
			}
			g, err := guard.New(at(t, url).store, guard.Options{})
			require.NoError(t, err)
			delay := delays(t)
			for again := true; again; {
				proxy := testservers.Proxy(t, server.Addr)
				var all []*atWork
				for range atOnce {
					all = append(all, startWork(t, strings.Replace(url, server.Addr, proxy.Addr, 1)))
				}
				delay()
				c.happens(server, proxy, all)
				var left atomic.Int32
				var ended sync.WaitGroup
				for _, w := range all {
					ended.Go(func() { left.Add(w.others(t, g)) })
				}
				ended.Wait()
				stood := delay()
				for _, w := range all {
					if c.told {
						assert.Equal(t, exit.Lost, w.status(t), w.err.String())
					}
					_ = w.Process.Kill() // its guard process ends the command
				}
				again = left.Load() > 0 && stood > late
				t.Logf("%d processes were still there, this machine stood still for %v", left.Load(), stood)
				assert.True(t, again || left.Load() == 0, "processes at work when another owner was granted the key")
			}
		})
	}
}
