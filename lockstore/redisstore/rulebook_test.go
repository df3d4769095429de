package redisstore

import (
	"testing"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// TestRuleBookOnServers compares the store with the rule book by random requests to real servers.
func TestRuleBookOnServers(t *testing.T) {
	on := func(start func(testing.TB, ...string) string) func(*testing.T) storetest.Harness {
		return func(t *testing.T) storetest.Harness {
			url := "redis://" + start(t)
			return harness(t, openClient(t, url), openClient(t, url))
		}
	}
	leasesim.RuleBookOnServers(t, "random requests to Redis and Valkey and to the rule book", 1000, map[string]func(*testing.T) storetest.Harness{
		"Redis": on(testservers.Redis), "Valkey": on(testservers.Valkey),
	})
}
