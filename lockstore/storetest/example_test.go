package storetest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// The shortest conformance test, of a store that lives in virtual time. It
// skips the cases that must reach behind the store.
func ExampleRun() {
	test := func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			return storetest.Harness{Store: memstore.New(nil)}
		}, synctest.Test)
	}
	_ = test // in a package of its own: func TestStore(t *testing.T)
}

// A store on a real server: the suite reaches its entries, and a server that is
// not there.
func ExampleHarness() {
	test := func(t *testing.T) {
		ctx := context.Background() // the hooks are used until the end of a test
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
		nobody := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
		open := func(t *testing.T, c *redis.Client) lockstore.Store {
			store, err := redisstore.New(c, redisstore.Options{Prefix: "test:"})
			if err != nil {
				t.Fatal(err)
			}
			return store
		}
		ok := func(t *testing.T, err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			return storetest.Harness{
				Store: open(t, client),
				Unreachable: func(t *testing.T) lockstore.Store {
					return open(t, nobody)
				},
				Delete: func(t *testing.T, key string) {
					ok(t, client.Del(ctx, "test:"+key).Err())
				},
				Snapshot: func(t *testing.T, key string) func() {
					entry, err := client.Get(ctx, "test:"+key).Result()
					ok(t, err)
					return func() { ok(t, client.Set(ctx, "test:"+key, entry, time.Hour).Err()) }
				},
				Dump: func(t *testing.T, key string) string {
					entry, err := client.Dump(ctx, "test:"+key).Result()
					if !errors.Is(err, redis.Nil) { // there may be no entry
						ok(t, err)
					}
					return entry
				},
				Foreign: map[string]func(*testing.T, string){
					"list":  func(t *testing.T, key string) { ok(t, client.RPush(ctx, "test:"+key, "a").Err()) },
					"plain": func(t *testing.T, key string) { ok(t, client.Set(ctx, "test:"+key, "hello", 0).Err()) },
				},
				Corrupt: map[string]func(*testing.T, string){
					"cut": func(t *testing.T, key string) {
						entry, err := client.Get(ctx, "test:"+key).Result()
						ok(t, err)
						ok(t, client.Set(ctx, "test:"+key, entry[:len(entry)/2], redis.KeepTTL).Err())
					},
				},
			}
		}, storetest.Parallel)
	}
	_ = test // in a package of its own: func TestStore(t *testing.T)
}
