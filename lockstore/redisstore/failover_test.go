package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// nowhere is a primary that does not exist. A server that follows it stays as it is.
var nowhere = []any{"REPLICAOF", "127.0.0.1", "1"}

// Whatever a replica has read, it answers no request: it may lag. The entries here have every
// state, so the scripts return at every place where they do not write.
func TestAReplicaAnswersNothing(t *testing.T) {
	onBoth(t, "F80 replica", func(t *testing.T, program string) {
		addr := testservers.Start(t, program).Addr
		s, admin := openStore(t, "redis://"+addr), openClient(t, "redis://"+addr)
		leases := map[string]lockstore.Lease{}
		for _, key := range []string{"held", "queue", "free", "abandoned", "revoked", "started", "completed", "cooldown", "gone", "expired", "doubt", "clock", "list", "text"} {
			leases[key] = acquire(t, s, key)
		}
		queued(t, s, "queue")
		require.NoError(t, s.Release(t.Context(), leases["free"]))
		require.NoError(t, s.Release(t.Context(), lockstore.Lease{Key: "abandoned", Owner: lockstore.NewOwner()}))
		_, err := s.Revoke(t.Context(), lockstore.RevokeRequest{Key: "revoked", Fence: leases["revoked"].Fence})
		require.NoError(t, err)
		require.NoError(t, s.MarkStarted(t.Context(), leases["started"]))
		require.NoError(t, s.Complete(t.Context(), leases["completed"], []byte("result"), time.Hour))
		require.NoError(t, s.Complete(t.Context(), leases["cooldown"], nil, time.Hour))
		entry := func(key, text string) {
			text = strings.NewReplacer("FENCE", fmt.Sprintf("%016d", leases[key].Fence), "OWNER", string(leases[key].Owner), "HOUR", fmt.Sprint(time.Now().Add(time.Hour).UnixMicro())).Replace(text)
			require.NoError(t, admin.Set(t.Context(), DefaultPrefix+key, text, time.Hour).Err())
		}
		entry("expired", "lambdalock2 H000FENCE OWNER 0\n1790000000000000 60000000 \n")
		entry("doubt", "lambdalock2 X000FENCE  0\n0000000000000000 0 \nOWNER FENCE 0 1 1790000000000000 60000000 s \n\n")
		entry("clock", "lambdalock2 H000FENCE OWNER 0\nHOUR 60000000 \n")
		require.NoError(t, admin.Del(t.Context(), DefaultPrefix+"gone", DefaultPrefix+"list").Err())
		require.NoError(t, admin.RPush(t.Context(), DefaultPrefix+"list", "a").Err())
		require.NoError(t, admin.Set(t.Context(), DefaultPrefix+"text", "hello", 0).Err())
		before := map[string]string{}
		for key := range leases {
			before[key] = admin.Dump(t.Context(), DefaultPrefix+key).Val()
		}

		require.NoError(t, admin.Do(t.Context(), nowhere...).Err())
		for key, lease := range leases {
			stranger := lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: lease.Fence}
			for _, by := range []lockstore.Lease{lease, stranger} {
				ctx, what := t.Context(), fmt.Sprint(key, by.Owner == lease.Owner)
				for _, wait := range []bool{false, true} {
					req := newRequest(key)
					req.Owner, req.JoinQueue = by.Owner, wait
					_, err = s.Acquire(ctx, req)
					requireUnavailable(t, err, "READONLY")
				}
				for _, ttl := range []time.Duration{time.Second, time.Hour} {
					_, err = s.Renew(ctx, by, ttl)
					requireUnavailable(t, err, "READONLY")
				}
				for name, err := range map[string]error{
					"release":  s.Release(ctx, by),
					"abandon":  s.Release(ctx, lockstore.Lease{Key: key, Owner: by.Owner}),
					"leave":    s.Leave(ctx, key, by.Owner),
					"start":    s.MarkStarted(ctx, by),
					"complete": s.Complete(ctx, by, []byte("result"), time.Hour),
				} {
					require.ErrorContains(t, err, "READONLY", what+name)
					requireUnavailable(t, err, "READONLY")
				}
			}
			for _, now := range []bool{false, true} {
				_, err = s.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: lease.Fence, OpenAtOnce: now})
				requireUnavailable(t, err, "READONLY")
			}
			requireUnavailable(t, s.ResolveNoEffect(t.Context(), key, lease.Fence), "READONLY")
			requireUnavailable(t, s.ResolveEffect(t.Context(), key, lease.Fence, nil, time.Hour), "READONLY")
			_, err = s.Inspect(t.Context(), key)
			requireUnavailable(t, err, "READONLY")
		}
		requireUnavailable(t, s.List(t.Context(), "", func(lockstore.Page) error { t.Error("a page"); return nil }), "replica")
		_, err = s.Extent(t.Context())
		requireUnavailable(t, err, "replica")
		require.NoError(t, storetest.AwaitTurn(t.Context(), s, "queue", lockstore.NewOwner()), "a waiter asks again, and learns it then")

		require.NoError(t, admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
		for key := range leases {
			_, _ = s.Inspect(t.Context(), key) // and the proof changes nothing on a primary
			require.Equal(t, before[key], admin.Dump(t.Context(), DefaultPrefix+key).Val(), key)
		}
	})
}

// A planned failover loses nothing: the primary takes no writes until its replica has all of
// them and is promoted. Then the old primary is a replica that does not get the new primary's
// writes yet, and the process still has connections to it. No run loses its lease, nobody is
// told anything that is not so, and no work runs twice.
func TestPlannedFailover(t *testing.T) {
	t.Parallel()
	for name, promote := range map[string]func(t *testing.T, primary, replica *redis.Client){
		"F80 failover by hand": func(t *testing.T, primary, replica *redis.Client) {
			require.NoError(t, primary.Do(t.Context(), "CLIENT", "PAUSE", "60000", "WRITE").Err())
			require.Eventually(t, func() bool {
				at := infoField(primary.Info(t.Context(), "replication").Val(), "master_repl_offset")
				return at != "" && at == infoField(replica.Info(t.Context(), "replication").Val(), "master_repl_offset")
			}, 30*time.Second, time.Millisecond)
			require.NoError(t, replica.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
		},
		"F80 FAILOVER": func(t *testing.T, primary, replica *redis.Client) {
			host, port, err := net.SplitHostPort(replica.Options().Addr)
			require.NoError(t, err)
			require.NoError(t, primary.Do(t.Context(), "FAILOVER", "TO", host, port).Err())
			require.Eventually(t, func() bool {
				return infoField(replica.Info(t.Context(), "replication").Val(), "role") == "master"
			}, 30*time.Second, time.Millisecond)
		},
	} {
		onBoth(t, name, func(t *testing.T, program string) { plannedFailover(t, program, promote) })
	}
}

func plannedFailover(t *testing.T, program string, promote func(t *testing.T, primary, replica *redis.Client)) {
	const ttl = 15 * time.Second
	old := testservers.Start(t, program, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(old.Addr)
	require.NoError(t, err)
	promoted := testservers.Start(t, program, "--replicaof", host+" "+port)
	awaitInfo(t, "redis://"+promoted.Addr, "master_link_status:up")
	primary, replica := openClient(t, "redis://"+old.Addr).(*redis.Client), openClient(t, "redis://"+promoted.Addr).(*redis.Client)

	var endpoint atomic.Pointer[string] // what the name in the URL means
	endpoint.Store(&old.Addr)
	s, err := New(openDialer(t, "redis://"+old.Addr, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dial(ctx, network, *endpoint.Load())
	}), Options{})
	require.NoError(t, err)

	var mu sync.Mutex
	runs, wrong := map[string]int{}, []string{}
	// A run whose work ends while the primary takes no writes may find no time to release. Then
	// its lease ends by time.
	g, err := guard.New(s, guard.Options{TTL: ttl, Wait: time.Minute, Observe: func(_ context.Context, r guard.Report) {
		mu.Lock()
		defer mu.Unlock()
		if r.Err != nil && !errors.Is(r.Err, context.Canceled) || r.CompleteErr != nil {
			wrong = append(wrong, fmt.Sprint(r.Key, ": ", r.Outcome, ", ", r.Err, ", ", r.CompleteErr))
		}
	}})
	require.NoError(t, err)
	once, err := idempotency.New(g, idempotency.Options{})
	require.NoError(t, err)
	work := func(key string, d time.Duration) func(context.Context, guard.Lock) (string, error) {
		return func(context.Context, guard.Lock) (string, error) {
			mu.Lock()
			runs[key]++
			mu.Unlock()
			<-time.After(d) // work takes time
			return "done", nil
		}
	}

	var over atomic.Bool // enough after the failover
	var workers [4]atomic.Int32
	var wg sync.WaitGroup
	for i := range workers { // each on keys of its own
		wg.Go(func() {
			for n := 0; !over.Load(); n++ {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				key := fmt.Sprintf("own/%d/%d", i, n)
				_, _, err := idempotency.Do(ctx, once, idempotency.Call{Key: key}, work(key, time.Duration(5+n%20)*time.Millisecond))
				cancel()
				if err != nil {
					t.Errorf("%s: %v", key, err)
				}
				workers[i].Add(1)
			}
		})
	}
	var waiters [4]atomic.Int32
	for i := range waiters { // all wait for one key, at the server
		wg.Go(func() {
			for n := 0; !over.Load(); n++ {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				err := g.Do(ctx, "shared", func(ctx context.Context, l guard.Lock) error {
					_, err := work(fmt.Sprint("shared/", i, "/", n), 20*time.Millisecond)(ctx, l)
					return err
				})
				cancel()
				if err != nil {
					t.Errorf("shared: %v", err)
				}
				waiters[i].Add(1)
			}
		})
	}
	more := func(want int32) {
		t.Helper()
		var from []int32
		all := func() (now []int32) {
			for i := range workers {
				now = append(now, workers[i].Load(), waiters[i].Load())
			}
			return now
		}
		from = all()
		require.Eventually(t, func() bool {
			for i, n := range all() {
				if n < from[i]+want {
					return false
				}
			}
			return true
		}, time.Minute, 10*time.Millisecond)
	}
	defer wg.Wait()
	defer over.Store(true)
	more(5)
	promote(t, primary, replica)
	endpoint.Store(&promoted.Addr)
	require.NoError(t, primary.Do(t.Context(), nowhere...).Err(), "a full synchronization takes a while")
	require.NoError(t, primary.Do(t.Context(), "CLIENT", "UNPAUSE").Err())
	more(20)
	over.Store(true)
	wg.Wait()

	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, wrong)
	for key, n := range runs {
		require.Equal(t, 1, n, key)
	}
	after := openStore(t, "redis://"+promoted.Addr)
	require.Eventually(t, func() bool { return len(takenKeys(t, after, "shared")) == 0 }, 2*ttl, 100*time.Millisecond, "what has ended is free, by its lease's end at the latest")
}

// takenKeys are the keys with this prefix that nobody gets, and not because the work is done.
func takenKeys(t *testing.T, s *lockstore.Store, prefix string) (keys []string) {
	require.NoError(t, s.List(t.Context(), prefix, func(p lockstore.Page) error {
		for _, k := range p.Keys {
			if k.State.Taken() && !k.State.Done() {
				keys = append(keys, k.Key)
			}
		}
		return nil
	}))
	return keys
}
