// Package functest is what the tests of the functions share: event files that
// are run against their expected answers.
package functest

import (
	"context"
	"encoding/json"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// Opening is what each account has before an event, in cents.
const Opening = 100_000

// World is what an event is run in: locks, and the accounts 7 and 9.
type World struct {
	Guard  *guard.Guard
	Ledger *accounts.Ledger
	Store  *lockstore.Store
}

// NewWorld is one that nobody has been in.
func NewWorld(t *testing.T) World {
	t.Helper()
	store, ledger := memstore.New(nil), accounts.New(&memory{all: map[string]accounts.Record{}})
	open(t, ledger)
	g, err := guard.New(store, guard.Options{})
	require.NoError(t, err)
	return World{g, ledger, store}
}

// memory is an accounts.Store that looks at no fence.
type memory struct {
	mu  sync.Mutex
	all map[string]accounts.Record
}

func (m *memory) Read(_ context.Context, account string) (accounts.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, there := m.all[account]
	if !there {
		return r, accounts.ErrNotFound
	}
	return r, nil
}

func (m *memory) Create(_ context.Context, account string, r accounts.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[account] = r
	return nil
}

func (m *memory) Claim(ctx context.Context, account string, _ lockstore.Fence) (accounts.Record, error) {
	return m.Read(ctx, account)
}

func (m *memory) Write(ctx context.Context, account string, _ lockstore.Fence, r accounts.Record) error {
	return m.Create(ctx, account, r)
}

// Balances are those of the accounts 7 and 9.
func (w World) Balances(t *testing.T) [2]int64 {
	t.Helper()
	var all [2]int64
	for i, account := range []string{"7", "9"} {
		var err error
		all[i], err = w.Ledger.Balance(t.Context(), account)
		require.NoError(t, err)
	}
	return all
}

// Free checks that nobody holds the keys.
func (w World) Free(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		status, err := w.Guard.Inspect(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, lockstore.Free, status.State, "%s, by %v", key, status.Holder)
	}
}

// Held checks that somebody holds the key.
func (w World) Held(t *testing.T, key string) {
	t.Helper()
	status, err := w.Guard.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, lockstore.Held, status.State)
}

// Events runs each event of a function as Lambda does, decoded from its file,
// and compares the answer or the error, as it is on the wire, with the .out.json
// beside it. Where there is a .held beside it, another holds the key that it names.
// check looks at what else came of the event; it has a row for every file.
func Events(t *testing.T, function string, handler func(World) any, check map[string]func(*testing.T, World)) {
	fixtures, err := eventfiles.Read("../../events", function)
	require.NoError(t, err)
	run := map[string]bool{}
	for _, f := range fixtures {
		run[f.Name] = true
		t.Run(f.Name, func(t *testing.T) {
			w := NewWorld(t)
			hold(t, w.Store, f.Held)
			assert.NoError(t, eventfiles.SameAnswer(f.Want, Invoke(t, handler(w), f.Event)))
			look, ok := check[f.Name]
			if !ok {
				t.Fatalf("add a row for %s to main_test.go", f.Name)
			}
			look(t, w)
		})
	}
	for name := range check {
		assert.True(t, run[name], "events/%s.json is not there", name)
	}
}

// OpenStore opens locks that the functions use.
func OpenStore(t *testing.T, rawURL string) *lockstore.Store {
	t.Helper()
	store, err := lockstore.Open(t.Context(), rawURL, func(string) string { return "local" }, dynamostore.Opener)
	require.NoError(t, err)
	return store
}

// OpenLedger opens accounts, and makes 7 and 9.
func OpenLedger(t *testing.T, rawURL string) *accounts.Ledger {
	t.Helper()
	u, err := lockstore.ParseURL(rawURL)
	require.NoError(t, err)
	ledger, err := accounts.Open(u, func(string) string { return "local" })
	require.NoError(t, err)
	open(t, ledger)
	return ledger
}

// open makes the accounts 7 and 9.
func open(t *testing.T, ledger *accounts.Ledger) {
	t.Helper()
	for _, account := range []string{"7", "9"} {
		require.NoError(t, ledger.Create(t.Context(), account, Opening))
	}
}

// hold makes another hold the key, if there is one.
func hold(t *testing.T, store *lockstore.Store, key string) {
	t.Helper()
	if key == "" {
		return
	}
	_, err := store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
}

// Invoke runs one event as Lambda does, and returns what is then on the wire: the
// answer or the error.
func Invoke(t *testing.T, handler any, in []byte) []byte {
	t.Helper()
	out, err := lambda.NewHandler(handler).Invoke(t.Context(), in)
	if err == nil {
		return out
	}
	// As aws-lambda-go reports an error: by the name of its outermost type.
	typ := reflect.TypeOf(err)
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	out, err = json.Marshal(map[string]string{"errorType": typ.Name(), "errorMessage": err.Error()})
	require.NoError(t, err)
	return out
}
