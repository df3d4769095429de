package cosmosstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore/castest"
	"github.com/lambdalock/lambdalock/lockstore/internal/httpclient"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestMain(m *testing.M) {
	watchdog.Start()
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

// TestOnServer runs the suite on a server that is not Microsoft's.
func TestOnServer(t *testing.T) {
	addr := testservers.Cosmos(t)
	t.Run("kv", func(t *testing.T) {
		castest.Run(t, func(t *testing.T) (casstore.KV, castest.Table) {
			p := testservers.Proxy(t, addr)
			k := testedKV(t, p.Addr)
			return k, wire{table{k}, p}
		}, storetest.Parallel)
	})
	t.Run("check", func(t *testing.T) { testCheck(t, addr) })
	t.Run("suite", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness { return harness(t, addr) }, storetest.Parallel)
	})
}

// config is for an endpoint without TLS.
func config(t *testing.T, path, addr string) lockstore.Config {
	t.Helper()
	u, err := url.Parse("cosmos://account/" + path + "?endpoint=http://" + addr)
	require.NoError(t, err)
	return lockstore.Config{URL: u, Getenv: func(string) string { return "" }}
}

func client(t *testing.T, path, addr string) (settings, *http.Client) {
	t.Helper()
	set, err := parse(config(t, path, addr))
	require.NoError(t, err)
	h := httpclient.Client(httpclient.ReplyTimeout)
	t.Cleanup(h.CloseIdleConnections)
	return set, h
}

func openStore(t *testing.T, path, addr string) *lockstore.Store {
	t.Helper()
	set, h := client(t, path, addr)
	s, err := newStore(set, h)
	require.NoError(t, err)
	return s
}

func testedKV(t *testing.T, addr string) *kv {
	t.Helper()
	set, h := client(t, "db/locks", addr)
	h.Timeout, h.Transport.(*http.Transport).ResponseHeaderTimeout = 20*time.Second, 0 // a busy machine answers late
	k, err := newKV(set, h)
	require.NoError(t, err)
	return k
}

func harness(t *testing.T, addr string) storetest.Harness {
	k := testedKV(t, addr)
	h := castest.Harness(t, k, options, table{k})
	h.Sequences, h.Corrupt = 4, nil // package casstore compares more, and finds what is damaged
	for name, more := range map[string]string{
		"no lock": `"_x": 1`, "a number": `"lock": 7`, "another key": `"lock": "x", "key": "other"`,
	} {
		h.Foreign[name] = func(t *testing.T, key string) {
			text := fmt.Sprintf(`{"id": %q, "key": %q, %s}`, id(key), key, more)
			if strings.Contains(more, `"key"`) {
				text = fmt.Sprintf(`{"id": %q, %s}`, id(key), more)
			}
			table{k}.put(t, key, text)
		}
	}
	h.Foreign["a lock and another field"] = func(t *testing.T, key string) {
		s, err := casstore.New(k, options) // h.Store would remember what it wrote
		require.NoError(t, err)
		lease, err := s.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		require.NoError(t, s.Release(t.Context(), lease))
		text, err := json.Marshal(map[string]any{"id": id(key), "key": key, "lock": string(table{k}.Value(t, key)), "more": 1})
		require.NoError(t, err)
		table{k}.put(t, key, string(text))
	}
	h.Dump = func(t *testing.T, key string) string { return table{k}.dump(t, key) }
	return h
}

// wire is a table that can break the network.
type wire struct {
	table
	*testservers.CutProxy
}

func (w wire) restore() {
	w.Forward()
	w.Disconnect()
}

// LoseReplies implements castest.Wire.
func (w wire) LoseReplies(*testing.T) func() {
	w.CutReplies("")
	return w.restore
}

// Hang implements castest.Wire.
func (w wire) Hang(*testing.T) func() {
	w.Swallow()
	return w.restore
}

// Unreachable implements castest.Wire.
func (w wire) Unreachable(t *testing.T) casstore.KV {
	return testedKV(t, "127.0.0.1:1") // where no server listens
}

// table is the container as a test sees it.
type table struct{ k *kv }

func (table table) Value(t *testing.T, key string) []byte {
	e, _, err := table.k.Read(t.Context(), key, true)
	require.NoError(t, err)
	return e.Value
}

func (table table) SetValue(t *testing.T, key string, value []byte) {
	if value == nil {
		_, err := table.k.container.DeleteItem(t.Context(), azcosmos.NewPartitionKeyString(id(key)), id(key), nil)
		if refused, ok := errors.AsType[*refusal](err); !ok || !refused.missingItem() {
			require.NoError(t, err)
		}
		return
	}
	text, err := json.Marshal(item{ID: id(key), Key: key, Lock: string(value)})
	require.NoError(t, err)
	table.put(t, key, string(text))
}

func (table table) put(t *testing.T, key, text string) {
	t.Helper()
	_, err := table.k.container.UpsertItem(t.Context(), azcosmos.NewPartitionKeyString(id(key)), []byte(text), nil)
	require.NoError(t, err)
}

func (table table) dump(t *testing.T, key string) string {
	resp, err := table.k.container.ReadItem(t.Context(), azcosmos.NewPartitionKeyString(id(key)), id(key), nil)
	if refused, ok := errors.AsType[*refusal](err); ok && refused.missingItem() {
		return ""
	}
	require.NoError(t, err)
	return string(resp.Value)
}

func testCheck(t *testing.T, addr string) {
	text := func(path string) string {
		findings, err := openStore(t, path, addr).Check(t.Context())
		require.NoError(t, err)
		return fmt.Sprint(findings)
	}
	require.Contains(t, text("db/locks"), "consistency is Session")
	require.NotContains(t, text("db/locks"), "partition key")
	require.Contains(t, text("db/other"), `partition key is "/tenant"`)
	require.Contains(t, text("db/other"), "deletes items 60 s after")
	_, err := openStore(t, "db/none", addr).Check(t.Context())
	require.ErrorIs(t, err, lockstore.ErrCorrupt)
}

func TestCheckAccount(t *testing.T) {
	for account, want := range map[string]string{
		`{"enableMultipleWriteLocations": false, "userConsistencyPolicy": {"defaultConsistencyLevel": "Strong"}}`:           "",
		`{"enableMultipleWriteLocations": false, "userConsistencyPolicy": {"defaultConsistencyLevel": "BoundedStaleness"}}`: "",
		`{"enableMultipleWriteLocations": false, "userConsistencyPolicy": {"defaultConsistencyLevel": "Eventual"}}`:         "Eventual",
		`{"enableMultipleWriteLocations": false, "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"}}`:          "an event",
		`{"enableMultipleWriteLocations": true, "userConsistencyPolicy": {"defaultConsistencyLevel": "BoundedStaleness"}}`:  "several write regions",
	} {
		findings, err := checkAccount(nil, []byte(account))
		require.NoError(t, err)
		require.Equal(t, want != "", len(findings) == 1, account)
		require.Contains(t, fmt.Sprint(findings), want)
	}
	for _, account := range []string{"", "{}", "hello", `{"enableMultipleWriteLocations": false}`} {
		_, err := checkAccount(nil, []byte(account))
		require.Error(t, err, account)
	}
}

// A new client sends one request for one call.
func TestTransportAnswersForTheAccount(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer s.Close()
	store := openStore(t, "db/locks", strings.TrimPrefix(s.URL, "http://"))
	_, err := store.Acquire(t.Context(), request())
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.Len(t, asked, 1, "no request for the account, and no repeated request")
	require.Contains(t, asked[0], "GET /dbs/db/colls/locks/docs/")
}
