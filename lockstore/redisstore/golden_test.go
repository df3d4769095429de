package redisstore

import (
	"context"
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/golden"
)

func TestGoldenEntries(t *testing.T) {
	golden.Run(t, func(t *testing.T) golden.Storage {
		m := miniredis.NewMiniRedis()
		t.Cleanup(m.Close)
		return golden.Storage{
			Parks: true,
			Open: func() *lockstore.Store {
				s, err := New(openDialer(t, "redis://127.0.0.1", func(context.Context, string, string) (net.Conn, error) { return m.Dial() }), Options{})
				require.NoError(t, err)
				return s
			},
			Read: func() string {
				entry, err := m.Get(DefaultPrefix + golden.Key)
				require.NoError(t, err)
				return entry
			},
			Write: func(text string) { require.NoError(t, m.Set(DefaultPrefix+golden.Key, text)) },
		}
	})
}
