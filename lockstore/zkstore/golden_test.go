package zkstore

import (
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
	"github.com/lambdalock/lambdalock/lockstore/storetest/golden"
)

// No server has the time of a test, so the data of the nodes are kept in memory.
func TestGoldenNodes(t *testing.T) {
	birth := strings.Repeat("A", birthLength)
	golden.Run(t, func(t *testing.T) golden.Storage {
		kv := castest.NewMemory(time.Millisecond)
		return golden.Storage{
			Open: func() *lockstore.Store {
				s, err := casstore.New(kv, casstore.Options{Name: "zkstore", MaxClockSkew: defaultMaxClockSkew})
				require.NoError(t, err)
				return s
			},
			Read: func() string { return string(encode(birth, kv.Value(t, golden.Key))) },
			Write: func(text string) {
				e, err := decode([]byte(text), &zk.Stat{})
				require.NoError(t, err)
				kv.SetValue(t, golden.Key, e.Value)
			},
		}
	})
}
