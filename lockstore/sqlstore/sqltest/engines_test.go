package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	storedriver "github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/watchdog"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

func TestMain(m *testing.M) {
	if isProgram() {
		return
	}
	watchdog.Start()
	goleak.VerifyTestMain(withServers{m}, goleak.IgnoreCurrent())
}

// withServers are all tests, and then the end of the servers that they share.
type withServers struct{ *testing.M }

func (m withServers) Run() int {
	code := m.M.Run()
	for _, end := range slices.Backward(ends) {
		end()
	}
	return code
}

// forAll is what a server needs of its test, for one that all tests share. Without its program each of them is skipped.
type forAll struct{ testing.TB }

var (
	starting sync.Mutex // guards all of these
	started  = map[string]*testservers.Server{}
	ends     []func()
	named    int
)

func (forAll) Cleanup(end func()) { ends = append(ends, end) }

func (f forAll) TempDir() string {
	dir, err := os.MkdirTemp("", "sqltest")
	require.NoError(f, err)
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	dir = filepath.Join(dir, "server")
	require.NoError(f, os.Mkdir(dir, 0o700))
	return dir
}

// shared is the server of a kind that all tests share, and the name of a database that no other test has.
func shared(t testing.TB, kind string, start func(testing.TB) *testservers.Server) (addr, database string) {
	starting.Lock()
	defer starting.Unlock()
	if started[kind] == nil {
		started[kind] = start(forAll{t})
	}
	named++
	return started[kind].Addr, fmt.Sprint("test", named)
}

// engine is a database, its dialect and a driver.
type engine struct {
	name     string
	dialect  *sqlstore.Dialect
	addr     string // of the server; "" for a file
	database string
	driver   string
	dsn      func(addr string) string
}

func onPostgreSQL(addr, database string) engine {
	return engine{"PostgreSQL", sqlstore.PostgreSQL, addr, database, "postgres", func(addr string) string {
		return strings.Replace(testservers.PostgreSQLURL(addr), "/postgres?", "/"+database+"?", 1)
	}}
}

func onMariaDB(addr, database string) engine {
	return engine{"MariaDB", sqlstore.MySQL, addr, database, "mysql", func(addr string) string { return "root@tcp(" + addr + ")/" + database }}
}

// fresh is the engine with a new database.
func fresh(t testing.TB, of func(addr, database string) engine, usual, addr, database string) engine {
	run(t, of(addr, usual).pool(t, addr, 1), "CREATE DATABASE "+database)
	return of(addr, database)
}

func postgreSQL(t testing.TB) engine {
	addr, database := shared(t, "PostgreSQL", testservers.StartPostgreSQL)
	return fresh(t, onPostgreSQL, "postgres", addr, database)
}

func mariaDB(t testing.TB) engine {
	addr, database := shared(t, "MariaDB", testservers.MariaDB)
	return fresh(t, onMariaDB, "locks", addr, database)
}

// sqlite does not wait for the disk, as the servers of the tests: TestProcesses does.
func sqlite(t testing.TB) engine {
	file := "file:" + t.TempDir() + "/locks.db?_pragma=synchronous(OFF)"
	return engine{"SQLite", sqlstore.SQLite, "", "", "sqlite", func(addr string) string {
		if addr == patient {
			return file + "&_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)"
		}
		return file
	}}
}

// patient is in place of the address of a file for the test's own statements.
const patient = "patient"

var engines = map[string]func(testing.TB) engine{"PostgreSQL": postgreSQL, "MariaDB": mariaDB, "SQLite": sqlite}

// on runs a test with each database.
func on(t *testing.T, test func(*testing.T, engine)) {
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t))
		})
	}
}

// pool opens a pool of a process.
func (e engine) pool(t testing.TB, addr string, most int) *sql.DB {
	db, err := sql.Open(e.driver, e.dsn(addr))
	require.NoError(t, err)
	return limited(t, db, most)
}

func limited(t testing.TB, db *sql.DB, most int) *sql.DB {
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// connected makes so many connections of a pool.
func connected(t *testing.T, db *sql.DB, n int) {
	var conns []*sql.Conn
	for range n {
		c, err := db.Conn(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.PingContext(t.Context()))
		conns = append(conns, c)
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
}

func (e engine) table(name string) sqlstore.Table {
	if e.dialect == sqlstore.MySQL {
		name = e.database + "." + name
	}
	return sqlstore.Table{Dialect: e.dialect, Name: name}
}

// create makes a table, and returns a pool for the test's own statements.
func (e engine) create(t testing.TB, table sqlstore.Table) *sql.DB {
	t.Helper()
	addr := e.addr
	if addr == "" {
		addr = patient
	}
	db := e.pool(t, addr, 2)
	schema, err := table.Schema()
	require.NoError(t, err)
	for statement := range strings.SplitSeq(strings.TrimSuffix(schema, ";\n"), ";\n") {
		run(t, db, statement)
	}
	return db
}

// created is the engine with the table lambdalock, and a pool for the test's own statements.
func (e engine) created(t testing.TB) (engine, sqlstore.Table, *sql.DB) {
	t.Helper()
	table := e.table("lambdalock")
	return e, table, e.create(t, table)
}

func run(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	_, err := db.ExecContext(context.Background(), statement)
	require.NoError(t, err, statement)
}

// store is a process's.
func store(t testing.TB, db *sql.DB, o sqlstore.Options) *lockstore.Store {
	t.Helper()
	s, err := sqlstore.New(db, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// store is that of a process with a pool of its own.
func (e engine) store(t testing.TB, table sqlstore.Table, most int) *lockstore.Store {
	t.Helper()
	return store(t, e.pool(t, e.addr, most), sqlstore.Options{Table: table})
}

func kvOf(s *lockstore.Store) casstore.KV {
	kv, _ := storedriver.As[casstore.KV](s.Driver())
	return kv
}

// listen is an Options.Listen.
func listen(url string) func(context.Context, string, func(), func(string)) error {
	return func(ctx context.Context, channel string, listening func(), woken func(string)) error {
		l := pq.NewListener(url, 10*time.Millisecond, time.Second, nil)
		defer l.Close()
		if err := l.Listen(channel); err != nil {
			return err
		}
		listening()
		for {
			select {
			case n := <-l.Notify:
				if n == nil { // it has connected again
					listening()
				} else {
					woken(n.Extra)
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// rows are those of a table, as an operator changes them.
type rows struct {
	db    *sql.DB
	table string
	mysql bool
}

func (e engine) rows(t testing.TB, table sqlstore.Table) rows {
	return rows{e.create(t, table), table.Name, e.dialect == sqlstore.MySQL}
}

func (r rows) bind(statement string) string {
	statement = strings.ReplaceAll(statement, "lambdalock", r.table)
	if r.mysql {
		return strings.NewReplacer("$1", "?", "$2", "?", "$3", "?").Replace(statement)
	}
	return statement
}

// Value implements castest.Table.
func (r rows) Value(t *testing.T, key string) (value []byte) {
	err := r.db.QueryRow(r.bind("SELECT k.entry FROM lambdalock AS k WHERE k.key = $1"), key).Scan(&value)
	if err != sql.ErrNoRows {
		require.NoError(t, err)
	}
	return value
}

var versions atomic.Int64

// SetValue implements castest.Table. PostgreSQL has no byte 0 in a text.
func (r rows) SetValue(t *testing.T, key string, value []byte) {
	_, err := r.db.Exec(r.bind("DELETE FROM lambdalock WHERE lambdalock.key = $1"), key)
	require.NoError(t, err)
	if value != nil {
		text := strings.ReplaceAll(string(value), "\x00", "\x01")
		now := strconv.FormatInt(time.Now().UnixMicro(), 10)
		_, err = r.db.Exec(r.bind("INSERT INTO lambdalock VALUES ($1, $2, "+now+", $3)"), key, "set "+strconv.FormatInt(versions.Add(1), 10), text)
		require.NoError(t, err)
	}
}

// clocks are the expressions for the time in statements of the store.
var clocks = regexp.MustCompile(`\(EXTRACT\(epoch FROM pg_catalog\.\w+\(\)\)::pg_catalog\.numeric OPERATOR\(pg_catalog\.\*\) 1000000::pg_catalog\.numeric\)::pg_catalog\.int8` +
	`|\(TIMESTAMPDIFF\(MICROSECOND, '1970-01-01', UTC_TIMESTAMP\(6\)\) \+ TIMESTAMPDIFF\(MICROSECOND, NOW\(6\), SYSDATE\(6\)\)\)` +
	`|\(CAST\(strftime\('%s', 'now'\) \|\| substr\(strftime\('%f', 'now'\), 4\) AS INTEGER\) \* 1000\)`)

// clocked is a database whose clock is that of the bubble, moved by shift.
func (e engine) clocked(t testing.TB, shift *atomic.Int64) *sql.DB {
	return e.edited(t, 2, func(_ driver.Conn, statement string) string {
		now := time.Now().Add(time.Duration(shift.Load()))
		if e.dialect == sqlstore.SQLite {
			now = now.Truncate(time.Millisecond)
		}
		return clocks.ReplaceAllLiteralString(statement, strconv.FormatInt(now.UnixMicro(), 10))
	})
}

// edited is a pool that edits each statement.
func (e engine) edited(t testing.TB, most int, edit func(conn driver.Conn, statement string) string) *sql.DB {
	return e.wrapped(t, most, "", func(c driver.Conn) driver.Conn { return &edited{c, edit} })
}

// wrapped is a pool of connections that are within others.
func (e engine) wrapped(t testing.TB, most int, params string, wrap func(driver.Conn) driver.Conn) *sql.DB {
	db, err := sql.Open(e.driver, e.dsn(e.addr))
	require.NoError(t, err)
	under := db.Driver()
	require.NoError(t, db.Close())
	pool := sql.OpenDB(connector(func(context.Context) (driver.Conn, error) {
		conn, err := under.Open(e.dsn(e.addr) + params)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}))
	pool.SetMaxOpenConns(most)
	pool.SetMaxIdleConns(most)
	t.Cleanup(func() { _ = pool.Close() }) // the context of a request may have ended its connection
	return pool
}

// connector makes connections.
type connector func(context.Context) (driver.Conn, error)

func (c connector) Connect(ctx context.Context) (driver.Conn, error) { return c(ctx) }
func (c connector) Driver() driver.Driver                            { return nil }

// edited is a connection that edits each statement.
type edited struct {
	driver.Conn
	edit func(conn driver.Conn, statement string) string
}

func (c *edited) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, c.edit(c.Conn, statement), args)
}

func (c *edited) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
}

func (c *edited) ExecContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, c.edit(c.Conn, statement), args)
}

// role is the database for a new role with these rights, if there are any, and these settings of its sessions.
func role(t testing.TB, e engine, admin *sql.DB, grants string, settings ...string) *sql.DB {
	name := "role" + strconv.FormatInt(versions.Add(1), 10)
	run(t, admin, "CREATE ROLE "+name+" LOGIN")
	if grants != "" {
		run(t, admin, "GRANT "+grants+" ON lambdalock TO "+name)
	}
	for _, s := range settings {
		run(t, admin, "ALTER ROLE "+name+" SET "+s)
	}
	return asRole(t, e, name)
}

// asRole is the database for another role.
func asRole(t testing.TB, e engine, role string) *sql.DB {
	u, err := url.Parse(e.dsn(e.addr))
	require.NoError(t, err)
	u.User = url.User(role)
	db, err := sql.Open("postgres", u.String())
	require.NoError(t, err)
	return limited(t, db, 4)
}
