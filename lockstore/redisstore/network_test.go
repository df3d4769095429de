package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// F30: a third of all requests ends with a reset, before the server has them or
// after, and what gets through comes byte by byte. Whoever follows the contract
// (ask again as the same owner, abandon in the end) is alone with the key.
func TestF30LossResetsAndSlices(t *testing.T) {
	onBoth(t, func(t *testing.T, program string) {
		addr := testservers.Start(t, program).Addr
		f := &flaky{random: rand.New(rand.NewPCG(30, 30))}
		s, err := New(openDialer(t, "redis://"+addr, func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &flakyConn{Conn: conn, flaky: f}, err
		}), Options{})
		require.NoError(t, err)

		const workers, turns = 8, 25
		var inside, unknown atomic.Int32
		var had, gaveUp atomic.Int32
		var highest lockstore.Fence // written by one at a time
		// ask repeats a request until its outcome is known, and says whether that of
		// one was not.
		ask := func(request func() error) (doubt bool, err error) {
			for {
				err := request()
				switch {
				case err == nil, errors.Is(err, lockstore.ErrHeld), errors.Is(err, lockstore.ErrLost):
					return doubt, err
				case errors.Is(err, lockstore.ErrCorrupt), errors.Is(err, lockstore.ErrInvalid):
					t.Error(err)
					return doubt, err
				case !errors.Is(err, lockstore.ErrUnavailable):
					doubt = true
					unknown.Add(1)
				}
			}
		}
		turn := func() {
			req := newRequest("k")
			var lease lockstore.Lease
			_, err := ask(func() (err error) { lease, err = s.Acquire(t.Context(), req); return err })
			if errors.Is(err, lockstore.ErrHeld) {
				gaveUp.Add(1)
				_, err := ask(func() error { return s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: req.Owner}) })
				assert.NoError(t, err, "abandon")
				return
			}
			if !assert.NoError(t, err) {
				return
			}
			had.Add(1)
			assert.EqualValues(t, 1, inside.Add(1), "holders at once")
			assert.Greater(t, lease.Fence, highest)
			highest = lease.Fence
			_, err = ask(func() error { _, err := s.Renew(t.Context(), lease, 2*time.Minute); return err })
			assert.NoError(t, err, "renew")
			inside.Add(-1)
			// Behind a lost reply others may have had the key so often that this owner
			// is forgotten.
			if doubt, err := ask(func() error { return s.Release(t.Context(), lease) }); !doubt || !errors.Is(err, lockstore.ErrLost) {
				assert.NoError(t, err, "release")
			}
		}
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				for range turns {
					turn()
				}
			})
		}
		all.Wait()
		t.Logf("%d had it, %d found it held; %d unknown outcomes, %d requests lost, %d replies lost",
			had.Load(), gaveUp.Load(), unknown.Load(), f.requests.Load(), f.replies.Load())
		require.EqualValues(t, workers*turns, had.Load()+gaveUp.Load())
		require.GreaterOrEqual(t, had.Load(), int32(20))
		require.GreaterOrEqual(t, unknown.Load(), int32(5))
		require.Positive(t, f.requests.Load())
		require.Positive(t, f.replies.Load())
		status, err := openStore(t, "redis://"+addr).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.False(t, status.Held, "nothing is left behind")
	})
}

// flaky decides what becomes of requests.
type flaky struct {
	requests, replies atomic.Int32 // lost

	mu     sync.Mutex
	random *rand.Rand
}

func (f *flaky) one(of int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(of) == 0
}

// flakyConn loses a sixth of the scripts and a fifth of the answers to the rest.
type flakyConn struct {
	net.Conn
	*flaky
	cut bool
}

var errReset = errors.New("connection reset by the test")

func (c *flakyConn) Write(b []byte) (int, error) {
	if !strings.Contains(string(b), "eval") {
		return c.Conn.Write(b)
	}
	if c.one(6) {
		c.requests.Add(1)
		c.Close()
		return len(b) / 2, errReset
	}
	c.cut = c.one(5)
	for i := range b {
		if _, err := c.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

func (c *flakyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:1])
	if c.cut && err == nil {
		c.replies.Add(1)
		c.Close()
		return 0, errReset
	}
	return n, err
}

// F34: the primary grants a lease that its replica never sees, and dies. For a
// moment two hold the key; the fence has grown, and the old holder learns of its
// loss.
func TestF34FailoverLosesALease(t *testing.T) {
	onBoth(t, func(t *testing.T, program string) {
		primary := testservers.Start(t, program, "--repl-diskless-sync-delay", "0")
		link := testservers.Proxy(t, primary.Addr)
		host, port, err := net.SplitHostPort(link.Addr)
		require.NoError(t, err)
		replica := testservers.Start(t, program, "--replicaof", host+" "+port).Addr

		before := openStore(t, "redis://"+primary.Addr)
		kept := acquire(t, before, "kept")
		after := openStore(t, "redis://"+replica)
		require.Eventually(t, func() bool {
			status, err := after.Inspect(t.Context(), "kept")
			return err == nil && status.Held && status.Fence == kept.Fence
		}, 30*time.Second, 20*time.Millisecond, "the replica follows")

		link.Swallow()
		lost := acquire(t, before, "lost")
		requireHeld(t, before, "lost")
		primary.Kill()
		admin := openClient(t, "redis://"+replica).(*redis.Client)
		require.NoError(t, admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())

		requireHeld(t, after, "kept")
		_, err = after.Renew(t.Context(), kept, time.Minute)
		require.NoError(t, err, "what had arrived goes on")
		next := acquire(t, after, "lost")
		require.Greater(t, next.Fence, lost.Fence, "the resource refuses the old holder's write")
		requireLost(t, after, lost)
		require.ErrorIs(t, after.Release(t.Context(), lost), lockstore.ErrLost)
		_, err = after.Renew(t.Context(), next, time.Minute)
		require.NoError(t, err, "the old holder's requests did not touch it")
	})
}
