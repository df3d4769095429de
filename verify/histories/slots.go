package histories

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// moveSlot moves the slot of a key, named as the server knows it, to another
// node. It pauses while the slot is half moved, so that clients see that state. One slot in 20 stays half moved
// for longer than a run repeats its release.
func moveSlot(t testing.TB, nodes []*testservers.Server, key string, random *rand.Rand) {
	t.Helper()
	ctx := context.Background() // a slot that is half moved would stay so
	clients := make([]*redis.Client, len(nodes))
	ids := make([]string, len(nodes))
	for i, node := range nodes {
		clients[i] = redisClient(t, node.Addr)
		defer clients[i].Close()
		ids[i] = clients[i].ClusterMyID(ctx).Val()
	}
	slot, err := clients[0].ClusterKeySlot(ctx, key).Result()
	require.NoError(t, err)
	// Each node is asked about itself: for a moment after the last move another node may name
	// the old owner, because a message of the old owner was still on its way.
	from := -1
	for i := range nodes {
		shards, err := clients[i].ClusterShards(ctx).Result()
		require.NoError(t, err)
		for _, shard := range shards {
			if shard.Nodes[0].ID == ids[i] && slices.ContainsFunc(shard.Slots, func(r redis.SlotRange) bool { return r.Start <= slot && slot <= r.End }) {
				from = i
			}
		}
	}
	require.GreaterOrEqual(t, from, 0, "no node has slot %d", slot)
	to := (from + 1 + random.IntN(len(nodes)-1)) % len(nodes)
	pause := func() { <-time.After(time.Duration(random.IntN(40)) * time.Millisecond) }
	set := func(node int, args ...any) {
		t.Helper()
		require.NoError(t, clients[node].Do(ctx, append([]any{"CLUSTER", "SETSLOT", slot}, args...)...).Err())
	}

	set(to, "IMPORTING", ids[from])
	set(from, "MIGRATING", ids[to])
	if random.IntN(20) == 0 {
		<-time.After(1500 * time.Millisecond)
	}
	pause()
	host, port, _ := strings.Cut(nodes[to].Addr, ":")
	keys, err := clients[from].ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
	require.NoError(t, err)
	for _, k := range keys {
		require.NoError(t, clients[from].Migrate(ctx, host, port, k, 0, time.Second).Err())
	}
	pause()
	set(to, "NODE", ids[to]) // the new node first, so that no node sends a client back
	set(from, "NODE", ids[to])
	for i := range nodes {
		if i != to && i != from {
			set(i, "NODE", ids[to])
		}
	}
}
