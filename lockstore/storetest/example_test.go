package storetest_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// The shortest conformance test, in virtual time. It skips the cases that need more fields
// of the harness.
func ExampleRun() {
	test := func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			return storetest.Harness{Store: memstore.New(nil)}
		}, synctest.Test)
	}
	_ = test // in your test file: func TestStore(t *testing.T)
}

// A store on a real server. The harness gives the suite access to the entries, and to a
// server that refuses connections.
func ExampleHarness() {
	test := func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
		open := func(t *testing.T, c *redis.Client) *lockstore.Store {
			store, err := redisstore.New(c, redisstore.Options{Prefix: "test:"})
			if err != nil {
				t.Fatal(err)
			}
			return store
		}
		do := func(t *testing.T, command ...any) {
			if err := client.Do(context.Background(), command...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			return storetest.Harness{
				Store: open(t, client),
				Unreachable: func(t *testing.T) *lockstore.Store {
					return open(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}))
				},
				Delete: func(t *testing.T, key string) { do(t, "DEL", "test:"+key) },
				Dump: func(t *testing.T, key string) string {
					return client.Dump(context.Background(), "test:"+key).String()
				},
				Foreign: map[string]func(*testing.T, string){
					"a list": func(t *testing.T, key string) { do(t, "RPUSH", "test:"+key, "a") },
					"a text": func(t *testing.T, key string) { do(t, "SET", "test:"+key, "hello") },
				},
			}
		}, storetest.Parallel)
	}
	_ = test // in your test file: func TestStore(t *testing.T)
}
