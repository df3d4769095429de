package faults

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

func TestToxic(t *testing.T) {
	addr := testservers.Redis(t)
	x := NewToxic(t, addr)
	c := client(t, x.Addr)
	ctx := t.Context()
	took := func() time.Duration {
		start := time.Now()
		require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
		return time.Since(start)
	}
	took()
	x.Slow(300 * time.Millisecond)
	require.GreaterOrEqual(t, took(), 300*time.Millisecond)
	x.Heal()
	x.SlowRequests(300 * time.Millisecond)
	require.GreaterOrEqual(t, took(), 300*time.Millisecond)
	x.Heal()
	require.Less(t, took(), 300*time.Millisecond)

	x.Reset()
	require.Error(t, c.Set(ctx, "reset", "applied", 0).Err())
	x.Heal()
	require.Equal(t, "applied", client(t, addr).Get(ctx, "reset").Val(), "the reply was lost, not the request")

	x.Slice()
	conn, err := net.Dial("tcp", x.Addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "ECHO "+strings.Repeat("a", 200)+"\r\n")
	require.NoError(t, err)
	reads, got := 0, new(bytes.Buffer)
	for b := make([]byte, 1000); got.Len() < 208; reads++ {
		n, err := conn.Read(b)
		require.NoError(t, err)
		got.Write(b[:n])
	}
	require.Greater(t, reads, 3, "in many pieces")
	require.Equal(t, "$200\r\n"+strings.Repeat("a", 200)+"\r\n", got.String())
}

func TestThrottle(t *testing.T) {
	applied := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { applied++ }))
	defer server.Close()
	x := NewThrottle(t, server.URL, 1)
	ask := func(action string) (status int, body string) {
		r, err := http.NewRequest(http.MethodPost, x.Endpoint, nil)
		require.NoError(t, err)
		r.Header.Set("X-Amz-Target", "DynamoDB_20120810."+action)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NotEmpty(t, resp.Header.Get("Date"), "the store reads its clock there")
		return resp.StatusCode, string(text)
	}
	for range 50 {
		status, _ := ask("UpdateItem")
		require.Equal(t, http.StatusOK, status)
	}
	x.Set(true)
	status, _ := ask("GetItem")
	require.Equal(t, http.StatusOK, status)
	applied = 0
	kinds := map[string]int{}
	for range 200 {
		status, body := ask("UpdateItem")
		switch {
		case status == http.StatusOK:
			kinds["ok"]++
		case strings.Contains(body, "ProvisionedThroughputExceededException"):
			require.Equal(t, http.StatusBadRequest, status)
			kinds["throttled"]++
		default:
			require.Equal(t, http.StatusInternalServerError, status)
			kinds["failed"]++
		}
	}
	require.Greater(t, kinds["throttled"], 50)
	require.Greater(t, kinds["failed"], 20)
	require.Greater(t, applied, kinds["ok"], "some were applied before they failed")
	require.Less(t, applied, kinds["ok"]+kinds["failed"], "and some were not")
}

func TestPair(t *testing.T) {
	p := StartPair(t, testservers.RedisServer)
	ctx := t.Context()
	set := func(key string) {
		t.Helper()
		require.NoError(t, client(t, p.Primary()).Set(ctx, key, "v", 0).Err())
	}
	has := func(key string) bool { return client(t, p.Primary()).Exists(ctx, key).Val() == 1 }

	set("before")
	first := p.Primary()
	p.Switch()
	require.NotEqual(t, first, p.Primary())
	require.True(t, has("before"))
	set("kept")

	second := p.Primary()
	f := p.FailOver(func() { set("lost") })
	require.NotEqual(t, second, p.Primary())
	require.True(t, has("before") && has("kept"))
	require.False(t, has("lost"), "the replica was cut off")
	require.True(t, f.CutFrom.Before(f.CutTo) && f.CutTo.Before(f.DownFrom) && f.DownFrom.Before(f.DownTo))

	set("after")
	p.Switch() // both servers run again
	require.True(t, has("kept") && has("after"))
}

// The old primary runs on as a replica, and knows nothing new until the lag is over.
func TestDemote(t *testing.T) {
	for _, program := range []string{testservers.RedisServer, testservers.ValkeyServer} {
		t.Run(program, func(t *testing.T) {
			p := StartPair(t, program)
			ctx := t.Context()
			set := func(key string) {
				t.Helper()
				require.NoError(t, client(t, p.Primary()).Set(ctx, key, "v", 0).Err())
			}
			has := func(key string) bool { return client(t, p.Primary()).Exists(ctx, key).Val() == 1 }
			for round, lose := range []func(){nil, func() { set("lost") }, nil} {
				kept, later := fmt.Sprint("kept ", round), fmt.Sprint("later ", round)
				set(kept)
				old := client(t, p.Primary()).Conn()
				require.NoError(t, old.Ping(ctx).Err())
				first := p.Primary()
				f := p.Demote(lose, func() {
					require.NotEqual(t, first, p.Primary())
					require.True(t, has(kept))
					require.False(t, has("lost"), "the replica was cut off")
					set(later)
					require.ErrorContains(t, old.Set(ctx, "k", "v", 0).Err(), "READONLY")
					require.Zero(t, old.Exists(ctx, later).Val(), "the connection is open, and the old primary lags")
				})
				require.NoError(t, old.Close())
				require.True(t, has(kept) && has(later))
				require.EqualValues(t, 1, client(t, first).Exists(ctx, later).Val(), "it has caught up")
				require.EqualValues(t, 0, client(t, first).Exists(ctx, "lost").Val())
				require.True(t, f.DownFrom.Before(f.DownTo))
				require.Equal(t, lose == nil, f.CutFrom.IsZero())
			}
		})
	}
}

func TestMoveSlot(t *testing.T) {
	nodes := testservers.StartCluster(t, testservers.RedisServer)
	ctx := t.Context()
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr}, Protocol: 2, DisableIdentity: true})
	defer c.Close()
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
	where := func() (at int) {
		at = -1
		for i, n := range nodes {
			if len(client(t, n.Addr).Keys(ctx, "k").Val()) == 1 {
				require.Equal(t, -1, at, "on one node only")
				at = i
			}
		}
		return at
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 5 {
		before := where()
		MoveSlot(t, nodes, "k", random)
		require.NotEqual(t, before, where())
		require.Equal(t, "v", c.Get(ctx, "k").Val())
	}
}
