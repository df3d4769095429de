package etcdstore

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestOnServer(t *testing.T) {
	addr := testservers.Etcd(t).Addr
	t.Run("kv", func(t *testing.T) {
		t.Parallel()
		castest.Run(t, func(t *testing.T) (casstore.KV, castest.Table) {
			w := &wire{CutProxy: testservers.Proxy(t, addr), RoundTripper: clock(t, addr)}
			w.table = table{open(t, w.Addr, w, grpc.WithChainUnaryInterceptor(w.intercept))}
			return w.kv, w
		}, storetest.Parallel)
	})
	t.Run("suite", func(t *testing.T) {
		t.Parallel()
		k := open(t, addr, clock(t, addr)) // one for all cases: each has its own keys
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			h := castest.Harness(t, k, options(Options{}), table{k})
			h.Sequences, h.Corrupt = 4, nil           // package casstore compares more, and finds what is damaged
			h.TakeoverDelay += 400 * time.Millisecond // a busy machine: a process knows the time of its last reply
			h.Foreign["no time"] = func(t *testing.T, key string) {
				_, err := k.Put(t.Context(), k.prefix+key, "hello")
				require.NoError(t, err)
			}
			h.Dump = func(t *testing.T, key string) string { return string(table{k}.raw(t, key)) }
			return h
		}, storetest.Parallel)
	})
}

// silent is a network on which some members do not answer.
type silent struct{ asked, members []string }

func (s *silent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked = append(s.asked, r.URL.Host)
	if slices.Contains(s.members, r.URL.Host) {
		<-r.Context().Done()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{Header: http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}}, Body: http.NoBody}, nil
}

// A member that does not answer takes the time of one request, and of no other.
func TestSilentMembers(t *testing.T) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://a", "http://b", "http://c"}})
	require.NoError(t, err)
	defer client.Close()
	synctest.Test(t, func(t *testing.T) {
		network := &silent{members: []string{"a", "b"}}
		k := newKV(Options{Client: client, HTTP: &http.Client{Timeout: time.Second, Transport: network}})
		var failed []bool
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			_, err := k.now(ctx)
			cancel()
			failed = append(failed, err != nil)
		}
		require.Equal(t, []bool{true, false, false, false, false}, failed)
		require.Equal(t, []string{"a", "b", "c", "c", "c", "c"}, network.asked)
	})
}

// closedPort is an address where no server listens.
const closedPort = "127.0.0.1:1"

// open returns a KV of the server at addr.
func open(t *testing.T, addr string, clock http.RoundTripper, options ...grpc.DialOption) *kv {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + addr}, DialOptions: options})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return newKV(Options{Client: client, Prefix: "locks", HTTP: &http.Client{Transport: clock}})
}

// clock connects to the server at addr, whatever the request says.
func clock(t *testing.T, addr string) *http.Transport {
	transport := &http.Transport{MaxIdleConnsPerHost: 32, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// wire is a table that can break the connection of etcd's client. The time comes by another connection.
type wire struct {
	table
	*testservers.CutProxy
	http.RoundTripper
	loses, hangs atomic.Bool
}

// RoundTrip also answers while nothing else does. On a busy machine the server could take too long.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.hangs.Load() {
		date := time.Now().UTC().Format(http.TimeFormat)
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Date": {date}}, Body: http.NoBody}, nil
	}
	return w.RoundTripper.RoundTrip(r)
}

// intercept loses the reply, which the proxy cannot: the server sends other frames before it.
func (w *wire) intercept(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := call(ctx, method, request, reply, conn, options...)
	if w.loses.Load() {
		return status.Error(codes.Unavailable, "error reading from server: EOF") // as grpc says it
	}
	return err
}

// LoseReplies implements castest.Wire.
func (w *wire) LoseReplies(*testing.T) func() {
	w.loses.Store(true)
	return func() { w.loses.Store(false) }
}

// Hang implements castest.Wire.
func (w *wire) Hang(*testing.T) func() {
	w.Swallow()
	w.hangs.Store(true)
	return func() {
		w.hangs.Store(false)
		w.Forward()
		w.Disconnect()
	}
}

// Unreachable implements castest.Wire.
func (w *wire) Unreachable(t *testing.T) casstore.KV {
	return open(t, closedPort, clock(t, closedPort))
}

// table is the keys as a test sees them.
type table struct{ *kv }

// Value implements castest.Table.
func (n table) Value(t *testing.T, key string) []byte {
	_, value, _ := bytes.Cut(n.raw(t, key), []byte(" "))
	return value
}

// raw is what etcd has, with the time.
func (n table) raw(t *testing.T, key string) []byte {
	r, err := n.Get(t.Context(), n.prefix+key)
	require.NoError(t, err)
	if len(r.Kvs) == 0 {
		return nil
	}
	return r.Kvs[0].Value
}

// SetValue implements castest.Table.
func (n table) SetValue(t *testing.T, key string, value []byte) {
	if value == nil {
		_, err := n.Delete(t.Context(), n.prefix+key)
		require.NoError(t, err)
		return
	}
	now, err := n.now(t.Context())
	require.NoError(t, err)
	_, err = n.Put(t.Context(), n.prefix+key, fmt.Sprintf("%d %s", now.Unix(), value))
	require.NoError(t, err)
}
