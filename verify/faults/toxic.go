// Package faults breaks connections and servers in the ways that internal/testservers
// does not: slow, sliced and reset connections, a service that throttles, a primary
// that fails over, a key that moves to another node of a cluster.
package faults

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// Toxic is a proxy between clients and a server. Without a fault it forwards
// everything.
type Toxic struct {
	Addr string // where clients connect

	t     testing.TB
	proxy *toxiproxy.Proxy
}

// NewToxic starts a Toxic in front of target.
func NewToxic(t testing.TB, target string) *Toxic {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, "toxic", "127.0.0.1:0", target)
	require.NoError(t, proxy.Start())
	t.Cleanup(proxy.Stop)
	return &Toxic{Addr: proxy.Listen, t: t, proxy: proxy}
}

// Slow delays all replies by d.
func (x *Toxic) Slow(d time.Duration) {
	x.add("latency", "downstream", map[string]any{"latency": d.Milliseconds()})
}

// SlowRequests delays all requests by d, so that they are applied late.
func (x *Toxic) SlowRequests(d time.Duration) {
	x.add("latency", "upstream", map[string]any{"latency": d.Milliseconds()})
}

// Slice forwards a few bytes at a time, in both directions.
func (x *Toxic) Slice() {
	for _, stream := range []string{"upstream", "downstream"} {
		x.add("slicer", stream, map[string]any{"average_size": 2, "size_variation": 1, "delay": 10})
	}
}

// Reset ends each connection by a reset when the server's next reply arrives,
// and the reply is lost.
func (x *Toxic) Reset() {
	x.add("reset_peer", "downstream", map[string]any{"timeout": 0})
}

// Heal ends all faults.
func (x *Toxic) Heal() { x.proxy.Toxics.ResetToxics(context.Background()) }

func (x *Toxic) add(kind, stream string, attributes map[string]any) {
	x.t.Helper()
	spec, err := json.Marshal(map[string]any{"type": kind, "stream": stream, "attributes": attributes})
	require.NoError(x.t, err)
	_, err = x.proxy.Toxics.AddToxicJson(strings.NewReader(string(spec)))
	require.NoError(x.t, err)
}
