package sqltest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

// Two processes of a program want the same keys of one table, while other programs use another table. All share the two connections of a
// pooler, which may give a connection to another client between two messages of a request. The drivers are as they are by default. F26.
func TestPooler(t *testing.T) {
	addr, _ := shared(t, "PostgreSQL", testservers.StartPostgreSQL)
	e := onPostgreSQL(addr, "postgres") // the one behind PgBouncer
	a, b := e.table("locks_a"), e.table("locks_b")
	admin := e.create(t, a)
	e.create(t, b)
	for _, mode := range []string{"session", "transaction", "statement"} {
		for _, name := range []string{"postgres", "pgx"} {
			t.Run(mode+" "+name, func(t *testing.T) {
				ctx := minute(t)
				url := testservers.PgBouncer(t, &testservers.Server{Addr: e.addr}, mode)
				process := func(table sqlstore.Table) *lockstore.Store {
					db, err := sql.Open(name, url)
					require.NoError(t, err)
					return store(t, limited(t, db, 4), sqlstore.Options{Table: table})
				}
				background, stop := context.WithCancel(ctx)
				var others sync.WaitGroup
				defer others.Wait()
				defer stop()
				for range 2 {
					s := process(b)
					others.Go(func() {
						for n := 0; background.Err() == nil; n++ {
							if lease, err := s.Acquire(background, request(fmt.Sprint("b", n))); err == nil {
								_ = s.Release(background, lease)
							}
							_ = s.List(background, "none", func(lockstore.Page) error { return nil })
						}
					})
				}
				one, two := process(a), process(a)
				for n := range 300 {
					var all sync.WaitGroup
					var errs [2]error
					for i, s := range []*lockstore.Store{one, two} {
						all.Go(func() { _, errs[i] = s.Acquire(ctx, request(fmt.Sprint(mode, name, n))) })
					}
					all.Wait()
					require.True(t, (errs[0] == nil) != (errs[1] == nil), "one has the key: %v", errs)
					require.ErrorIs(t, errors.Join(errs[:]...), lockstore.ErrRefused)
				}
				strays := count(t, admin, "SELECT (SELECT count(*) FROM locks_b WHERE key NOT LIKE 'b%') + (SELECT count(*) FROM locks_a WHERE key LIKE 'b%')")
				require.Zero(t, strays, "keys in the table of another program")
			})
		}
	}
}

// An answer to another request is none: the error names the pooler.
func TestAnotherAnswer(t *testing.T) {
	t.Parallel()
	e, table, _ := postgreSQL(t).created(t)
	var last atomic.Value // the statement that was sent before, or one of another program
	var mixes atomic.Bool
	kv := kvOf(store(t, e.edited(t, 1, func(_ driver.Conn, statement string) string {
		if before := last.Swap(statement); mixes.Load() {
			return before.(string)
		}
		return statement
	}), sqlstore.Options{Table: table}))
	requests := map[string]func(key string) error{
		"Read":  func(key string) error { _, _, err := kv.Read(t.Context(), key, true); return err },
		"Write": func(key string) error { _, err := kv.Write(t.Context(), key, []byte("v"), ""); return err },
	}
	for name, request := range requests {
		for _, other := range []string{"Read", "Write", "SELECT 1", "SELECT 1 WHERE false"} {
			if own := requests[other]; own != nil {
				mixes.Store(false)
				require.NoError(t, own(name+other+"1"))
			} else {
				last.Store(other)
			}
			mixes.Store(true)
			err := request(name + other + "2")
			require.ErrorContains(t, err, "a pooler", "the answer to %s for a %s", other, name)
			require.False(t, errors.Is(err, casstore.ErrConflict) || errors.Is(err, lockstore.ErrUnavailable), "%v", err)
		}
	}
}

// TestManyKeys: 1,000 runs of one process, each with a key of its own, share ten connections. All are released. With the race detector
// these are fewer: it makes all goroutines slow, and a release has a second.
func TestManyKeys(t *testing.T) {
	runs := 1000
	if verifyrecord.WithRaceDetector {
		runs = 300
	}
	for name, start := range engines { // one after the other: a release has a second
		t.Run(name, func(t *testing.T) {
			e, table, _ := start(t).created(t)
			for _, most := range []int{10, 0} {
				var released atomic.Int32
				var failed atomic.Pointer[guard.Report] // a run that was not released
				g, err := guard.New(e.store(t, table, most), guard.Options{Observe: func(_ context.Context, r guard.Report) {
					if r.ReleaseErr != nil {
						failed.Store(&r)
					} else {
						released.Add(1)
					}
				}})
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				var all sync.WaitGroup
				for n := range runs {
					all.Go(func() {
						_ = g.Do(ctx, fmt.Sprint("key", most, "/", n), func(context.Context, guard.Lock) error {
							<-time.After(20 * time.Millisecond)
							return nil
						})
					})
				}
				all.Wait()
				require.Nil(t, failed.Load())
				require.EqualValues(t, runs, released.Load())
			}
		})
	}
}

// TestDeadConnections: the packets of all connections of a pool get lost from now on, as when a primary loses its power. New connections
// reach a server. pgx ends a connection with the context of its request.
func TestDeadConnections(t *testing.T) {
	t.Parallel()
	e, table, _ := postgreSQL(t).created(t)
	hole := testservers.Proxy(t, e.addr)
	var url atomic.Value // of new connections
	url.Store(e.dsn(hole.Addr))
	through := e
	through.driver, through.dsn = "pgx", func(string) string { return url.Load().(string) }
	db := through.wrapped(t, 2, "", func(c driver.Conn) driver.Conn { return c })
	s := store(t, db, sqlstore.Options{Table: table})
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		lease, err := s.Acquire(ctx, request("k"))
		if err == nil {
			err = s.Release(ctx, lease)
		}
		return err
	}
	connected(t, db, 2)
	hole.Swallow()
	url.Store(e.dsn(e.addr))
	for failed := 0; ; failed++ {
		err := ask()
		if err == nil || errors.Is(err, lockstore.ErrRefused) { // by an acquisition whose reply was lost
			break
		}
		require.Less(t, failed, 10, "requests of half a second fail: %v", err)
	}
	hole.Disconnect()
}

// TestPlanted: a role that may create objects in a schema of the search_path gets nothing called, and has nothing believed.
func TestPlanted(t *testing.T) {
	t.Parallel()
	e := postgreSQL(t)
	admin := e.pool(t, e.addr, 2)
	run(t, admin, "CREATE SCHEMA locks; CREATE SCHEMA evil; CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA locks, evil TO app; CREATE TABLE evil.called (what text); GRANT INSERT ON evil.called TO app")
	table := e.table("locks.lambdalock")
	e.create(t, table)
	run(t, admin, "GRANT SELECT, INSERT, UPDATE ON locks.lambdalock TO app")
	run(t, admin, "ALTER ROLE app SET search_path = evil, pg_catalog, public")
	run(t, admin, "CREATE TABLE evil.lambdalock (LIKE locks.lambdalock); GRANT ALL ON evil.lambdalock TO app")
	for _, f := range []string{
		"clock_timestamp() RETURNS timestamptz", "statement_timestamp() RETURNS timestamptz", "now() RETURNS timestamptz", "set_config(text, text, boolean) RETURNS text",
		"current_setting(text) RETURNS text", "row_security_active(text) RETURNS boolean", "pg_notify(text, text) RETURNS void", "extract(text, timestamptz) RETURNS numeric",
		"date_part(text, timestamptz) RETURNS float8", "int8(numeric) RETURNS bigint", "obj_description(oid, name) RETURNS text", "to_regclass(text) RETURNS regclass",
		"has_table_privilege(oid, text) RETURNS boolean", "count() RETURNS bigint", "pg_total_relation_size(oid) RETURNS bigint", "concat(text, text) RETURNS text",
	} {
		returns := "RETURN NULL;"
		if strings.HasSuffix(f, "void") {
			returns = ""
		}
		run(t, admin, "CREATE FUNCTION evil."+f+" LANGUAGE plpgsql AS $$ BEGIN INSERT INTO evil.called VALUES ('"+f+"'); "+returns+" END $$")
	}
	for n, types := range []string{"text, text", `"char", "char"`, "oid, oid", "numeric, numeric", "numeric, integer", "bigint, bigint", "text, varchar", "real, real"} {
		left, right, _ := strings.Cut(types, ", ")
		run(t, admin, fmt.Sprintf("CREATE FUNCTION evil.op%d(%s) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN INSERT INTO evil.called VALUES ('%s'); RETURN true; END $$", n, types, types))
		for _, op := range []string{"=", "<>", ">", ">=", "<", "*"} {
			run(t, admin, fmt.Sprintf("CREATE OPERATOR evil.%s (FUNCTION = evil.op%d, LEFTARG = %s, RIGHTARG = %s)", op, n, left, right))
		}
	}
	s := store(t, asRole(t, e, "app"), sqlstore.Options{Table: table, Listen: listen(e.dsn(e.addr))})
	ctx := minute(t)
	lease := acquire(t, s, request("k"))
	r := request("k")
	r.JoinQueue = true
	_, err := s.Acquire(ctx, r)
	require.ErrorIs(t, err, lockstore.ErrRefused)
	require.NoError(t, s.Release(ctx, lease)) // it hands the key over, with a notification
	require.NoError(t, s.List(ctx, "", func(p lockstore.Page) error {
		require.Len(t, p.Keys, 1)
		return nil
	}))
	_, err = s.Extent(ctx)
	require.NoError(t, err)
	_, err = s.Check(ctx)
	require.NoError(t, err)
	tx, err := asRole(t, e, "app").BeginTx(ctx, nil)
	require.NoError(t, err)
	require.NoError(t, table.Complete(ctx, tx, acquire(t, s, r), nil, time.Minute))
	require.NoError(t, tx.Commit())
	require.Zero(t, count(t, admin, "SELECT count(*) FROM evil.called"), "a function that another role has made was called")
	require.Zero(t, count(t, admin, "SELECT count(*) FROM evil.lambdalock"))
}

// TestCheck: each thing that is wrong is named.
func TestCheck(t *testing.T) {
	t.Parallel()
	e, table, admin := postgreSQL(t).created(t)
	run(t, admin, "ALTER DATABASE "+e.database+" SET idle_in_transaction_session_timeout = '10s'")
	ctx := minute(t)
	// findings are those of a role of its own, a line each.
	findings := func(grants string, settings ...string) (lines string) {
		found, err := store(t, role(t, e, admin, grants, settings...), sqlstore.Options{Table: table}).Check(ctx)
		require.NoError(t, err)
		for _, f := range found {
			lines += f.Problem + "\n"
		}
		return lines
	}
	const rights = "SELECT, INSERT, UPDATE"
	require.Regexp(t, "^synchronous_commit is off or local, or fsync is off.*\n$", findings(rights), "fsync is off in all tests")
	for _, few := range []string{"", "SELECT", "SELECT, UPDATE", "SELECT, INSERT"} {
		require.Contains(t, findings(few), "needs SELECT, INSERT and UPDATE", few)
	}
	require.Contains(t, findings(rights, "default_transaction_read_only = on"), "only reads")
	require.Contains(t, findings(rights, "idle_in_transaction_session_timeout = 0"), "idle_in_transaction_session_timeout is 0")
	run(t, admin, "ALTER TABLE lambdalock SET UNLOGGED")
	require.Contains(t, findings(rights), "UNLOGGED")
	run(t, admin, "ALTER TABLE lambdalock SET LOGGED; ALTER TABLE lambdalock ENABLE ROW LEVEL SECURITY")
	require.Contains(t, findings(rights), "row security")
	run(t, admin, "ALTER TABLE lambdalock DISABLE ROW LEVEL SECURITY; COMMENT ON TABLE lambdalock IS 'locks of lambdalock, DSQL 1'")
	require.Contains(t, findings(rights), "no table of locks of this dialect")
	run(t, admin, "DROP TABLE lambdalock")
	require.Contains(t, findings(""), "no table of locks of this dialect")
	found, err := e.store(t, table, 0).Check(ctx)
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(found), "the pool of connections has no limit")
}

// TestRefusals: what is wrong with a session, a role or a table is named, nothing waits without a limit, and nothing is believed.
func TestRefusals(t *testing.T) {
	t.Parallel()
	e, table, admin := postgreSQL(t).created(t)
	ctx := minute(t)
	as := func(settings ...string) *sql.DB { return role(t, e, admin, "SELECT, INSERT, UPDATE", settings...) }
	check := func(name string, db *sql.DB, table sqlstore.Table, want error, says string) {
		t.Run(name, func(t *testing.T) {
			s := store(t, db, sqlstore.Options{Table: table})
			_, err := s.Acquire(ctx, request("k"))
			require.ErrorIs(t, err, want)
			require.ErrorContains(t, err, says)
			_, err = s.Inspect(ctx, "k")
			require.ErrorIs(t, err, want)
			require.Error(t, s.List(ctx, "", func(lockstore.Page) error { return nil }))
			_, err = s.Extent(ctx)
			require.Error(t, err)
		})
	}
	run(t, admin, "CREATE ROLE no_connections LOGIN CONNECTION LIMIT 0; CREATE TABLE theirs (key text)")
	check("F44 a role without rights", role(t, e, admin, ""), table, lockstore.ErrUnavailable, "needs SELECT, INSERT and UPDATE")
	check("a role without connections", asRole(t, e, "no_connections"), table, lockstore.ErrUnavailable, "not applied")
	check("a role that only reads", as("default_transaction_read_only = on"), table, lockstore.ErrUnavailable, "only reads")
	latin, err := sql.Open("pgx", e.dsn(e.addr)+"&client_encoding=latin1") // lib/pq sets it
	require.NoError(t, err)
	check("an encoding", limited(t, latin, 2), table, lockstore.ErrUnavailable, "client_encoding")
	check("a table that is not ours", admin, e.table("theirs"), lockstore.ErrCorrupt, "lockctl schema")
	check("no table", admin, e.table("nothing"), lockstore.ErrCorrupt, "lockctl schema")
	check("another dialect's server", admin, sqlstore.Table{Dialect: sqlstore.MySQL, Name: "public.lambdalock"}, lockstore.ErrUnavailable, "does not exist")
	closed, err := sql.Open("postgres", e.dsn(e.addr))
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	check("a closed *sql.DB", closed, table, lockstore.ErrUnavailable, "database is closed")

	t.Run("settings that change nothing", func(t *testing.T) {
		s := store(t, as("search_path = pg_temp", "timezone = 'Asia/Kathmandu'", "default_transaction_isolation = serializable", "standard_conforming_strings = off",
			"datestyle = 'German'", "bytea_output = escape", "default_transaction_deferrable = on", "lock_timeout = 0", "backslash_quote = off"), sqlstore.Options{Table: table})
		r := request("ä'\\\U0001f512")
		lease := acquire(t, s, r)
		require.NoError(t, s.Complete(ctx, lease, []byte(`"it's \\ done"`), time.Minute))
		_, err := store(t, as(), sqlstore.Options{Table: table}).Acquire(ctx, request(r.Key))
		refused, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, `"it's \\ done"`, string(refused.Result))
	})
	t.Run("a row that a transaction has", func(t *testing.T) {
		s := store(t, as(), sqlstore.Options{Table: table})
		lease := acquire(t, s, request("row"))
		tx, err := admin.Begin()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }() // also after a failure
		require.NoError(t, table.StillHeld(ctx, tx, lease))
		_, err = s.Renew(ctx, lease, time.Minute)
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorContains(t, err, "for too long")
		var timeout string
		require.NoError(t, tx.QueryRow("SELECT current_setting('lock_timeout')").Scan(&timeout))
		require.Equal(t, "0", timeout, "the transaction of the program keeps its settings")
	})
	t.Run("a transaction at REPEATABLE READ", func(t *testing.T) {
		s := store(t, as(), sqlstore.Options{Table: table})
		lease := acquire(t, s, request("repeatable"))
		tx, err := admin.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec("SELECT 1 FROM lambdalock")
		require.NoError(t, err)
		_, err = s.Renew(ctx, lease, time.Minute)
		require.NoError(t, err)
		require.ErrorContains(t, table.StillHeld(ctx, tx, lease), "could not serialize access")
	})
	run(t, admin, "ALTER TABLE lambdalock ENABLE ROW LEVEL SECURITY; CREATE POLICY r ON lambdalock FOR SELECT USING (true); CREATE POLICY w ON lambdalock FOR INSERT WITH CHECK (true)")
	check("row security", as(), table, lockstore.ErrUnavailable, "row security is on")
}

// A replica refuses every request, also through the connections that a program had to the primary at its address.
func TestReplica(t *testing.T) {
	t.Parallel()
	server := testservers.StartPostgreSQL(t)
	e, table, _ := onPostgreSQL(server.Addr, "postgres").created(t)
	s := e.store(t, table, 4)
	acquire(t, s, request("k"))
	require.NoError(t, os.WriteFile(filepath.Join(server.Dir, "data", "standby.signal"), nil, 0o600))
	server.Restart()
	_, err := s.Acquire(minute(t), request("another"))
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "only reads")
	_, err = s.Inspect(minute(t), "k")
	require.ErrorContains(t, err, "only reads")
	found, err := s.Check(minute(t))
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(found), "only reads")
}

// TestWakeUp: who waits is woken by a process that it shares nothing with, also by one that does not listen.
func TestWakeUp(t *testing.T) {
	t.Parallel()
	e, table, _ := postgreSQL(t).created(t)
	var notify func(payload string)
	s := store(t, e.pool(t, e.addr, 3), sqlstore.Options{Table: table, Listen: func(ctx context.Context, channel string, listening func(), woken func(string)) error {
		notify = woken
		return listen(e.dsn(e.addr))(ctx, channel, listening, woken)
	}})
	other := kvOf(e.store(t, table, 3)).(casstore.Waker)
	ctx := minute(t)
	wait := func(owner string, since time.Time) (note func() string, all bool) {
		woken, all, stop, err := kvOf(s).(casstore.Waker).Listen(ctx, "k", owner, since)
		require.NoError(t, err)
		t.Cleanup(stop)
		return func() string {
			select {
			case note := <-woken:
				return note
			case <-ctx.Done():
				require.Fail(t, "nobody is woken")
				return ""
			}
		}, all
	}
	version := ""
	wake := func(notes map[string]string) {
		e, err := other.WriteAndWake(ctx, "k", []byte("v"+version), version, notes)
		require.NoError(t, err)
		version = e.Version
	}
	_, all := wait("me", time.Now())
	require.False(t, all, "it did not listen before")
	since := time.Now()
	note, all := wait("me", since)
	require.True(t, all)
	wake(map[string]string{"you": "1 2", "me": "3 4"})
	require.Equal(t, "3 4", note())
	note, all = wait("you", since)
	require.True(t, all)
	require.Equal(t, "1 2", note(), "it was woken before it waited")
	for n := range 300 {
		_, _, stop, err := kvOf(s).(casstore.Waker).Listen(ctx, "k", fmt.Sprint("owner", n), since)
		require.NoError(t, err)
		stop()
	}
	notify("tag note")
	notify("another note")
	_, all = wait("me", since)
	require.True(t, all, "who has stopped needs no room")
	for n := range 300 {
		notify(fmt.Sprint("tag", n, " note"))
	}
	_, all = wait("me", since)
	require.False(t, all, "nobody keeps so many wake-ups for others")

	note, _ = wait("me", time.Now())
	notify("") // by a stranger: it wakes nobody
	wake(map[string]string{"me": "5 6"})
	require.Equal(t, "5 6", note())
	note, _ = wait("me", time.Now())
	run(t, e.pool(t, e.addr, 1), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
	require.Empty(t, note(), "the connection was lost: everybody looks")
}

// While a store does not listen, it may miss wake-ups, and says so. Close returns when Options.Listen has returned.
func TestEndOfListening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := sql.Open("postgres", "") // nothing is sent
		require.NoError(t, err)
		defer db.Close()
		calls, ended := 0, false
		s := store(t, db, sqlstore.Options{Table: sqlstore.Table{Dialect: sqlstore.PostgreSQL}, Listen: func(ctx context.Context, _ string, listening func(), _ func(string)) error {
			listening()
			if calls++; calls > 1 {
				<-ctx.Done()
				<-time.After(time.Minute)
				ended = true
			}
			return errors.New("the connection was lost")
		}})
		all := func() bool {
			_, all, stop, err := kvOf(s).(casstore.Waker).Listen(t.Context(), "k", "me", time.Now())
			require.NoError(t, err)
			stop()
			return all
		}
		all() // it begins to listen
		<-time.After(time.Millisecond)
		require.False(t, all())
		<-time.After(time.Minute)
		require.True(t, all(), "it listens again")
		require.NoError(t, s.Close())
		require.True(t, ended)
	})
}

// The server refuses a notification: the release stands, and who waits finds out.
func TestRefusedWakeUp(t *testing.T) {
	t.Parallel()
	e, table, admin := postgreSQL(t).created(t)
	run(t, admin, "CREATE FUNCTION full_queue(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$")
	run(t, admin, "REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC; CREATE ROLE mute LOGIN; GRANT SELECT, INSERT, UPDATE ON lambdalock TO mute")
	for key, c := range map[string]struct{ role, function string }{
		"the queue is full":     {"postgres", "public.full_queue"},
		"the role may not call": {"mute", "pg_catalog.pg_notify"},
		"no such function":      {"postgres", "pg_catalog.no_notify"},
	} {
		t.Run(key, func(t *testing.T) {
			as := e
			as.dsn = func(addr string) string { return strings.Replace(e.dsn(addr), "postgres@", c.role+"@", 1) }
			var refused atomic.Int32
			s := store(t, as.edited(t, 2, func(_ driver.Conn, statement string) string {
				if strings.Contains(statement, "pg_catalog.pg_notify") {
					refused.Add(1)
				}
				return strings.ReplaceAll(statement, "pg_catalog.pg_notify", c.function)
			}), sqlstore.Options{Table: table, Listen: listen(e.dsn(e.addr))})
			held, next := acquire(t, s, request(key)), request(key)
			next.JoinQueue = true
			_, err := s.Acquire(minute(t), next)
			require.ErrorIs(t, err, lockstore.ErrRefused)
			require.NoError(t, s.Release(minute(t), held))
			require.EqualValues(t, 1, refused.Load())
			acquire(t, s, next)
		})
	}
}

// A transaction has the row of a key for which somebody waits: a release waits for it once.
func TestLockedRelease(t *testing.T) {
	t.Parallel()
	e, table, admin := postgreSQL(t).created(t)
	var writes atomic.Int32
	s := store(t, e.edited(t, 2, func(_ driver.Conn, statement string) string {
		if strings.Contains(statement, "UPDATE") {
			writes.Add(1)
		}
		return statement
	}), sqlstore.Options{Table: table})
	held, next := acquire(t, s, request("k")), request("k")
	next.JoinQueue = true
	_, err := s.Acquire(minute(t), next)
	require.ErrorIs(t, err, lockstore.ErrRefused)
	tx, err := admin.Begin()
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }() // also after a failure
	require.NoError(t, table.StillHeld(minute(t), tx, held))
	writes.Store(0)
	err = s.Release(minute(t), held)
	require.ErrorIs(t, err, lockstore.ErrUnavailable)
	require.ErrorContains(t, err, "for too long")
	require.EqualValues(t, 1, writes.Load())
}

// TestRequests: 16 processes want one key again and again. A run sends few requests.
func TestRequests(t *testing.T) {
	e, table, _ := postgreSQL(t).created(t)
	const processes, runs = 16, 20
	var requests atomic.Int64
	var all sync.WaitGroup
	ctx := minute(t)
	for range processes {
		db := e.edited(t, 2, func(_ driver.Conn, statement string) string {
			requests.Add(1)
			return statement
		})
		g, err := guard.New(store(t, db, sqlstore.Options{Table: table, Listen: listen(e.dsn(e.addr))}), guard.Options{Wait: time.Minute})
		require.NoError(t, err)
		all.Go(func() {
			for range runs {
				err := g.Do(ctx, "k", func(context.Context, guard.Lock) error {
					<-time.After(time.Millisecond)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Less(t, float64(requests.Load())/(processes*runs), 6.5, "requests a run")
}

// EXTRACT returns a float, as on CockroachDB, and there is no operator for a float and a numeric.
func TestFloatTime(t *testing.T) {
	t.Parallel()
	e := postgreSQL(t)
	table := sqlstore.Table{Dialect: sqlstore.DSQL}
	run(t, e.create(t, table), `CREATE FUNCTION no_operator(float8, numeric) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN RAISE 'unsupported binary operator' USING ERRCODE = '22023'; END $$;
		CREATE OPERATOR pg_catalog.* (FUNCTION = no_operator, LEFTARG = float8, RIGHTARG = numeric)`)
	extract := regexp.MustCompile(`EXTRACT\(epoch FROM pg_catalog\.\w+\(\)\)`)
	s := store(t, e.edited(t, 2, func(_ driver.Conn, statement string) string {
		assert.Regexp(t, extract, statement)
		return extract.ReplaceAllString(statement, "$0::pg_catalog.float8")
	}), sqlstore.Options{Table: table})
	lease := acquire(t, s, request("k"))
	lease, err := s.Renew(minute(t), lease, time.Minute)
	require.NoError(t, err)
	require.NoError(t, s.Release(minute(t), lease))
}

// The clocks of DSQL's machines may differ by half a second: another owner gets the key so much later.
func TestClocksOfDSQL(t *testing.T) {
	t.Parallel()
	e := postgreSQL(t)
	table := sqlstore.Table{Dialect: sqlstore.DSQL}
	e.create(t, table)
	synctest.Test(t, func(t *testing.T) {
		s := store(t, e.clocked(t, new(atomic.Int64)), sqlstore.Options{Table: table})
		lease := acquire(t, s, request("k"))
		<-time.After(time.Minute + 500*time.Millisecond)
		_, err := s.Acquire(minute(t), request("k"))
		require.ErrorIs(t, err, lockstore.ErrRefused)
		<-time.After(time.Millisecond)
		require.Greater(t, acquire(t, s, request("k")).Fence, lease.Fence)
	})
}

// The isolation level is REPEATABLE READ, as on Aurora DSQL, and some commits fail with 40001 after the rows were sent.
func TestSerializationFailures(t *testing.T) {
	t.Parallel()
	e := postgreSQL(t)
	table := sqlstore.Table{Dialect: sqlstore.DSQL}
	admin := e.create(t, table)
	run(t, admin, "ALTER DATABASE "+e.database+" SET default_transaction_isolation = 'repeatable read'")
	// The trigger fails at COMMIT, once for each second write, as a conflict of Aurora DSQL.
	run(t, admin, `CREATE SEQUENCE writes; GRANT USAGE ON writes TO public;
		CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('public.writes') % 2 = 0 THEN RAISE 'mutation conflicts with another transaction, retry as needed (OC000)' USING ERRCODE = '40001'; END IF;
			RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER fails AFTER INSERT OR UPDATE ON lambdalock DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fails()`)
	for _, name := range []string{"postgres", "pgx"} {
		e.driver = name
		stores := []*lockstore.Store{e.store(t, table, 3), e.store(t, table, 3)}
		var held, runs atomic.Int32
		var all sync.WaitGroup
		ctx := minute(t)
		for n := range 8 {
			s := stores[n%2]
			g, err := guard.New(s, guard.Options{Wait: time.Minute})
			require.NoError(t, err)
			all.Go(func() {
				for range 4 {
					err := g.Do(ctx, name, func(context.Context, guard.Lock) error {
						if held.Add(1) != 1 {
							return errors.New("two hold the key")
						}
						runs.Add(1)
						held.Add(-1)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 32, runs.Load())
		// No outcome is unknown: a refused commit is a conflict.
		kv := kvOf(stores[0])
		for n := range 10 {
			_, err := kv.Write(ctx, fmt.Sprint(name, n), []byte("v"), "")
			if err != nil {
				require.ErrorIs(t, err, casstore.ErrConflict)
			}
		}
	}
}
