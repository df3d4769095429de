// Package functest is what the tests of the functions share: event files that
// are run against their expected answers.
package functest

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
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

	accounts *memory
}

// NewWorld is one that nobody has been in.
func NewWorld(t *testing.T) World {
	t.Helper()
	w := World{Store: memstore.New(nil), accounts: &memory{all: map[string]accounts.Record{}}}
	w.Ledger = accounts.New(w.accounts)
	var err error
	w.Guard, err = guard.New(w.Store, guard.Options{})
	require.NoError(t, err)
	w.Put("7", Opening)
	w.Put("9", Opening)
	return w
}

// memory is an accounts.Store that looks at no fence, and compares nothing.
type memory struct {
	mu  sync.Mutex
	all map[string]accounts.Record
}

func (m *memory) Claim(_ context.Context, account string, _ lockstore.Fence) (accounts.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, there := m.all[account]
	if !there {
		return r, accounts.ErrNotFound
	}
	return r, nil
}

func (m *memory) Write(_ context.Context, account string, _ lockstore.Fence, _ int64, r accounts.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[account] = r
	return nil
}

// Put makes an account.
func (w World) Put(account string, cents int64) {
	_ = w.accounts.Write(context.Background(), account, 0, 0, accounts.Record{Balance: cents}) // it never fails
}

// Balance is that of an account.
func (w World) Balance(t *testing.T, account string) int64 {
	t.Helper()
	r, err := w.accounts.Claim(t.Context(), account, 0)
	require.NoError(t, err)
	return r.Balance
}

// Balances are those of the accounts 7 and 9.
func (w World) Balances(t *testing.T) [2]int64 {
	t.Helper()
	return [2]int64{w.Balance(t, "7"), w.Balance(t, "9")}
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

// Accounts is the table of the accounts, as an operator sees it.
type Accounts struct {
	*accounts.Ledger
	client *dynamodb.Client
	table  string
}

// OpenAccounts opens the accounts at a URL.
func OpenAccounts(t *testing.T, rawURL string, getenv func(string) string) Accounts {
	t.Helper()
	u, err := lockstore.ParseURL(rawURL)
	require.NoError(t, err)
	ledger, err := accounts.Open(u, getenv)
	require.NoError(t, err)
	client, err := dynamostore.Client(lockstore.Config{URL: u, Getenv: getenv})
	require.NoError(t, err)
	return Accounts{ledger, client, u.Host}
}

// Put makes an account, or makes it new.
func (a Accounts) Put(t *testing.T, account string, cents int64) {
	t.Helper()
	item := map[string]types.AttributeValue{"account": &types.AttributeValueMemberS{Value: account}, "balance": &types.AttributeValueMemberN{Value: fmt.Sprint(cents)}}
	_, err := a.client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &a.table, Item: item})
	require.NoError(t, err)
}

// Balance is that of an account, or "" if there is none.
func (a Accounts) Balance(t *testing.T, account string) string {
	t.Helper()
	found, err := a.client.GetItem(t.Context(), &dynamodb.GetItemInput{
		TableName: &a.table, Key: map[string]types.AttributeValue{"account": &types.AttributeValueMemberS{Value: account}}, ConsistentRead: aws.Bool(true),
	})
	require.NoError(t, err)
	n, _ := found.Item["balance"].(*types.AttributeValueMemberN)
	if n == nil {
		return ""
	}
	return n.Value
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
