package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

const key = "account/7"

func request() lockstore.Request {
	return lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute}
}

// minute is a context for a test of what waits: a mistake fails it after a minute, and it does not hang.
func minute(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func acquire(t *testing.T, s *lockstore.Store, r lockstore.Request) lockstore.Lease {
	t.Helper()
	lease, err := s.Acquire(minute(t), r)
	require.NoError(t, err)
	return lease
}

func open(t *testing.T, db *sql.DB, o Options) *lockstore.Store {
	t.Helper()
	s, err := New(db, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// The program chooses the driver.
func TestNoDriver(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	for dep := range strings.Lines(string(out)) {
		domain, _, _ := strings.Cut(dep, "/")
		require.True(t, !strings.Contains(domain, ".") || strings.HasPrefix(dep, "github.com/lambdalock/"), dep)
	}
}

func TestSchema(t *testing.T) {
	server := testservers.PostgreSQL(t)
	db := direct(t, server)
	create(t, db, "locks_2", "")
	lease := acquire(t, open(t, db, Options{Table: "locks_2"}), request())
	create(t, db, "locks_2", "") // changes nothing
	require.NoError(t, open(t, db, Options{Table: "locks_2", Unprepared: true}).Release(t.Context(), lease))
	run(t, db, "CREATE TABLE theirs (key text)")
	schema, err := Schema("theirs")
	require.NoError(t, err)
	_, err = db.Exec(schema)
	require.ErrorContains(t, err, "no locks of lambdalock")

	for _, bad := range []Table{"Locks", "a b", "a;b", "a.b.c", "1a", `"a"`, Table(strings.Repeat("a", 41))} {
		_, err := bad.Schema()
		require.ErrorIs(t, err, lockstore.ErrInvalid, bad)
		_, err = New(db, Options{Table: bad})
		require.ErrorIs(t, err, lockstore.ErrInvalid, bad)
	}
	_, err = New(nil, Options{})
	require.ErrorIs(t, err, lockstore.ErrInvalid)
}

func TestURLs(t *testing.T) {
	db, err := sql.Open("postgres", "postgres://localhost")
	require.NoError(t, err)
	defer db.Close()
	opener := Opener(func(string) (*sql.DB, error) { return db, nil }, Options{})
	storetest.URLs(t, opener, func(string) string { return "" }, "postgres://localhost/db?table=locks", "user", "port", "path", "others")
}

func TestOpener(t *testing.T) {
	const secret = "s3cret"
	server := testservers.PostgreSQL(t)
	create(t, direct(t, server), "locks_2", "")
	var db *sql.DB
	opener := Opener(func(url string) (_ *sql.DB, err error) {
		require.NotContains(t, url, "table")
		if strings.Contains(url, secret) {
			return nil, errors.New(url)
		}
		db, err = sql.Open("postgres", url)
		return db, err
	}, Options{})
	s, err := lockstore.Open(t.Context(), server+"&table=locks_2", func(string) string { return "" }, opener)
	require.NoError(t, err)
	acquire(t, s, request())
	require.NoError(t, s.Close())
	require.NoError(t, db.Close())
	for _, bad := range []string{server + "&table=a&table=b", "postgres://u:" + secret + "@h/d", server + "&table=" + secret + "%20"} {
		_, err = lockstore.Open(t.Context(), bad, func(string) string { return "" }, opener)
		require.ErrorIs(t, err, lockstore.ErrInvalid)
		require.NotContains(t, err.Error(), "@h")
	}
}

// The error says what is wrong with the database and what to do.
func TestRefusals(t *testing.T) {
	server := testservers.PostgreSQL(t)
	db := direct(t, server)
	create(t, db, DefaultTable, "")
	ctx := minute(t)
	as := func(role, settings string) *sql.DB {
		run(t, db, "CREATE ROLE "+role+" LOGIN "+settings)
		u, err := url.Parse(server)
		require.NoError(t, err)
		u.User = url.User(role)
		return direct(t, u.String())
	}
	grant := func(role string) { run(t, db, "GRANT SELECT, INSERT, UPDATE ON lambdalock_locks TO "+role) }
	check := func(name string, db *sql.DB, want error, says string) {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, db, Options{}).Acquire(ctx, request())
			require.ErrorIs(t, err, want)
			require.ErrorContains(t, err, says)
			_, err = open(t, db, Options{}).Inspect(ctx, key)
			require.ErrorIs(t, err, want)
		})
	}
	check("F44 a role without rights", as("no_rights", ""), lockstore.ErrUnavailable, "GRANT SELECT, INSERT, UPDATE ON lambdalock_locks TO")
	check("a role without connections", as("no_connections", "CONNECTION LIMIT 0"), lockstore.ErrUnavailable, "not applied")
	reads := as("reads", "")
	grant("reads")
	run(t, db, "ALTER ROLE reads SET default_transaction_read_only = on")
	check("a role that only reads", reads, lockstore.ErrUnavailable, "want the primary's address")

	enough := as("enough", "")
	grant("enough")
	s := open(t, enough, Options{})
	lease := acquire(t, s, request())
	t.Run("a table that the server has not looked at", func(t *testing.T) {
		e, err := s.Extent(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, e.Entries)
	})
	t.Run("a row that a transaction has", func(t *testing.T) {
		impatient := as("impatient", "IN ROLE enough")
		run(t, db, "ALTER ROLE impatient SET lock_timeout = '1ms'")
		tx, err := db.Begin()
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }() // also after a failure: otherwise what follows waits for its row
		require.NoError(t, StillHeld(ctx, tx, lease))
		_, err = open(t, impatient, Options{}).Acquire(ctx, request())
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
	})
	t.Run("a transaction per session", func(t *testing.T) {
		run(t, db, "ALTER ROLE enough SET default_transaction_isolation = 'serializable'")
		findings, err := open(t, as("serial", "IN ROLE enough"), Options{}).Check(ctx)
		require.NoError(t, err)
		require.Len(t, findings, 2, "%v", findings) // fsync is off in tests, and idle_in_transaction_session_timeout is 0
	})

	run(t, db, "DROP FUNCTION lambdalock_locks_do")
	check("no function", db, lockstore.ErrCorrupt, "run the SQL that lockctl schema prints")
	findings, err := open(t, db, Options{}).Check(ctx)
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(findings), "every request fails")
	run(t, db, "DROP TABLE lambdalock_locks CASCADE; CREATE TABLE lambdalock_locks (key text)")
	findings, err = open(t, db, Options{}).Check(ctx)
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(findings), "no table of locks")
}

// sqlError is an error as drivers have them.
type sqlError string

func (e sqlError) Error() string    { return "the server says " + string(e) }
func (e sqlError) SQLState() string { return string(e) }

// A server's error undoes the statement, unless it says that the connection or the session has ended.
func TestOutcomes(t *testing.T) {
	s := &server{Options: Options{Table: DefaultTable}}
	for code, want := range map[string]error{
		"40001": lockstore.ErrUnavailable, "40P01": lockstore.ErrUnavailable, "55P03": lockstore.ErrUnavailable, "57014": lockstore.ErrUnavailable,
		"53300": lockstore.ErrUnavailable, "25006": lockstore.ErrUnavailable, "42501": lockstore.ErrUnavailable, "XX000": lockstore.ErrUnavailable,
		"42P01": lockstore.ErrCorrupt, "42883": lockstore.ErrCorrupt, "LL001": lockstore.ErrCorrupt, "22003": lockstore.ErrCorrupt,
		"08006": nil, "57P01": nil, "40003": nil, "": nil,
	} {
		err := s.outcome(&call{}, sent, fmt.Errorf("driver: %w", sqlError(code)))
		if code == "" {
			err = s.outcome(&call{}, sent, errors.New("EOF"))
		}
		known := errors.Is(err, lockstore.ErrUnavailable) || errors.Is(err, lockstore.ErrCorrupt)
		require.Equal(t, want != nil, known, "%s: %v", code, err)
		if want != nil {
			require.ErrorIs(t, err, want)
		}
		require.ErrorIs(t, s.outcome(&call{}, 0, errors.New("refused")), lockstore.ErrUnavailable, "nothing was sent")
		err = s.outcome(&call{}, sent|again, sqlError(code))
		require.False(t, errors.Is(err, lockstore.ErrUnavailable) || errors.Is(err, lockstore.ErrCorrupt), "an earlier attempt may have been applied: %v", err)
	}
	c := &call{owner: "secret-owner"}
	c.state.Store(returned)
	_, err := c.Value()
	require.ErrorIs(t, err, context.Canceled, "who has returned sends nothing")
	require.NotContains(t, fmt.Sprint(c), "owner")
}

func listen(url string) func(ctx context.Context, channel string, woken func(string)) error {
	return func(ctx context.Context, channel string, woken func(string)) error {
		l := pq.NewListener(url, time.Second, time.Minute, nil)
		defer l.Close()
		if err := l.Listen(channel); err != nil {
			return err
		}
		woken("")
		for {
			select {
			case n := <-l.Notify:
				if n == nil { // it has connected again
					n = &pq.Notification{}
				}
				woken(n.Extra)
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// Who is woken sends no request, and believes nobody who does not know the owner.
func TestListen(t *testing.T) {
	url := testservers.PostgreSQL(t)
	db := direct(t, url)
	create(t, db, DefaultTable, "")
	holder := open(t, db, Options{})
	mine, w := openWire(t, url)
	ctx, heard := minute(t), make(chan string, 100)
	hear := func() (payload string) {
		select {
		case payload = <-heard:
		case <-ctx.Done():
			require.Fail(t, "nothing is heard")
		}
		return payload
	}
	waiter := open(t, mine, Options{Listen: func(ctx context.Context, channel string, woken func(string)) error {
		return listen(url)(ctx, channel, func(payload string) {
			woken(payload)
			heard <- payload
		})
	}})
	lease := acquire(t, holder, request())
	r := request()
	r.JoinQueue = true
	join := func() lockstore.Request {
		_, err := waiter.Acquire(ctx, r)
		refused, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok, "%v", err)
		r.Hint = refused.Hint
		return r
	}
	await := func(r lockstore.Request) lockstore.AwaitedTurn {
		a, err := waiter.AwaitTurn(ctx, r, 0)
		require.NoError(t, err)
		return a
	}
	d := waiter.Driver().(*server)
	defer d.leave(d.enter("another key", "another owner", 0))
	require.Empty(t, hear(), "it listens from now on")

	place := join()
	var channel string
	require.NoError(t, db.QueryRow("SELECT queue_channel[1] FROM lambdalock_locks").Scan(&channel))
	run(t, db, "SELECT pg_notify($1, $2)", channel, route(key)+" 9000000000000000 0 "+strings.Repeat("0", 32))
	hear()
	before := w.requests.Load()
	require.NoError(t, holder.Release(ctx, lease))
	hear() // perhaps before it waits
	awaited := await(place)
	require.Equal(t, before, w.requests.Load())
	require.Equal(t, driver.TurnTime-trustMargin, awaited.Lease.TTL)
	status, err := holder.Inspect(ctx, key)
	require.NoError(t, err)
	require.Equal(t, status.Fence, awaited.Lease.Fence)

	// A completion wakes all who wait.
	lease = acquire(t, waiter, r)
	r = request()
	r.JoinQueue = true
	join()
	require.NoError(t, holder.Complete(ctx, lease, []byte("done"), time.Minute))
	require.Equal(t, route(key), hear())
}

// TestTransaction: with StillHeld or Complete an effect is committed once, and only under the lock.
func TestTransaction(t *testing.T) {
	server := testservers.PostgreSQL(t)
	db := direct(t, server)
	run(t, db, "CREATE SEQUENCE now; CREATE FUNCTION clock() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz 'epoch' + last_value * interval '1 microsecond' FROM now $$")
	create(t, db, DefaultTable, "clock()")
	run(t, db, "CREATE TABLE effects (fence bigint)")
	now := time.Now()
	pass := func(d time.Duration) {
		now = now.Add(d)
		run(t, db, "SELECT setval('now', $1)", now.UnixMicro())
	}
	pass(0)
	s := open(t, db, Options{})
	begin := func(lease lockstore.Lease) *sql.Tx {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.Exec("INSERT INTO effects VALUES ($1)", lease.Fence)
		require.NoError(t, err)
		return tx
	}
	effects := func(want int) {
		t.Helper()
		var n int
		require.NoError(t, db.QueryRow("SELECT count(*) FROM effects").Scan(&n))
		require.Equal(t, want, n)
	}

	first := acquire(t, s, request())
	tx := begin(first)
	require.NoError(t, StillHeld(t.Context(), tx, first))
	// The holder stops here for longer than its lease. Nobody is granted the key until its transaction has ended.
	granted := make(chan lockstore.Lease)
	next := request()
	next.JoinQueue = true
	go func() {
		lease, err := s.Acquire(t.Context(), next)
		if err != nil {
			t.Error(err)
		}
		granted <- lease
	}()
	waiting := func() (n int) {
		require.NoError(t, db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return waiting() == 1 }, time.Minute, time.Millisecond)
	pass(2 * time.Minute)
	require.NoError(t, tx.Commit())
	second := <-granted
	effects(1)
	require.Greater(t, second.Fence, first.Fence)

	// The holder that has lost the key writes nothing.
	tx = begin(first)
	require.ErrorIs(t, StillHeld(t.Context(), tx, first), lockstore.ErrLost)
	require.NoError(t, tx.Rollback())
	tx = begin(first)
	require.ErrorIs(t, Complete(t.Context(), tx, first, []byte("old"), time.Minute), lockstore.ErrLost)
	require.NoError(t, tx.Rollback())
	effects(1)

	// The holder is killed before its commit: neither the effect nor the completion is there.
	tx = begin(second)
	require.NoError(t, Complete(t.Context(), tx, second, []byte("killed"), time.Minute))
	var pid int
	require.NoError(t, tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
	run(t, db, "SELECT pg_terminate_backend($1, 60000)", pid)
	require.Error(t, tx.Commit())
	effects(1)
	status, err := s.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, lockstore.Held, status.State)

	// It runs again: one effect, with its result, whatever is repeated.
	tx = begin(second)
	guarded := lockstore.Lease{Key: second.Key, Fence: second.Fence} // what a handler knows of its lease
	require.NoError(t, Complete(t.Context(), tx, guarded, []byte("done"), time.Minute))
	require.NoError(t, tx.Commit())
	tx = begin(second)
	require.ErrorIs(t, Complete(t.Context(), tx, guarded, []byte("done"), time.Minute), lockstore.ErrLost)
	require.NoError(t, tx.Rollback())
	require.NoError(t, s.Complete(t.Context(), second, []byte("again"), time.Minute))
	_, err = s.Acquire(t.Context(), request())
	refused, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "done", string(refused.Result))
	effects(2)

	// Work that has started and ends after its lease: then nothing keeps the row for ever.
	pass(2 * time.Minute)
	late := acquire(t, s, request())
	require.NoError(t, s.MarkStarted(t.Context(), late))
	pass(2 * time.Minute)
	require.NoError(t, s.Complete(t.Context(), late, nil, time.Minute))
	var ends bool
	require.NoError(t, db.QueryRow("SELECT isfinite(until) FROM lambdalock_locks WHERE key = $1", key).Scan(&ends))
	require.True(t, ends)

	// Several holders: each holds the key still, and none completes it.
	pass(2 * time.Minute)
	r := request()
	r.MaxHolders = 2
	shared := acquire(t, s, r)
	r.Owner = lockstore.NewOwner()
	acquire(t, s, r)
	tx = begin(shared)
	require.NoError(t, StillHeld(t.Context(), tx, shared))
	require.ErrorIs(t, Complete(t.Context(), tx, shared, nil, time.Minute), lockstore.ErrInvalid)
	require.NoError(t, tx.Rollback())
	require.ErrorIs(t, StillHeld(t.Context(), nil, shared), lockstore.ErrInvalid)
}
