package sqltest

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

// minute is a context for a test of what waits: a mistake fails it after a minute, and it does not hang.
func minute(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func request(key string) lockstore.Request {
	return lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute}
}

func acquire(t *testing.T, s *lockstore.Store, r lockstore.Request) lockstore.Lease {
	t.Helper()
	lease, err := s.Acquire(minute(t), r)
	require.NoError(t, err)
	return lease
}

func count(t *testing.T, db *sql.DB, statement string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow(statement).Scan(&n))
	return n
}

// TestTransaction: with StillHeld or Complete an effect is committed once, and only under the lock.
func TestTransaction(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		e, table, db := e.created(t)
		run(t, db, "CREATE TABLE effects (fence bigint)")
		s := e.store(t, table, 3)
		ctx := minute(t)
		begin := func(lease lockstore.Lease) *sql.Tx {
			tx, err := db.BeginTx(ctx, nil)
			require.NoError(t, err)
			_, err = tx.Exec(fmt.Sprintf("INSERT INTO effects VALUES (%d)", lease.Fence))
			require.NoError(t, err)
			return tx
		}
		effects := func(want int) {
			t.Helper()
			require.Equal(t, want, count(t, db, "SELECT count(*) FROM effects"))
		}
		key := "account/7"
		short := request(key)
		short.TTL = lockstore.MinTTL
		first := acquire(t, s, short)
		tx := begin(first)
		require.NoError(t, table.StillHeld(ctx, tx, first))
		// The holder stops here for longer than its lease. Nobody is granted the key until its transaction has ended.
		var ended atomic.Bool
		granted := make(chan lockstore.Lease)
		go func() {
			r := request(key)
			for {
				lease, err := s.Acquire(ctx, r)
				if err == nil {
					assert.True(t, ended.Load(), "it is granted the key during the transaction")
					granted <- lease
					return
				}
				if ctx.Err() != nil {
					close(granted)
					return
				}
			}
		}()
		<-time.After(short.TTL + time.Second)
		ended.Store(true)
		require.NoError(t, tx.Commit())
		second := <-granted
		effects(1)
		require.Greater(t, second.Fence, first.Fence)

		// The holder that has lost the key writes nothing, nor does one whose lease is revoked and not over.
		revoked := acquire(t, s, request("revoked"))
		_, err := s.Revoke(ctx, lockstore.RevokeRequest{Key: revoked.Key, Fence: revoked.Fence})
		require.NoError(t, err)
		for _, call := range []func(tx *sql.Tx) error{
			func(tx *sql.Tx) error { return table.StillHeld(ctx, tx, first) },
			func(tx *sql.Tx) error { return table.StillHeld(ctx, tx, revoked) },
			func(tx *sql.Tx) error { return table.Complete(ctx, tx, first, []byte("old"), time.Minute) },
			func(tx *sql.Tx) error { return table.StillHeld(ctx, tx, lockstore.Lease{Key: "no row", Fence: 1}) },
		} {
			tx = begin(first)
			require.ErrorIs(t, call(tx), lockstore.ErrLost)
			require.NoError(t, tx.Rollback())
		}
		effects(1)

		// The holder is killed before its commit: neither the effect nor the completion is there.
		guarded := lockstore.Lease{Key: second.Key, Fence: second.Fence} // what a handler knows of its lease
		tx = begin(second)
		require.NoError(t, table.Complete(ctx, tx, guarded, []byte("killed"), time.Minute))
		require.NoError(t, tx.Rollback())
		effects(1)
		status, err := s.Inspect(ctx, key)
		require.NoError(t, err)
		require.Equal(t, lockstore.Held, status.State)

		// It runs again: one effect, with its result, whatever is repeated.
		tx = begin(second)
		require.NoError(t, table.Complete(ctx, tx, guarded, []byte("done"), time.Minute))
		require.NoError(t, tx.Commit())
		tx = begin(second)
		require.ErrorIs(t, table.Complete(ctx, tx, guarded, []byte("done"), time.Minute), lockstore.ErrLost)
		require.NoError(t, tx.Rollback())
		require.NoError(t, s.Complete(ctx, second, []byte("again"), time.Minute))
		_, err = s.Acquire(ctx, request(key))
		refused, ok := errors.AsType[*lockstore.Refused](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "done", string(refused.Result))
		effects(2)

		// So it is for an owner with any name.
		named := request("named")
		named.Owner = "nobody"
		lease := acquire(t, s, named)
		tx = begin(lease)
		require.NoError(t, table.Complete(ctx, tx, lease, nil, time.Minute))
		require.NoError(t, tx.Commit())
		tx = begin(lease)
		require.ErrorIs(t, table.Complete(ctx, tx, lease, nil, time.Minute), lockstore.ErrLost)
		require.NoError(t, tx.Rollback())
		effects(3)

		// Several holders: each holds the key still, and none completes it.
		r := request("shared")
		r.MaxHolders = 2
		shared := acquire(t, s, r)
		r.Owner = lockstore.NewOwner()
		acquire(t, s, r)
		tx = begin(shared)
		require.NoError(t, table.StillHeld(ctx, tx, shared))
		require.ErrorIs(t, table.Complete(ctx, tx, shared, nil, time.Minute), lockstore.ErrInvalid)
		require.NoError(t, tx.Rollback())
		require.ErrorIs(t, table.StillHeld(ctx, nil, shared), lockstore.ErrInvalid)
		require.ErrorIs(t, sqlstore.Table{}.StillHeld(ctx, nil, shared), lockstore.ErrInvalid)
	})
}

// TestFewTexts: pgx and the server keep 512 texts of statements for each connection. Those of StillHeld and Complete are few, and have no results.
func TestFewTexts(t *testing.T) {
	t.Parallel()
	e, table, _ := postgreSQL(t).created(t)
	e.driver = "pgx"
	for which, dialect := range []*sqlstore.Dialect{sqlstore.PostgreSQL, sqlstore.DSQL} {
		table.Dialect = dialect
		s, db := e.store(t, table, 2), e.pool(t, e.addr, 1)
		for n := range 10 {
			lease := acquire(t, s, request(fmt.Sprint(which, n)))
			tx, err := db.Begin()
			require.NoError(t, err)
			require.NoError(t, table.StillHeld(minute(t), tx, lease))
			require.NoError(t, table.Complete(minute(t), tx, lease, []byte("done"), time.Minute))
			require.NoError(t, tx.Commit())
		}
		require.Less(t, count(t, db, "SELECT count(*) FROM pg_prepared_statements"), 8)
	}
}

// StillHeld waits for a transaction that has the row, or the file, for a limited time.
func TestLocked(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, e engine) {
		e, table, _ := e.created(t)
		lease := acquire(t, e.store(t, table, 2), request("k"))
		var txs [2]*sql.Tx
		for i := range txs {
			tx, err := e.pool(t, e.addr, 1).BeginTx(minute(t), nil)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }() // also after a failure
			txs[i] = tx
		}
		require.NoError(t, table.StillHeld(minute(t), txs[0], lease))
		err := table.StillHeld(minute(t), txs[1], lease)
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.ErrorContains(t, err, "for too long")
		require.NoError(t, txs[0].Commit())
	})
}

// StillHeld waits while another program has SQLite's file, and not if its transaction is too old to write.
func TestFileInUse(t *testing.T) {
	t.Parallel()
	e, table, admin := sqlite(t).created(t) // in the mode WAL
	lease := acquire(t, e.store(t, table, 2), request("k"))
	other, err := admin.Begin()
	require.NoError(t, err)
	defer func() { _ = other.Rollback() }() // also after a failure
	const write = "UPDATE lambdalock SET written = written - 1"
	_, err = other.Exec(write)
	require.NoError(t, err)
	var updates atomic.Int32
	program := e.edited(t, 2, func(_ driver.Conn, statement string) string {
		updates.Add(1)
		return statement
	})
	tx, err := program.Begin()
	require.NoError(t, err)
	held := make(chan error, 1)
	go func() { held <- table.StillHeld(minute(t), tx, lease) }()
	require.Eventually(t, func() bool { return updates.Load() > 1 }, time.Minute, time.Millisecond, "it asks again")
	require.NoError(t, other.Commit())
	require.NoError(t, <-held)
	require.NoError(t, tx.Commit())

	tx, err = program.Begin()
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	var n int
	require.NoError(t, tx.QueryRow("SELECT count(*) FROM lambdalock").Scan(&n))
	require.Equal(t, 1, n)
	run(t, admin, write)
	updates.Store(0)
	err = table.StillHeld(minute(t), tx, lease)
	require.ErrorContains(t, err, "(517)")
	require.EqualValues(t, 1, updates.Load(), "it would wait in vain")
}

// TestOneEffect: the work of many items, of which each has several runs that are frozen for longer than their lease, or killed before their
// commit. With StillHeld or Complete each item has one effect. Without them some have more.
func TestOneEffect(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		const stillHeld, complete, control = 0, 1, 2
		items := 100
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var modes sync.WaitGroup
		defer modes.Wait()
		for mode := range 3 {
			e := e
			if e.addr == "" {
				e = sqlite(t)
			}
			table := e.table(fmt.Sprint("locks", mode))
			db := e.create(t, table)
			run(t, db, "CREATE TABLE IF NOT EXISTS effects (item bigint, mode bigint)")
			s := store(t, e.pool(t, e.addr, 8), sqlstore.Options{Table: table})
			work := e.pool(t, cmp.Or(e.addr, patient), 8)
			effect := func(item int, lease lockstore.Lease) error {
				if rand.N(4) == 0 {
					<-time.After(lease.TTL + rand.N(lease.TTL)) // it is frozen
				}
				tx, err := work.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				defer func() { _ = tx.Rollback() }() // after Commit it does nothing
				n := 0
				if mode == stillHeld {
					if err := table.StillHeld(ctx, tx, lease); err != nil {
						return err
					}
					if err := tx.QueryRow(fmt.Sprintf("SELECT count(*) FROM effects WHERE mode = 0 AND item = %d", item)).Scan(&n); err != nil {
						return err
					}
				}
				if n == 0 {
					if _, err := tx.Exec(fmt.Sprintf("INSERT INTO effects VALUES (%d, %d)", item, mode)); err != nil {
						return err
					}
				}
				if mode == complete {
					if err := table.Complete(ctx, tx, lease, []byte("done"), time.Minute); err != nil {
						return err
					}
				}
				if rand.N(5) == 0 {
					return errors.New("it is killed")
				}
				if err := tx.Commit(); err != nil || mode == complete || rand.N(5) == 0 {
					return err
				}
				return s.Complete(ctx, lease, []byte("done"), time.Minute)
			}
			var all sync.WaitGroup
			for n := range 2 * items {
				item := n % items
				all.Go(func() {
					for ctx.Err() == nil {
						r := request(fmt.Sprint(mode, "/", item))
						r.TTL = lockstore.MinTTL
						lease, err := s.Acquire(ctx, r)
						if refused, ok := errors.AsType[*lockstore.Refused](err); ok && refused.Result != nil {
							return
						}
						if err == nil {
							_ = effect(item, lease) // whatever happens, it asks again
						}
						<-time.After(rand.N(lockstore.MinTTL / 2))
					}
				})
			}
			modes.Go(func() {
				all.Wait()
				effects := count(t, db, fmt.Sprintf("SELECT count(*) FROM effects WHERE mode = %d", mode))
				t.Logf("mode %d: %d effects of %d items", mode, effects, items)
				assert.NoError(t, ctx.Err(), "it is not done in time")
				if mode == control {
					assert.Greater(t, effects, items)
				} else {
					assert.Equal(t, items, effects)
				}
			})
			if e.addr == "" { // it computes in this process
				modes.Wait()
			}
		}
	})
}
