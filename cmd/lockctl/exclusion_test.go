package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
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
	atOnce   = 4 // runs to which the same happens
	shortTTL = 3 * time.Second
	// late is a delay of this machine that says nothing about lockctl: a process that
	// gets no processor for that long cannot keep its promise.
	late = 100 * time.Millisecond
)

// atWork is a lockctl whose command ignores SIGTERM and has a child.
type atWork struct {
	*process
	key     string
	pids    []string // of the command and its child
	next    *guard.Guard
	happens func(*atWork)
	told    bool // lockctl goes on, and returns that the lock was lost
}

// work returns when the command and its child are at work. The next holder comes by a way on which nothing happens.
func work(t *testing.T, storeURL string, next *guard.Guard, told bool, happens func(*atWork)) *atWork {
	key := fmt.Sprintf("%s/%d", t.Name(), rand.Int64())
	p, file := begun(t, storeURL, `trap '' TERM; sleep 60 & echo $$ $! > "$1"; wait; sleep 60`, "--ttl", fmt.Sprint(shortTTL.Seconds()), key)
	return &atWork{p, key, lines(t, file, 2), next, happens, told}
}

// others waits until another owner is granted the key, and returns how many processes of the command
// are still there.
func (w *atWork) others(t *testing.T) (left int32) {
	lease, err := w.next.Acquire(t.Context(), guard.LeaseRequest{Key: w.key, TTL: 10 * time.Second, Wait: patience})
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
	server, paused := testservers.Start(t, testservers.RedisServer), testservers.Start(t, testservers.RedisServer)
	onServer, onPaused, onFile := "redis://"+server.Addr, "redis://"+paused.Addr, "sqlite://"+filepath.Join(t.TempDir(), "locks.db")
	next := func(url string) *guard.Guard {
		g, err := guard.New(at(t, url).store, guard.Options{})
		require.NoError(t, err)
		return g
	}
	nextOnServer, nextOnPaused, nextOnFile := next(onServer), next(onPaused), next(onFile)
	signals := func(sig syscall.Signal) func(*atWork) {
		return func(w *atWork) { _ = w.Process.Signal(sig) } // on a slow machine it may have ended
	}
	delay := delays(t)
	for again := true; again; {
		pause := sync.OnceFunc(func() {
			paused.Pause()
			<-time.After(shortTTL * 3 / 2)
			paused.Resume()
		})
		var all []*atWork
		for range atOnce {
			proxy := testservers.Proxy(t, server.Addr)
			all = append(all,
				work(t, onServer, nextOnServer, false, signals(syscall.SIGSTOP)),
				work(t, onServer, nextOnServer, false, signals(syscall.SIGKILL)),
				work(t, onFile, nextOnFile, false, signals(syscall.SIGKILL)), // one that is stopped in a write would keep the file from all
				work(t, onPaused, nextOnPaused, true, func(*atWork) { pause() }),
				work(t, "redis://"+proxy.Addr, nextOnServer, true, func(*atWork) {
					proxy.Swallow()
					if rand.N(2) == 0 {
						proxy.Disconnect()
					}
				}))
		}
		delay()
		var left atomic.Int32
		var ended sync.WaitGroup
		for _, w := range all {
			ended.Go(func() {
				<-time.After(rand.N(shortTTL))
				w.happens(w)
				left.Add(w.others(t))
			})
		}
		ended.Wait()
		stood := delay()
		for _, w := range all {
			if w.told {
				assert.Equal(t, exit.Lost, w.status(t), w.err.String())
			}
			_ = w.Process.Kill() // its guard process ends the command
		}
		again = left.Load() > 0 && stood > late
		t.Logf("%d processes were still there, this machine stood still for %v", left.Load(), stood)
		assert.True(t, again || left.Load() == 0, "processes at work when another owner was granted the key")
	}
}
