package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// MoveSlot moves the slot of a key, named as the server knows it, to another
// node. It pauses while the slot is half moved, so that clients see that state.
func MoveSlot(ctx context.Context, nodes []*testservers.Server, key string, random *rand.Rand) error {
	clients := make([]*redis.Client, len(nodes))
	ids := make([]string, len(nodes))
	var shards []redis.ClusterShard
	var slot int64
	for i, node := range nodes {
		c := redis.NewClient(&redis.Options{Addr: node.Addr, Protocol: 2, DisableIdentity: true})
		defer c.Close()
		var errs [3]error
		clients[i] = c
		ids[i], errs[0] = c.ClusterMyID(ctx).Result()
		shards, errs[1] = c.ClusterShards(ctx).Result()
		slot, errs[2] = c.ClusterKeySlot(ctx, key).Result()
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
	}
	from := -1
	for _, shard := range shards {
		for _, r := range shard.Slots {
			if r.Start <= slot && slot <= r.End {
				from = slices.Index(ids, shard.Nodes[0].ID)
			}
		}
	}
	if from < 0 {
		return fmt.Errorf("no node has slot %d", slot)
	}
	to := (from + 1 + random.IntN(len(nodes)-1)) % len(nodes)
	pause := func() { <-time.After(time.Duration(random.IntN(40)) * time.Millisecond) }

	if err := clients[to].Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from]).Err(); err != nil {
		return err
	}
	if err := clients[from].Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to]).Err(); err != nil {
		return err
	}
	pause()
	host, port, _ := strings.Cut(nodes[to].Addr, ":")
	keys, err := clients[from].ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := clients[from].Migrate(ctx, host, port, k, 0, time.Second).Err(); err != nil {
			return err
		}
	}
	pause()
	// The new node first, so that no node sends a client back.
	order := []int{to, from}
	for i := range nodes {
		if i != to && i != from {
			order = append(order, i)
		}
	}
	for _, i := range order {
		if err := clients[i].Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]).Err(); err != nil {
			return err
		}
	}
	return nil
}
