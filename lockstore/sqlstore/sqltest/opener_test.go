package sqltest

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

// The table of a URL is that of the store, the driver does not see it, and no error shows what may be a password.
func TestOpener(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	e := postgreSQL(t)
	e.create(t, e.table("locks_2"))
	var db *sql.DB
	opener := sqlstore.Opener(func(url string) (_ *sql.DB, err error) {
		require.NotContains(t, url, "table")
		if strings.Contains(url, secret) {
			return nil, errors.New(url)
		}
		db, err = sql.Open("postgres", url)
		return db, err
	}, sqlstore.Options{Table: sqlstore.Table{Dialect: e.dialect}})
	server := e.dsn(e.addr)
	s, err := lockstore.Open(t.Context(), server+"&table=locks_2", func(string) string { return "" }, opener)
	require.NoError(t, err)
	acquire(t, s, request("k"))
	require.NoError(t, s.Close())
	require.NoError(t, db.Close())
	for _, bad := range []string{server + "&table=a&table=b", "postgres://u:" + secret + "@h/d", server + "&table=" + secret + "%20"} {
		_, err = lockstore.Open(t.Context(), bad, func(string) string { return "" }, opener)
		require.ErrorIs(t, err, lockstore.ErrInvalid)
		require.NotContains(t, err.Error(), "@h")
	}
}

// The server ends the connection of a holder before its commit: neither the effect nor the completion is there.
func TestConnectionEndedInTransaction(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		id, kill := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d, 60000)"
		switch {
		case e.dialect == sqlstore.MySQL:
			id, kill = "SELECT CONNECTION_ID()", "KILL CONNECTION %d"
		case e.addr == "":
			t.Skip("a file has no server that ends a connection")
		}
		table := e.table("lambdalock")
		db := e.create(t, table)
		run(t, db, "CREATE TABLE effects (item bigint)")
		s := store(t, e.pool(t, e.addr, 3), sqlstore.Options{Table: table})
		lease := acquire(t, s, request("k"))
		tx, err := db.BeginTx(minute(t), nil)
		require.NoError(t, err)
		_, err = tx.Exec("INSERT INTO effects VALUES (1)")
		require.NoError(t, err)
		require.NoError(t, table.Complete(minute(t), tx, lease, []byte("killed"), time.Minute))
		var connection int
		require.NoError(t, tx.QueryRow(id).Scan(&connection))
		run(t, db, fmt.Sprintf(kill, connection))
		require.Error(t, tx.Commit())
		require.Zero(t, count(t, db, "SELECT count(*) FROM effects"))
		status, err := s.Inspect(minute(t), "k")
		require.NoError(t, err)
		require.Equal(t, lockstore.Held, status.State)
		require.NoError(t, s.Complete(minute(t), lease, nil, time.Minute))
	})
}
