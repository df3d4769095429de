package redisstore

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// BenchmarkCycle is one acquire and one release of a free key.
func BenchmarkCycle(b *testing.B) {
	store, err := New(openClient(b, "redis://"+testservers.Redis(b)), Options{})
	require.NoError(b, err)
	holder := lockstore.HolderInfo{Name: "bench", ID: "8f5a1c52-3a3c-4c1e-9d3c-000000000000", Since: time.Unix(1, 0)}
	ctx := b.Context() // a context that can end, as in an invocation
	b.ReportAllocs()
	for b.Loop() {
		lease, err := store.Acquire(ctx, lockstore.Request{Key: "account/7", Owner: lockstore.NewOwner(), TTL: time.Minute, HolderInfo: holder})
		if err != nil {
			b.Fatal(err)
		}
		if err := store.Release(ctx, lease); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRawFloor is the smallest possible lock: SET NX PX, and a script that compares and
// deletes. It has no fence and no holder, and remembers no owner.
func BenchmarkRawFloor(b *testing.B) {
	client := openClient(b, "redis://"+testservers.Redis(b))
	del := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	ctx := b.Context()
	require.NoError(b, del.Load(ctx, client).Err())
	b.ReportAllocs()
	for b.Loop() {
		owner := string(lockstore.NewOwner())
		ok, err := client.SetNX(ctx, "account/7", owner, time.Minute).Result()
		if err != nil || !ok {
			b.Fatal(ok, err)
		}
		if n, err := del.EvalSha(ctx, client, []string{"account/7"}, owner).Int(); err != nil || n != 1 {
			b.Fatal(n, err)
		}
	}
}
