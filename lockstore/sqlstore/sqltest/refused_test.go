package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

// refuses says that a store with this DSN refuses to lock, and names why.
func refuses(t *testing.T, e engine, dsn string, table sqlstore.Table, want error, says string) {
	t.Helper()
	db, err := sql.Open(e.driver, dsn)
	require.NoError(t, err)
	s := store(t, limited(t, db, 2), sqlstore.Options{Table: table})
	_, err = s.Acquire(minute(t), request("k"))
	require.ErrorIs(t, err, want)
	require.ErrorContains(t, err, says)
	require.ErrorContains(t, err, "not applied")
}

func TestRefusalsOfMariaDB(t *testing.T) {
	t.Parallel()
	e, table, admin := onMariaDB(testservers.MariaDB(t).Addr, "locks").created(t)
	own := e.dsn(e.addr)
	as := func(user string) string { return user + "@tcp(" + e.addr + ")/locks" }
	run(t, admin, "DELETE FROM mysql.global_priv WHERE user = ''") // those without a name would come before these
	run(t, admin, "FLUSH PRIVILEGES")
	run(t, admin, "CREATE USER 'reads', 'writes', 'updates'")
	run(t, admin, "GRANT SELECT, UPDATE ON locks.* TO 'updates'")
	run(t, admin, "GRANT SELECT ON locks.lambdalock TO 'reads'")
	run(t, admin, "GRANT SELECT, INSERT, UPDATE ON locks.* TO 'writes'")
	run(t, admin, "CREATE TABLE theirs (`key` text)")
	refuses(t, e, own+"?autocommit=0", table, lockstore.ErrUnavailable, "autocommit is off")
	refuses(t, e, own+"?tx_isolation=%27READ-UNCOMMITTED%27", table, lockstore.ErrUnavailable, "READ UNCOMMITTED")
	refuses(t, e, own+"?timestamp=1000000000", table, lockstore.ErrUnavailable, "SET timestamp")
	refuses(t, e, as("reads"), table, lockstore.ErrUnavailable, "needs SELECT, INSERT and UPDATE")
	refuses(t, e, own, e.table("theirs"), lockstore.ErrCorrupt, "lockctl schema")
	refuses(t, e, own, e.table("none"), lockstore.ErrCorrupt, "lockctl schema")
	refuses(t, e, own, sqlstore.Table{Dialect: sqlstore.PostgreSQL}, lockstore.ErrUnavailable, "SQL syntax")

	// Settings of a session that change nothing.
	db, err := sql.Open("mysql", own+"?sql_mode=%27ANSI_QUOTES,NO_BACKSLASH_ESCAPES%27&time_zone=%27%2B05:45%27&charset=latin1&tx_isolation=%27SERIALIZABLE%27&clientFoundRows=true&parseTime=true")
	require.NoError(t, err)
	odd, usual := store(t, limited(t, db, 2), sqlstore.Options{Table: table}), e.store(t, table, 2)
	for _, key := range []string{"ä'\\\U0001f512", "a", "A", "a "} {
		lease := acquire(t, odd, request(key))
		_, err = usual.Acquire(minute(t), request(key))
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.NoError(t, odd.Release(minute(t), lease))
		require.NoError(t, usual.Release(minute(t), acquire(t, usual, request(key))))
	}

	check := func(s *lockstore.Store) string {
		found, err := s.Check(minute(t))
		require.NoError(t, err)
		return fmt.Sprint(found)
	}
	require.Contains(t, check(usual), "innodb_lock_wait_timeout")
	require.Contains(t, check(usual), "innodb_flush_log_at_trx_commit") // 2 in tests
	run(t, admin, "SET GLOBAL innodb_lock_wait_timeout = 2, innodb_flush_log_at_trx_commit = 1")
	require.Equal(t, "[]", check(e.store(t, table, 2)))
	require.Contains(t, check(e.store(t, e.table("theirs"), 2)), "no table of locks")
	updates, err := sql.Open("mysql", as("updates"))
	require.NoError(t, err)
	require.Contains(t, check(store(t, limited(t, updates, 2), sqlstore.Options{Table: table})), "needs SELECT, INSERT and UPDATE")
	run(t, admin, "SET GLOBAL read_only = 1")
	refuses(t, e, as("writes"), table, lockstore.ErrUnavailable, "only reads")
	run(t, admin, "SET GLOBAL read_only = 0")
}

// What the program has done on a connection of the pool changes nothing.
func TestChangedConnectionsOfMariaDB(t *testing.T) {
	t.Parallel()
	e, table, admin := mariaDB(t).created(t)
	usual := e.store(t, table, 2)
	// changed is a store with one connection, which does something before each write, and sends another text.
	changed := func(before string, edit *strings.Replacer) *lockstore.Store {
		return store(t, e.edited(t, 1, func(conn driver.Conn, statement string) string {
			if !strings.HasPrefix(statement, "SELECT") && before != "" {
				_, err := conn.(driver.ExecerContext).ExecContext(t.Context(), before, nil)
				require.NoError(t, err)
			}
			return edit.Replace(statement)
		}), sqlstore.Options{Table: table})
	}
	none := strings.NewReplacer()
	require.NoError(t, usual.Release(minute(t), acquire(t, usual, request("released"))))
	for _, key := range []string{"free", "released"} {
		_, err := changed("SET autocommit = 0", none).Acquire(minute(t), request(key))
		require.ErrorContains(t, err, "autocommit is off", "it would be rolled back")
		acquire(t, usual, request(key)) // nobody has it
	}

	// SET timestamp of a while ago changes nothing, and one that is ahead is refused.
	late := request("late")
	acquire(t, changed("SET timestamp = UNIX_TIMESTAMP(SYSDATE(6)) - 30", none), late)
	late.Owner = lockstore.NewOwner()
	_, err := usual.Acquire(minute(t), late)
	refused, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok, "%v", err)
	require.Greater(t, refused.StateEndsIn, 45*time.Second, "the lease began when it was written")
	_, err = changed("SET timestamp = UNIX_TIMESTAMP(SYSDATE(6)) + 30", none).Acquire(minute(t), request("early"))
	require.ErrorContains(t, err, "SET timestamp")
	acquire(t, usual, request("early"))
	_, err = changed("", strings.NewReplacer("SYSDATE(6)", "NOW(6)")).Acquire(minute(t), request("c"))
	require.ErrorContains(t, err, "sysdate-is-now")

	run(t, admin, "CREATE DATABASE other")
	run(t, admin, "CREATE TABLE other.lambdalock LIKE "+table.Name)
	moved := changed("USE other", none)
	for _, key := range []string{"a", "b"} {
		acquire(t, moved, request(key))
		_, err := usual.Acquire(minute(t), request(key))
		require.ErrorIs(t, err, lockstore.ErrRefused)
	}
	require.Zero(t, count(t, admin, "SELECT count(*) FROM other.lambdalock"))
	_, err = sqlstore.New(admin, sqlstore.Options{Table: sqlstore.Table{Dialect: sqlstore.MySQL}})
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	require.ErrorContains(t, err, "DATABASE.lambdalock")
	opener := sqlstore.Opener(func(string) (*sql.DB, error) { return admin, nil }, sqlstore.Options{Table: sqlstore.Table{Dialect: sqlstore.MySQL}})
	s, err := lockstore.Open(t.Context(), "mysql://"+e.addr+"/"+e.database, func(string) string { return "" }, opener)
	require.NoError(t, err)
	_, err = s.Acquire(minute(t), request("a"))
	require.ErrorIs(t, err, lockstore.ErrRefused)
	require.NoError(t, s.Close())
	_, err = lockstore.Open(t.Context(), "mysql://"+e.addr, func(string) string { return "" }, opener)
	require.ErrorIs(t, err, lockstore.ErrInvalid)

	// A variable that is ON stands for that of Galera.
	_, err = changed("", strings.NewReplacer("'WSREP_ON'", "'AUTOCOMMIT'")).Acquire(minute(t), request("c"))
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "Galera")
}

// A program has left a transaction on the only connection: a lock in it would end with it. MySQL itself and DSQL do not say that.
func TestLeftOpen(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, e engine) {
		e, table, _ := e.created(t)
		usual := e.store(t, table, 2)
		db := e.pool(t, e.addr, 1)
		s := store(t, db, sqlstore.Options{Table: table})
		held := acquire(t, s, request("held"))
		require.NoError(t, s.Release(minute(t), acquire(t, s, request("released"))))
		run(t, db, "BEGIN")
		for _, key := range []string{"new", "released"} {
			_, err := s.Acquire(minute(t), request(key))
			require.ErrorContains(t, err, "a transaction")
			if key == "new" || e.dialect != sqlstore.MySQL { // a conflict might be the echo of the write
				require.ErrorIs(t, err, lockstore.ErrUnavailable)
				require.ErrorContains(t, err, "not applied")
			}
		}
		_, err := s.Renew(minute(t), held, time.Hour)
		require.ErrorContains(t, err, "a transaction")
		run(t, db, "COMMIT")
		acquire(t, usual, request("new"))
		acquire(t, usual, request("released"))
		status, err := usual.Inspect(minute(t), "held")
		require.NoError(t, err)
		require.Less(t, status.Remaining, 2*time.Minute, "it was not renewed")
	})
}

// A row without a version is not taken for no entry: its key may have a holder.
func TestRowWithoutVersion(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, e engine) {
		e, table, db := e.created(t)
		s := e.store(t, table, 2)
		lease := acquire(t, s, request("k"))
		run(t, db, "UPDATE lambdalock SET version = ''")
		_, err := s.Inspect(minute(t), "k")
		require.ErrorIs(t, err, lockstore.ErrCorrupt)
		_, err = s.Acquire(minute(t), request("k"))
		require.ErrorIs(t, err, lockstore.ErrCorrupt)
		_, err = s.Renew(minute(t), lease, time.Minute)
		require.ErrorContains(t, err, "a row is damaged")
		require.NotErrorIs(t, err, lockstore.ErrLost) // a conflict might be the echo of the write
		err = s.List(minute(t), "", func(lockstore.Page) error { return nil })
		require.ErrorIs(t, err, lockstore.ErrCorrupt)
		require.ErrorContains(t, err, `"k"`, "an operator has to find the row")
		tx, err := db.BeginTx(minute(t), nil)
		require.NoError(t, err)
		require.ErrorIs(t, table.StillHeld(minute(t), tx, lease), lockstore.ErrCorrupt)
		require.NoError(t, tx.Rollback())
	})
}

func TestRefusalsOfSQLite(t *testing.T) {
	t.Parallel()
	e, table, admin := sqlite(t).created(t)
	file, _, _ := strings.Cut(e.dsn(""), "?")
	refuses(t, e, ":memory:", table, lockstore.ErrCorrupt, "lockctl schema")
	refuses(t, e, file, e.table("none"), lockstore.ErrCorrupt, "lockctl schema")
	refuses(t, e, file+"?mode=ro", table, lockstore.ErrUnavailable, "only reads")
	run(t, admin, "CREATE TABLE theirs (key text)")
	refuses(t, e, file, e.table("theirs"), lockstore.ErrCorrupt, "lockctl schema")
	other := t.TempDir() + "/other.db"
	require.NoError(t, os.WriteFile(other, []byte("this is no database, and it is longer than the header of one, which has a hundred bytes, I think so"), 0o600))
	refuses(t, e, "file:"+other, table, lockstore.ErrCorrupt, "no database")
	refuses(t, e, "file:/none/locks.db", table, lockstore.ErrUnavailable, "unable to open")

	memory, err := sql.Open("sqlite", "file::memory:?cache=shared")
	require.NoError(t, err)
	schema, err := table.Schema()
	require.NoError(t, err)
	run(t, limited(t, memory, 2), schema)
	_, err = store(t, memory, sqlstore.Options{Table: table}).Acquire(minute(t), request("k"))
	require.ErrorContains(t, err, "in memory")

	check := func(dsn string) string {
		db, err := sql.Open("sqlite", dsn)
		require.NoError(t, err)
		found, err := store(t, limited(t, db, 2), sqlstore.Options{Table: table}).Check(minute(t))
		require.NoError(t, err)
		return fmt.Sprint(found)
	}
	require.Equal(t, "[]", check(file))
	require.Contains(t, check(file+"?_pragma=synchronous(NORMAL)"), "synchronous is not FULL")

	// Another program has the file.
	tx, err := admin.Begin()
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }() // also after a failure
	_, err = tx.Exec("DELETE FROM theirs")
	require.NoError(t, err)
	refuses(t, e, file, table, lockstore.ErrUnavailable, "for too long")
}

// legacy is a connection of a driver that knows no contexts.
type legacy struct{ driver.Conn }

// A call ends with its context, whatever the driver does.
func TestDriverWithoutContexts(t *testing.T) {
	t.Parallel()
	e := postgreSQL(t)
	table := sqlstore.Table{Dialect: sqlstore.DSQL} // which does not refuse several messages
	e.create(t, table)
	p := testservers.Proxy(t, e.addr)
	e.addr = p.Addr
	s := store(t, e.wrapped(t, 2, "", func(c driver.Conn) driver.Conn { return legacy{c} }), sqlstore.Options{Table: table})
	acquire(t, s, request("k"))
	p.Swallow()
	defer p.Disconnect()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Acquire(ctx, request("k2"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// traced is pgx's connection within that of another driver, as otelsql has it.
type traced struct {
	driver.Conn
	_ string
}

func (c traced) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, statement, args)
}

func (c traced) CheckNamedValue(v *driver.NamedValue) error {
	return c.Conn.(driver.NamedValueChecker).CheckNamedValue(v)
}

// hidden is a connection where nobody finds it.
type hidden struct {
	query func(context.Context, string, []driver.NamedValue) (driver.Rows, error)
	end   func() error
}

func (hidden) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrSkip }
func (hidden) Begin() (driver.Tx, error)           { return nil, driver.ErrSkip }
func (c hidden) Close() error                      { return c.end() }
func (c hidden) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	return c.query(ctx, statement, args)
}

// A driver around pgx changes nothing. If pgx cannot be found, its requests of several messages are refused.
func TestWrappedDriver(t *testing.T) {
	t.Parallel()
	e, table, _ := postgreSQL(t).created(t)
	e.driver = "pgx"
	wrapped := func(params string, wrap func(driver.Conn) driver.Conn) *lockstore.Store {
		return store(t, e.wrapped(t, 2, params, wrap), sqlstore.Options{Table: table})
	}
	s := wrapped("", func(c driver.Conn) driver.Conn { return &traced{Conn: traced{Conn: c}} })
	require.NoError(t, s.Release(minute(t), acquire(t, s, request("k"))))
	hides := func(c driver.Conn) driver.Conn { return hidden{c.(driver.QueryerContext).QueryContext, c.Close} }
	_, err := wrapped("", hides).Acquire(minute(t), request("k"))
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "default_query_exec_mode=simple_protocol")
	acquire(t, wrapped("&default_query_exec_mode=simple_protocol", hides), request("k"))
}

// failing is a connection whose statements fail.
type failing struct {
	driver.Conn
	driver.Tx
	err error
}

func (f failing) Close() error    { return nil }
func (f failing) Rollback() error { return nil }
func (f failing) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return f, nil
}
func (f failing) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return nil, f.err
}
func (f failing) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return nil, f.err
}

// sqlError is an error as drivers have them.
type sqlError string

func (e sqlError) Error() string    { return "the server says " + string(e) }
func (e sqlError) SQLState() string { return string(e) }

// A server's error undoes the statement, unless it says that the connection or the session has ended. It comes with what to do.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	pg, my, lite := sqlstore.Table{Dialect: sqlstore.PostgreSQL}, sqlstore.Table{Dialect: sqlstore.MySQL, Name: "locks.lambdalock"}, sqlstore.Table{Dialect: sqlstore.SQLite}
	unknown, conflict, refused, corrupt := error(nil), casstore.ErrConflict, lockstore.ErrUnavailable, lockstore.ErrCorrupt
	for _, c := range []struct {
		table    sqlstore.Table
		want     error
		says     string
		failures []error
	}{
		{pg, conflict, "", []error{sqlError("40001"), sqlError("40P01")}},
		{pg, refused, "", []error{sqlError("57014"), sqlError("53300")}},
		{pg, refused, "for too long", []error{sqlError("55P03")}},
		{pg, refused, "only reads", []error{sqlError("25006")}},
		{pg, refused, "needs SELECT, INSERT and UPDATE", []error{sqlError("42501")}},
		{pg, corrupt, "lockctl schema", []error{sqlError("42P01"), sqlError("22021")}},
		{pg, unknown, "", []error{sqlError("XX000"), sqlError("58030"), sqlError("08006"), sqlError("57P01"), sqlError("40003")}},
		{pg, unknown, "PgBouncer", []error{sqlError("08P01")}},
		{pg, unknown, "a pooler", []error{sqlError("26000")}},
		{pg, unknown, "", []error{errors.New("EOF"), driver.ErrBadConn, context.Canceled}},
		{my, conflict, "", []error{errors.New("Error 1213 (40001): Deadlock found")}},
		{my, refused, "", []error{errors.New("Error 3024 (HY000): time")}},
		{my, refused, "for too long", []error{errors.New("Error 1205 (HY000): Lock wait timeout")}},
		{my, corrupt, "lockctl schema", []error{errors.New("Error 1146 (42S02): Table doesn't exist"), errors.New("Error 1146 (42S02): Table 'Error 1213' doesn't exist")}},
		{my, unknown, "", []error{
			errors.New("Error 9001 (HY000): Max connect timeout reached while reaching hostgroup 1"), errors.New("Error 2013 (HY000): Lost connection to server during query"),
			errors.New("Error 1053 (08S01): Server shutdown"), errors.New("Error 1180 (HY000): Got error during COMMIT"), errors.New("Error 12050: of another server"), errors.New("invalid connection"),
		}},
		{lite, refused, "for too long", []error{errors.New("database is locked (5) (SQLITE_BUSY)")}},
		{lite, refused, "only reads", []error{errors.New("attempt to write a readonly database (8)")}},
		{lite, refused, "free space", []error{errors.New("database or disk is full (13)")}},
		{lite, corrupt, "lockctl schema", []error{errors.New("SQL logic error: no such table: x (1)")}},
		{lite, corrupt, "damaged", []error{errors.New("database disk image is malformed (11)")}},
		{lite, unknown, "free space", []error{errors.New("disk I/O error (10)")}},
	} {
		for _, failure := range c.failures {
			db := limited(t, sql.OpenDB(connector(func(context.Context) (driver.Conn, error) { return failing{err: failure}, nil })), 2)
			_, err := kvOf(store(t, db, sqlstore.Options{Table: c.table})).Write(minute(t), "k", []byte("v"), "version")
			require.ErrorContains(t, err, c.says, "%v", failure)
			for _, kind := range []error{conflict, refused, corrupt} {
				require.Equal(t, c.want == kind, errors.Is(err, kind), "%v: %v", failure, err)
			}
		}
	}
}

// A connection ends before the answer, and the server lets no other one in. That says nothing of the request.
func TestLostAnswerBeforeARefusedConnection(t *testing.T) {
	t.Parallel()
	for _, refused := range []error{sqlError("28P01"), sqlError("3D000"), sqlError("42501")} {
		connected := false
		db := limited(t, sql.OpenDB(connector(func(context.Context) (driver.Conn, error) {
			if connected {
				return nil, refused
			}
			connected = true
			return failing{err: driver.ErrBadConn}, nil
		})), 2)
		_, err := kvOf(store(t, db, sqlstore.Options{Table: sqlstore.Table{Dialect: sqlstore.PostgreSQL}})).Write(minute(t), "k", []byte("v"), "version")
		require.ErrorContains(t, err, refused.Error())
		for _, kind := range []error{casstore.ErrConflict, lockstore.ErrUnavailable, lockstore.ErrCorrupt} {
			require.NotErrorIs(t, err, kind)
		}
	}
}
