package bench

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/lib/pq"
	_ "modernc.org/sqlite"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

// database is what clients connect to, each with connections of its own.
type database struct {
	driver, url string
	dialect     *sqlstore.Dialect
	listens     bool
}

// pool is the pool of one client, which keeps its connections.
func (d database) pool(t *testing.T) *sql.DB {
	db, err := sql.Open(d.driver, d.url)
	fatal(t, err)
	return kept(t, db)
}

func kept(t *testing.T, db *sql.DB) *sql.DB {
	db.SetMaxIdleConns(4)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// opened closes a store at the end of the test.
func opened(t *testing.T, store *lockstore.Store, err error) *lockstore.Store {
	t.Helper()
	fatal(t, err)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func (d database) table() sqlstore.Table {
	if d.dialect == sqlstore.MySQL {
		return sqlstore.Table{Dialect: d.dialect, Name: "locks." + sqlstore.DefaultTable}
	}
	return sqlstore.Table{Dialect: d.dialect}
}

// store is the store of one client, with its pool.
func (d database) store(t *testing.T, db *sql.DB) *lockstore.Store {
	t.Helper()
	o := sqlstore.Options{Table: d.table()}
	if d.listens {
		o.Listen = listen(d.url)
	}
	store, err := sqlstore.New(db, o)
	return opened(t, store, err)
}

// setUp makes the table, and returns clients that wait in its queue.
func (d database) setUp(t *testing.T, n int) []locker {
	schema, err := d.table().Schema()
	fatal(t, err)
	_, err = d.pool(t).ExecContext(t.Context(), schema)
	fatal(t, err)
	return clients(n, func() locker { return guarded(t, d.store(t, d.pool(t))) })
}

// locking are clients with a connection each, on which a statement takes a lock, and another one frees it.
func (d database) locking(t *testing.T, n int, lock, unlock string) []locker {
	return clients(n, func() locker {
		conn, err := d.pool(t).Conn(t.Context())
		fatal(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return func(ctx context.Context, work func()) error {
			if _, err := conn.ExecContext(ctx, lock); err != nil {
				return err
			}
			work()
			_, err := conn.ExecContext(ctx, unlock)
			return err
		}
	})
}

// listen is a sqlstore.Options.Listen. It is one connection, which sends LISTEN once.
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
			case <-ctx.Done():
				return ctx.Err()
			case n := <-l.Notify:
				if n == nil { // it listens again
					listening()
				} else {
					woken(n.Extra)
				}
			}
		}
	}
}

// counter makes connections that count what they send.
type counter struct {
	driver.Connector
	requests atomic.Int64
}

func (c *counter) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return counted{conn, &c.requests}, err
}

type counted struct {
	driver.Conn
	requests *atomic.Int64
}

func (c counted) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	c.requests.Add(1)
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, statement, args)
}

// testWaitingPostgres compares the wait for a busy key with that for an advisory lock and for a row. These have no lease: they end with
// their connection, and not before. Our p99 is that of the first runs of each round, which all join at once. The server writes nothing to the
// disk at once.
func testWaitingPostgres(t *testing.T) {
	const n, times = 16, 21
	d := database{"postgres", testservers.PostgreSQL(t), sqlstore.PostgreSQL, true}
	us := &entrant{store: "PostgreSQL", name: "sqlstore, in its queue", work: lasting(time.Millisecond), clients: d.setUp(t, n)}
	advisory := &entrant{store: us.store, name: "pg_advisory_lock", work: us.work, clients: d.locking(t, n, "SELECT pg_advisory_lock(7)", "SELECT pg_advisory_unlock(7)")}
	_, err := d.pool(t).ExecContext(t.Context(), "CREATE TABLE mutex AS SELECT 7 AS id")
	fatal(t, err)
	inRow := &entrant{store: us.store, name: "SELECT FOR UPDATE", work: us.work, clients: d.locking(t, n, "BEGIN; SELECT FROM mutex WHERE id = 7 FOR UPDATE", "COMMIT")}
	judgeRace(t, times, 2, us, []*entrant{advisory, inRow},
		figure{"16 clients, a hand-over : pg_advisory_lock's", 2.5, "x", compare(0, 1)},
		figure{"16 clients, a hand-over : SELECT FOR UPDATE's", 0, "x", compare(0, 2)},
	)

	var count counter
	count.Connector, err = pq.NewConnector(d.url)
	fatal(t, err)
	counting := clients(n, func() locker { return guarded(t, d.store(t, kept(t, sql.OpenDB(&count)))) })
	crowd(t, times, us.work, counting...) // connections are made
	count.requests.Store(0)
	_, waits := crowd(t, times, us.work, counting...)
	budget(t, "  requests a run", float64(count.requests.Load())/float64(len(waits)), 5, "", "")
	once := cycle(t, d.store(t, kept(t, sql.OpenDB(&count))))
	for _, c := range []figure{{what: "  requests for a free key, a new process", limit: 3}, {what: "  requests for a free key, later", limit: 2}} {
		count.requests.Store(0)
		once()
		budget(t, c.what, float64(count.requests.Load()), c.limit, "", "")
	}
}

// testWaitingSQL does so on MariaDB and SQLite, where nobody is woken.
func testWaitingSQL(t *testing.T) {
	const n, times = 16, 1 // a hand-over may take long there
	for _, c := range []struct {
		store, name, lock, unlock string
		database
	}{
		{"MariaDB", "GET_LOCK", "DO GET_LOCK('7', 60)", "DO RELEASE_LOCK('7')", database{driver: "mysql", url: "root@tcp(" + testservers.MariaDB(t).Addr + ")/locks", dialect: sqlstore.MySQL}},
		{"SQLite", "BEGIN IMMEDIATE", "BEGIN IMMEDIATE", "COMMIT", database{driver: "sqlite", dialect: sqlstore.SQLite,
			url: "file:" + filepath.Join(t.TempDir(), "locks.db") + "?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)"}},
	} {
		us := &entrant{store: c.store, name: "sqlstore, in its queue", work: lasting(time.Millisecond), clients: c.setUp(t, n)}
		them := &entrant{store: c.store, name: c.name, work: us.work, clients: c.locking(t, n, c.lock, c.unlock)}
		judgeRace(t, times, 0, us, []*entrant{them}, figure{c.store + ", 16 clients, a hand-over : " + c.name + "'s", 0, "x", compare(0, 1)})
	}
}
