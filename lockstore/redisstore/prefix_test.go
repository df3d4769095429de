package redisstore

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Two locks are the same if prefix + key is the same text.
func TestPrefixAndKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := miniStore(t)
		store := func(prefix string) *lockstore.Store {
			store, err := New(driverOf(s).client, Options{Prefix: prefix})
			require.NoError(t, err)
			return store
		}
		acquire(t, store("shop:"), "eu:7")
		requireHeld(t, store("shop:eu:"), "7")
		acquire(t, store("shop-eu:"), "7")
		acquire(t, store("shop:"), "7")
		acquire(t, store(""), "7")
		requireHeld(t, store(DefaultPrefix), "7")
		require.Equal(t, []string{DefaultPrefix + "7", "shop-eu:7", "shop:7", "shop:eu:7"}, m.Keys(), "M29")
	})
}
