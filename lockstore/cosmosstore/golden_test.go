package cosmosstore

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
	"github.com/lambdalock/lambdalock/lockstore/storetest/golden"
)

// No server has the time of a test, so the items are kept in memory.
func TestGoldenItems(t *testing.T) {
	golden.Run(t, func(t *testing.T) golden.Storage {
		kv := castest.NewMemory(time.Second)
		return golden.Storage{
			Open: func() *lockstore.Store {
				s, err := casstore.New(kv, options)
				require.NoError(t, err)
				return s
			},
			Read: func() string {
				text, err := json.Marshal(item{ID: id(golden.Key), Key: golden.Key, Lock: string(kv.Value(t, golden.Key))})
				require.NoError(t, err)
				return string(text)
			},
			Write: func(text string) {
				e, err := decode(golden.Key, []byte(text[:len(text)-1]+`,"_etag":"1","_ts":1}`))
				require.NoError(t, err)
				kv.SetValue(t, golden.Key, e.Value)
			},
		}
	})
}
