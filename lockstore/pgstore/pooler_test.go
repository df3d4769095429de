package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Two processes of a program want the same keys of one table, while other programs use another table. All share the two
// connections of a pooler, which may give a connection to another client between two messages of a request. F26.
func TestPooler(t *testing.T) {
	server := testservers.StartPostgreSQL(t)
	admin := direct(t, testservers.PostgreSQLURL(server.Addr))
	create(t, admin, "locks_a", "")
	create(t, admin, "locks_b", "")
	for name, c := range map[string]struct {
		mode, params string
		unprepared   bool
		fails        string // what the errors of requests name; "" for a pooler with which none fails
	}{
		"session":                             {mode: "session"},
		"transaction":                         {mode: "transaction", params: "&binary_parameters=yes", unprepared: true},
		"statement":                           {mode: "statement", params: "&binary_parameters=yes", unprepared: true},
		"transaction and two messages":        {mode: "transaction", unprepared: true, fails: "binary_parameters=yes"},
		"transaction and prepared statements": {mode: "transaction", fails: "Options.Unprepared"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := minute(t)
			url := testservers.PgBouncer(t, server, c.mode) + c.params
			process := func(table Table) *lockstore.Store {
				return open(t, direct(t, url), Options{Table: table, Unprepared: c.unprepared})
			}
			background, stop := context.WithCancel(ctx)
			var others sync.WaitGroup
			defer others.Wait()
			defer stop()
			for range 2 {
				b := process("locks_b")
				others.Go(func() {
					for n := 0; background.Err() == nil; n++ {
						r := lockstore.Request{Key: fmt.Sprint("b", n), Owner: lockstore.NewOwner(), TTL: time.Minute}
						if lease, err := b.Acquire(background, r); err == nil {
							_ = b.Release(background, lease)
						}
						_ = b.List(background, "none", func(lockstore.Page) error { return nil })
					}
				})
			}
			one, two := process("locks_a"), process("locks_a")
			grants, failed := 0, 0
			for n := range 300 {
				var all sync.WaitGroup
				var leases [2]lockstore.Lease
				var errs [2]error
				for i, s := range []*lockstore.Store{one, two} {
					all.Go(func() {
						r := lockstore.Request{Key: fmt.Sprint(name, n), Owner: lockstore.NewOwner(), TTL: time.Minute}
						leases[i], errs[i] = s.Acquire(ctx, r)
					})
				}
				all.Wait()
				require.True(t, errs[0] != nil || errs[1] != nil, "both have the key: %v", leases)
				for _, err := range errs {
					switch {
					case err == nil:
						grants++
					case c.fails == "":
						require.ErrorIs(t, err, lockstore.ErrRefused)
					case !errors.Is(err, lockstore.ErrRefused):
						require.ErrorContains(t, err, c.fails)
						failed++
					}
				}
			}
			t.Logf("%d keys, %d requests failed", grants, failed)
			if c.fails == "" {
				require.Equal(t, 300, grants)
			}
			var strays int
			require.NoError(t, admin.QueryRow("SELECT (SELECT count(*) FROM locks_b WHERE key NOT LIKE 'b%') + (SELECT count(*) FROM locks_a WHERE key LIKE 'b%')").Scan(&strays))
			require.Zero(t, strays, "keys in the table of another program")
		})
	}
}

// A request that comes to the functions of another table changes nothing there, and is refused.
func TestAnotherTable(t *testing.T) {
	db := direct(t, testservers.PostgreSQL(t))
	create(t, db, "locks_a", "")
	create(t, db, "locks_b", "")
	s := open(t, db, Options{Table: "locks_a", Unprepared: true})
	_, err := open(t, db, Options{Table: "public.locks_a"}).Inspect(t.Context(), key)
	require.NoError(t, err, "it is the same table")
	requests := map[string]func() error{
		"do": func() error {
			_, err := s.Acquire(t.Context(), request())
			return err
		},
		"park": func() error {
			r := request()
			_, err := s.TakeAddress(t.Context(), r.Key, r.Owner)
			return err
		},
		"asked": func() error { return s.List(t.Context(), "", func(lockstore.Page) error { return nil }) },
	}
	for _, function := range []string{"do", "park", "asked"} {
		require.NoError(t, requests[function]())
		run(t, db, "DROP FUNCTION locks_a_"+function)
		run(t, db, "ALTER FUNCTION locks_b_"+function+" RENAME TO locks_a_"+function)
		if function != "asked" {
			run(t, db, "TRUNCATE locks_a")
		}
		err := requests[function]()
		require.ErrorIs(t, err, lockstore.ErrUnavailable, function)
		require.ErrorContains(t, err, "binary_parameters=yes")
	}
	var rows int
	require.NoError(t, db.QueryRow("SELECT (SELECT count(*) FROM locks_b) + (SELECT count(*) FROM locks_b_address)").Scan(&rows))
	require.Zero(t, rows)
}

// An answer to the request of another owner, for another key or of another kind is none. The error names the settings behind a pooler.
func TestAnotherAnswer(t *testing.T) {
	db := direct(t, testservers.PostgreSQL(t))
	create(t, db, DefaultTable, "")
	s := open(t, db, Options{Unprepared: true})
	run(t, db, "ALTER FUNCTION lambdalock_locks_do RENAME TO its_do")
	r := request()
	for _, another := range []string{"'release', $4, $3", "$2, $4 || 'x', $3", "$2, $4, $3 || 'x'"} {
		run(t, db, "CREATE OR REPLACE FUNCTION lambdalock_locks_do(text, text, text, text, bigint, bigint, integer, text, boolean, bigint, text, bytea, OUT outcome text, OUT why text, OUT fence bigint, OUT seat integer, OUT ttl bigint, OUT place integer, OUT state integer, OUT holder text, OUT remaining bigint, OUT waiting integer, OUT parked integer, OUT started boolean, OUT result bytea, OUT holders text, OUT handed text, OUT wake text, OUT request text) LANGUAGE sql AS $$ "+
			"SELECT outcome, why, fence, seat, ttl, place, state, holder, remaining, waiting, parked, started, result, holders, handed, wake, concat_ws(' ', "+another+") FROM its_do($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) $$")
		_, err := s.Acquire(minute(t), r)
		require.ErrorContains(t, err, "outcome unknown", another)
		require.ErrorContains(t, err, "binary_parameters=yes")
		require.False(t, errors.Is(err, lockstore.ErrUnavailable) || errors.Is(err, lockstore.ErrRefused), "%v", err)
	}
	run(t, db, "DROP FUNCTION lambdalock_locks_do")
	run(t, db, "ALTER FUNCTION its_do RENAME TO lambdalock_locks_do")
	_, err := s.Acquire(minute(t), r)
	require.NoError(t, err)
}

// A program and functions of another version are refused, until the schema runs again. It leaves no function of version 1 behind.
func TestAnotherVersion(t *testing.T) {
	db := direct(t, testservers.PostgreSQL(t))
	create(t, db, DefaultTable, "")
	s := open(t, db, Options{})
	lease := acquire(t, s, request())
	const one = "(version integer, kind text, lock text, me text, mine bigint, lasts bigint, most integer, info text, flag boolean, parks bigint, channel text, data bytea, OUT outcome text) LANGUAGE sql AS $$ SELECT 'granted' $$"
	const park = "(lock text, me text, where_to bytea, lasts bigint) RETURNS bytea LANGUAGE sql AS $$ SELECT ''::bytea $$"
	run(t, db, "DROP FUNCTION lambdalock_locks_do; DROP FUNCTION lambdalock_locks_park; DROP FUNCTION lambdalock_locks_asked")
	run(t, db, "CREATE FUNCTION lambdalock_locks_do"+one)
	run(t, db, "CREATE FUNCTION lambdalock_locks_park"+park)
	_, err := open(t, db, Options{}).Acquire(t.Context(), request())
	require.ErrorIs(t, err, lockstore.ErrCorrupt)
	require.ErrorContains(t, err, "lockctl schema")
	findings, err := open(t, db, Options{}).Check(t.Context())
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(findings), "lockctl schema")
	create(t, db, DefaultTable, "")
	var functions int
	require.NoError(t, db.QueryRow("SELECT count(*) FROM pg_proc WHERE proname IN ('lambdalock_locks_do', 'lambdalock_locks_park')").Scan(&functions))
	require.Equal(t, 2, functions)
	require.NoError(t, s.Release(t.Context(), lease), "the row has stayed")
	_, err = db.Exec("SELECT lambdalock_locks_asked('lambdalock_locks 3')")
	require.ErrorContains(t, err, "of version 2, and the program wants lambdalock_locks 3")
}
