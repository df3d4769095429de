package datastore

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
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

// TestOnEmulator runs the suite on Google's emulator.
func TestOnEmulator(t *testing.T) {
	addr := testservers.Datastore(t).Addr
	open := func(t *testing.T) *kv { return patient(t, addr) }
	t.Run("kv", func(t *testing.T) {
		testNames(t, open(t))
		castest.Run(t, func(t *testing.T) (casstore.KV, castest.Table) {
			k := open(t)
			return k, table{k}
		}, storetest.Parallel)
	})
	t.Run("suite", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Harness {
			h := harness(t, open(t))
			h.Sequences, h.Corrupt = 4, nil // package casstore compares more, and finds what is damaged
			return h
		}, storetest.Parallel)
	})
}

// wire is a table that can break the network.
type wire struct {
	table
	f *fake
}

func (w wire) during(kind fault, match string) (restore func()) {
	w.f.set(kind, match)
	return func() { w.f.set(works, "") }
}

// LoseReplies implements castest.Wire.
func (w wire) LoseReplies(*testing.T) func() { return w.during(loseReply, ":commit") }

// Hang implements castest.Wire.
func (w wire) Hang(*testing.T) func() { return w.during(hangs, "") }

// Unreachable implements castest.Wire.
func (w wire) Unreachable(t *testing.T) casstore.KV {
	none := newFake()
	none.set(refuses, "")
	return onFake(t, none)
}

// TestOnFake runs the suite in virtual time. It breaks the network, and sets the service's
// clock.
func TestOnFake(t *testing.T) {
	t.Run("kv", func(t *testing.T) {
		testNames(t, onFake(t, newFake()))
		castest.Run(t, func(t *testing.T) (casstore.KV, castest.Table) {
			f := newFake()
			k := onFake(t, f)
			return k, wire{table{k}, f}
		}, synctest.Test)
	})
	t.Run("suite", func(t *testing.T) {
		verifyrecord.SkipWithRace(t) // it runs on the emulator
		storetest.Run(t, harnessOnFake, synctest.Test)
	})
}

// TestRuleBook compares the store on the fake with the rule book by random requests.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test . -run TestRuleBook
// replays one seed.
func TestRuleBook(t *testing.T) {
	leasesim.RuleBook(t, "random requests over Datastore's fake and to the rule book", 1, 300,
		map[string]func(*testing.T) storetest.Harness{"the fake": harnessOnFake})
}

func harnessOnFake(t *testing.T) storetest.Harness {
	f := newFake()
	h := harness(t, onFake(t, f))
	w := wire{f: f}
	h.LoseReplies, h.Hang = w.LoseReplies, w.Hang
	h.Unreachable = func(t *testing.T) *lockstore.Store { return store(t, w.Unreachable(t).(*kv)) }
	h.ShiftClock = func(_ *testing.T, d time.Duration) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.shift = d
	}
	return h
}

// testNames has keys of which Google keeps the names for itself.
func testNames(t *testing.T, k *kv) {
	for _, key := range []string{"__k__", "=__k__", "=="} {
		_, err := k.Write(t.Context(), key, []byte(key), "")
		require.NoError(t, err, key)
		e, _, err := k.Read(t.Context(), key, true)
		require.NoError(t, err, key)
		require.Equal(t, key, string(e.Value))
	}
}

// harness is for one case of the suite.
func harness(t *testing.T, k *kv) storetest.Harness {
	h := castest.Harness(t, k, options, table{k})
	for name, properties := range map[string]any{
		"no property": object{},
		"a number":    object{"lock": object{"integerValue": "7"}},
		"bytes":       object{"lock": object{"blobValue": "eA=="}},
	} {
		h.Foreign[name] = func(t *testing.T, key string) { table{k}.set(t, key, properties) }
	}
	h.Foreign["a lock and another property"] = func(t *testing.T, key string) {
		s := store(t, k) // h.Store would remember what it wrote
		lease, err := s.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		require.NoError(t, s.Release(t.Context(), lease))
		table{k}.set(t, key, object{property: text(string(table{k}.Value(t, key))), "more": text("x")})
	}
	h.Dump = func(t *testing.T, key string) string { return table{k}.dump(t, key) }
	return h
}

// newKV is the KV of an emulator.
func newKV(t *testing.T, addr string) *kv {
	t.Helper()
	set, err := parse(config(t, "datastore://project/database", map[string]string{"DATASTORE_EMULATOR_HOST": addr}))
	require.NoError(t, err)
	k := &kv{settings: set, client: httpclient.Client(httpclient.ReplyTimeout)}
	t.Cleanup(k.client.CloseIdleConnections)
	return k
}

// patient is newKV with more time: a busy machine answers late, the emulator's first answers
// above all.
func patient(t *testing.T, addr string) *kv {
	t.Helper()
	k := newKV(t, addr)
	k.client.Timeout, k.client.Transport.(*http.Transport).ResponseHeaderTimeout = 20*time.Second, 0
	return k
}

// onFake returns a KV of a fake.
func onFake(t *testing.T, f *fake) *kv {
	t.Helper()
	t.Cleanup(f.conns.Wait)
	k := newKV(t, "127.0.0.1:1")
	k.client.Transport.(*http.Transport).DialContext = f.dial
	return k
}

func store(t *testing.T, k *kv) *lockstore.Store {
	t.Helper()
	s, err := casstore.New(k, options)
	require.NoError(t, err)
	return s
}

func config(t *testing.T, rawURL string, env map[string]string) lockstore.Config {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	return lockstore.Config{URL: u, Getenv: func(name string) string { return env[name] }}
}

// table is the kind as a test sees it.
type table struct{ k *kv }

func (table table) Value(t *testing.T, key string) []byte {
	e, _, err := table.k.Read(t.Context(), key, true)
	require.NoError(t, err)
	return e.Value
}

func (table table) SetValue(t *testing.T, key string, value []byte) {
	if value == nil {
		table.commit(t, object{"delete": table.k.key(key)})
		return
	}
	table.set(t, key, object{property: text(string(value))})
}

func (table table) set(t *testing.T, key string, properties any) {
	table.commit(t, object{"upsert": object{"key": table.k.key(key), "properties": properties}})
}

func (table table) commit(t *testing.T, mutation any) {
	t.Helper()
	err := table.k.call(t.Context(), "commit", object{"databaseId": table.k.database, "mode": "NON_TRANSACTIONAL", "mutations": []any{mutation}}, &struct{}{})
	require.NoError(t, err)
}

// dump is an entity without the time of the read.
func (table table) dump(t *testing.T, key string) string {
	var reply struct {
		Found json.RawMessage `json:"found"`
	}
	require.NoError(t, table.k.call(t.Context(), "lookup", object{"databaseId": table.k.database, "keys": []any{table.k.key(key)}}, &reply))
	return string(reply.Found)
}

func text(s string) object {
	return object{"stringValue": s, "excludeFromIndexes": true}
}
