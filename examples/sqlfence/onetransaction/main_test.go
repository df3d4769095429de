package main

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

// A transfer happens once, also when the answers to its commits are lost and the event comes again.
func TestMove(t *testing.T) {
	server := testservers.StartPostgreSQL(t)
	network := testservers.Proxy(t, server.Addr)
	open := func(addr string) *sql.DB {
		db, err := sql.Open("postgres", testservers.PostgreSQLURL(addr))
		require.NoError(t, err)
		t.Cleanup(func() { db.Close() })
		return db
	}
	direct, db := open(server.Addr), open(network.Addr)
	schema, err := locks.Schema()
	require.NoError(t, err)
	_, err = direct.ExecContext(t.Context(), schema+"CREATE TABLE accounts (id text PRIMARY KEY, cents bigint NOT NULL); INSERT INTO accounts VALUES ('ann', 1000), ('bob', 0)")
	require.NoError(t, err)
	store, err := sqlstore.New(direct, sqlstore.Options{Table: locks})
	require.NoError(t, err)
	handler := func(ttl time.Duration, db *sql.DB) guard.Wrapped[Transfer, Receipt] {
		g, err := guard.New(store, guard.Options{TTL: ttl, Wait: 20 * time.Second})
		require.NoError(t, err)
		once, err := idempotency.New(g, idempotency.Options{})
		require.NoError(t, err)
		return idempotency.Wrap(once, call, func(ctx context.Context, _ guard.Lock, t Transfer) (Receipt, error) { return move(ctx, db, t) })
	}

	cut := handler(time.Second, db)
	event := Transfer{ID: "t1", From: "ann", To: "bob", Cents: 500}
	network.CutReplies("COMMIT")
	_, err = cut.Handle(t.Context(), event)
	require.Error(t, err)
	require.Positive(t, network.Cuts())
	network.Forward()
	for range 2 {
		receipt, err := cut.Handle(t.Context(), event)
		require.NoError(t, err)
		require.Equal(t, Receipt{ID: "t1", Left: 500}, receipt)
	}
	var cents int64
	require.NoError(t, direct.QueryRowContext(t.Context(), "SELECT cents FROM accounts WHERE id = 'bob'").Scan(&cents))
	require.EqualValues(t, 500, cents)

	t.Run("F61 transfers in both directions at once", func(t *testing.T) {
		whole := handler(30*time.Second, direct)
		var all sync.WaitGroup
		for i := range 20 {
			e := Transfer{ID: fmt.Sprint("both", i), From: "ann", To: "bob", Cents: 1}
			if i%2 == 1 {
				e.From, e.To = e.To, e.From
			}
			all.Go(func() {
				_, err := whole.Handle(t.Context(), e)
				assert.NoError(t, err)
			})
		}
		all.Wait()
	})
}

// The result goes into the table of locks that LOCK_URL names.
func TestTableOfTheURL(t *testing.T) {
	url := testservers.PostgreSQLURL(testservers.StartPostgreSQL(t).Addr)
	before := locks
	t.Cleanup(func() { locks = before })
	t.Setenv("LOCK_URL", url+"&table=app_locks")
	g, db := open()
	t.Cleanup(func() { db.Close() })
	schema, err := sqlstore.Table{Dialect: sqlstore.PostgreSQL, Name: "app_locks"}.Schema()
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), schema+"CREATE TABLE accounts (id text PRIMARY KEY, cents bigint NOT NULL); INSERT INTO accounts VALUES ('ann', 1000), ('bob', 0)")
	require.NoError(t, err)
	once, err := idempotency.New(g, idempotency.Options{})
	require.NoError(t, err)
	for range 2 {
		receipt, err := idempotency.Wrap(once, call, func(ctx context.Context, _ guard.Lock, t Transfer) (Receipt, error) {
			return move(ctx, db, t)
		}).Handle(t.Context(), Transfer{ID: "t1", From: "ann", To: "bob", Cents: 500})
		require.NoError(t, err)
		require.Equal(t, Receipt{ID: "t1", Left: 500}, receipt)
	}
}

// A transfer of less than nothing would take from the account that it is to.
func TestBadTransfers(t *testing.T) {
	for _, bad := range []Transfer{{ID: "t1", From: "ann", To: "bob"}, {ID: "t1", From: "ann", To: "bob", Cents: -1}, {ID: "t1", From: "ann", To: "ann", Cents: 1}} {
		_, err := call(t.Context(), bad)
		require.ErrorContains(t, err, "want 1 or more, between two accounts", bad)
	}
}
