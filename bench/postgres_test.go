package bench

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/pgstore"
)

// countedDialer counts what the driver sends: one write to a connection is one request.
type countedDialer struct {
	net.Dialer
	requests *atomic.Int64
}

func (d countedDialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d countedDialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

func (d countedDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, network, address)
	return countedConn{conn, d.requests}, err
}

type countedConn struct {
	net.Conn
	requests *atomic.Int64
}

func (c countedConn) Write(b []byte) (int, error) {
	c.requests.Add(1)
	return c.Conn.Write(b)
}

// postgresDB is the pool of one client, which keeps its connections.
func postgresDB(t *testing.T, url string, requests *atomic.Int64) *sql.DB {
	connector, err := pq.NewConnector(url)
	if err != nil {
		t.Fatal(err)
	}
	connector.Dialer(countedDialer{requests: requests})
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(4)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func createTable(t *testing.T, url string) {
	schema, err := pgstore.Schema(string(pgstore.DefaultTable))
	if err == nil {
		_, err = postgresDB(t, url, new(atomic.Int64)).ExecContext(t.Context(), schema)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func postgresStore(t *testing.T, db *sql.DB, o pgstore.Options) *lockstore.Store {
	store, err := pgstore.New(db, o)
	return opened(t, store, err)
}

// opened closes a store at the end of the test.
func opened(t *testing.T, store *lockstore.Store, err error) *lockstore.Store {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// listen is a pgstore.Options.Listen. It is one connection, which sends LISTEN once.
func listen(url string) func(context.Context, string, func(string)) error {
	return func(ctx context.Context, channel string, woken func(string)) error {
		l := pq.NewListener(url, 10*time.Millisecond, time.Second, nil)
		defer l.Close()
		if err := l.Listen(channel); err != nil {
			return err
		}
		woken("")
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case n := <-l.Notify:
				if n == nil { // it listens again
					n = &pq.Notification{}
				}
				woken(n.Extra)
			}
		}
	}
}

// testWaitingPostgres compares the wait for a busy key with that for an advisory lock and for a locked row. These two
// have no lease: they end with their connection, and not before. The server writes nothing to the disk at once.
func testWaitingPostgres(t *testing.T) {
	const n, times = 16, 21
	url := testservers.PostgreSQL(t)
	var requests, others atomic.Int64
	admin := postgresDB(t, url, &others)
	createTable(t, url)
	for _, statement := range []string{"CREATE TABLE plain (key text PRIMARY KEY, n bigint NOT NULL)", "INSERT INTO plain VALUES ('" + key + "', 0)"} {
		if _, err := admin.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	stores := func(o pgstore.Options) []locker {
		return clients(n, func() locker {
			return guarded(t, postgresStore(t, postgresDB(t, url, &requests), o))
		})
	}
	advisory := clients(n, func() locker {
		conn, err := postgresDB(t, url, &others).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return func(ctx context.Context, work func()) error {
			if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock(7)"); err != nil {
				return err
			}
			work()
			_, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock(7)")
			return err
		}
	})
	row := clients(n, func() locker {
		db := postgresDB(t, url, &others)
		return func(ctx context.Context, work func()) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if _, err := tx.ExecContext(ctx, "SELECT n FROM plain WHERE key = '"+key+"' FOR UPDATE"); err != nil {
				return err
			}
			work()
			return tx.Commit()
		}
	})
	work := lasting(time.Millisecond)
	ours := stores(pgstore.Options{Listen: listen(url)})
	us := &entrant{store: "PostgreSQL", name: "pgstore, in its queue", work: work, clients: ours}
	them := []*entrant{
		{store: "PostgreSQL", name: "pg_advisory_lock", work: work, clients: advisory},
		{store: "PostgreSQL", name: "SELECT ... FOR UPDATE", work: work, clients: row},
	}
	var last [][]time.Duration
	judge(t, func() [][]time.Duration {
		last = race(t, times, us, them[0], them[1])
		return last
	},
		figure{"16 clients, a hand-over : pg_advisory_lock's", 2, "x", compare(0, 1)},
		figure{"  : SELECT ... FOR UPDATE's", 0, "x", compare(0, 2)},
		us.fair(1.4),
	)
	report(last, us, them[0], them[1])
	requests.Store(0)
	_, waits := crowd(t, times, work, ours...)
	budget(t, "  requests a run", float64(requests.Load())/float64(len(waits)), 4, "", "")
	reading := stores(pgstore.Options{})
	requests.Store(0)
	handOver, waits := crowd(t, 2, work, reading...)
	budget(t, "  without a listener: requests a run", float64(requests.Load())/float64(len(waits)), 0, "", fmt.Sprintf("%v a hand-over", handOver.Round(10*time.Microsecond)))
}
