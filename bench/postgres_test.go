package bench

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/pgstore"
)

// postgresDB is the pool of one client, which keeps its connections.
func postgresDB(t *testing.T, url string) *sql.DB {
	db, err := sql.Open("postgres", url)
	fatal(t, err)
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

// testWaitingPostgres compares the wait for a busy key with that for an advisory lock. That one has no lease: it ends with
// its connection, and not before. The server writes nothing to the disk at once.
func testWaitingPostgres(t *testing.T) {
	const n, times = 16, 21
	url := testservers.PostgreSQL(t)
	schema, err := pgstore.Schema(string(pgstore.DefaultTable))
	fatal(t, err)
	_, err = postgresDB(t, url).ExecContext(t.Context(), schema)
	fatal(t, err)
	ours := clients(n, func() locker {
		store, err := pgstore.New(postgresDB(t, url), pgstore.Options{Listen: listen(url)})
		return guarded(t, opened(t, store, err))
	})
	advisory := clients(n, func() locker {
		conn, err := postgresDB(t, url).Conn(t.Context())
		fatal(t, err)
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
	us := &entrant{store: "PostgreSQL", name: "pgstore, in its queue", work: lasting(time.Millisecond), clients: ours}
	them := &entrant{store: "PostgreSQL", name: "pg_advisory_lock", work: us.work, clients: advisory}
	judgeRace(t, times, 1.4, us, []*entrant{them}, figure{"16 clients, a hand-over : pg_advisory_lock's", 2, "x", compare(0, 1)})
}
