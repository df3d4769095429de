package casstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
	"github.com/lambdalock/lambdalock/lockstore/storetest/golden"
)

func TestGoldenEntries(t *testing.T) {
	golden.Run(t, func(t *testing.T) golden.Storage {
		kv := castest.NewMemory(time.Millisecond)
		return golden.Storage{
			Open: func() *lockstore.Store {
				s, err := casstore.New(kv, casstore.Options{})
				require.NoError(t, err)
				return s
			},
			Read:  func() string { return string(kv.Value(t, golden.Key)) },
			Write: func(text string) { kv.SetValue(t, golden.Key, []byte(text)) },
		}
	})
}
