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

// A third of all requests ends with a reset: before the request has reached the server, or
// before the reply has reached the client. All other traffic comes byte by byte. Clients
// that follow the contract (the same request again, and an abandon at the end) never hold
// the key at the same time.
func TestResetsAndSlices(t *testing.T) {
	onBoth(t, "F30 resets and slices", func(t *testing.T, program string) {
		addr := testservers.Start(t, program).Addr
		f := &flaky{random: rand.New(rand.NewPCG(30, 30))}
		s, err := New(openDialer(t, "redis://"+addr, func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &flakyConn{Conn: conn, flaky: f}, err
		}), Options{})
		require.NoError(t, err)

		const workers, turns = 8, 25
		var inside, unknown atomic.Int32
		var grants, refusals atomic.Int32
		var highest lockstore.Fence // written by one at a time
		// send repeats a request until its outcome is known. ambiguous: the outcome of an
		// earlier attempt was unknown.
		send := func(request func() error) (ambiguous bool, err error) {
			for {
				err := request()
				switch {
				case err == nil, errors.Is(err, lockstore.ErrRefused), errors.Is(err, lockstore.ErrLost):
					return ambiguous, err
				case errors.Is(err, lockstore.ErrCorrupt), errors.Is(err, lockstore.ErrInvalid):
					t.Error(err)
					return ambiguous, err
				case !errors.Is(err, lockstore.ErrUnavailable):
					ambiguous = true
					unknown.Add(1)
				}
			}
		}
		turn := func() {
			req := newRequest("k")
			var lease lockstore.Lease
			_, err := send(func() (err error) { lease, err = s.Acquire(t.Context(), req); return err })
			if errors.Is(err, lockstore.ErrRefused) {
				refusals.Add(1)
				_, err := send(func() error { return s.Release(t.Context(), lockstore.Lease{Key: "k", Owner: req.Owner}) })
				assert.NoError(t, err, "abandon")
				return
			}
			if !assert.NoError(t, err) {
				return
			}
			grants.Add(1)
			assert.EqualValues(t, 1, inside.Add(1), "holders at once")
			assert.Greater(t, lease.Fence, highest)
			highest = lease.Fence
			_, err = send(func() error { _, err := s.Renew(t.Context(), lease, 2*time.Minute); return err })
			assert.NoError(t, err, "renew")
			inside.Add(-1)
			// After a lost reply other owners may have had the key so often that the entry
			// does not remember this owner.
			if ambiguous, err := send(func() error { return s.Release(t.Context(), lease) }); !ambiguous || !errors.Is(err, lockstore.ErrLost) {
				assert.NoError(t, err, "release")
			}
		}
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				for n := 0; n < turns || n < 40*turns && (grants.Load() < 20 || unknown.Load() < 5); n++ {
					turn()
				}
			})
		}
		all.Wait()
		t.Logf("%d grants, %d refusals, %d unknown outcomes, %d requests lost, %d replies lost",
			grants.Load(), refusals.Load(), unknown.Load(), f.requests.Load(), f.replies.Load())
		require.GreaterOrEqual(t, grants.Load(), int32(20))
		require.GreaterOrEqual(t, unknown.Load(), int32(5))
		require.Positive(t, f.requests.Load())
		require.Positive(t, f.replies.Load())
		status, err := openStore(t, "redis://"+addr).Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, lockstore.Free, status.State, "the key is free at the end")
	})
}

// flaky decides which requests and replies are lost.
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

// The primary grants a lease, and dies before its replica gets the lease. Then two owners
// hold the key for a while. The second fence is larger, and the old holder gets ErrLost.
func TestFailoverLosesALease(t *testing.T) {
	onBoth(t, "F34 failover", func(t *testing.T, program string) {
		primary := testservers.Start(t, program, "--repl-diskless-sync-delay", "0")
		link := testservers.Proxy(t, primary.Addr)
		host, port, err := net.SplitHostPort(link.Addr)
		require.NoError(t, err)
		replica := testservers.Start(t, program, "--replicaof", host+" "+port).Addr

		before := openStore(t, "redis://"+primary.Addr)
		copied := acquire(t, before, "copied")
		after := openStore(t, "redis://"+replica)
		require.Eventually(t, func() bool {
			return driverOf(after).client.Exists(t.Context(), DefaultPrefix+"copied").Val() == 1
		}, 30*time.Second, 20*time.Millisecond, "the replica follows")

		link.Swallow()
		lost := acquire(t, before, "lost")
		requireHeld(t, before, "lost")
		primary.Kill()
		admin := openClient(t, "redis://"+replica).(*redis.Client)
		require.NoError(t, admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())

		requireHeld(t, after, "copied")
		_, err = after.Renew(t.Context(), copied, time.Minute)
		require.NoError(t, err, "the replica has this lease")
		next := acquire(t, after, "lost")
		require.Greater(t, next.Fence, lost.Fence, "a resource can refuse the old holder's write")
		requireLost(t, after, lost)
		require.ErrorIs(t, after.Release(t.Context(), lost), lockstore.ErrLost)
		_, err = after.Renew(t.Context(), next, time.Minute)
		require.NoError(t, err, "the old holder's requests did not change the new lease")
	})
}
