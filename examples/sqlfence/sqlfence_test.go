package sqlfence

import (
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	_ "github.com/lib/pq" // a driver without dependencies; pgx has five
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestPostgreSQL(t *testing.T) {
	server := testservers.StartPostgreSQL(t)
	db := open(t, server.Addr)
	for _, statement := range []string{
		"CREATE TABLE accounts (id VARCHAR(64) PRIMARY KEY, balance BIGINT NOT NULL)",
		"INSERT INTO accounts (id, balance) VALUES ('old', 3)", // from before the column was there
		addColumn, makeFences,
		"CREATE TABLE log (n BIGINT GENERATED ALWAYS AS IDENTITY, fence BIGINT)",
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	t.Run("one row", func(t *testing.T) { testDeposit(t, db) })
	t.Run("a transaction", func(t *testing.T) { testFenced(t, db) })
	t.Run("F12 holders write at any time", func(t *testing.T) { testConcurrentWriters(t, db) })
	t.Run("F25 a lost answer", func(t *testing.T) { testLostAnswers(t, db, testservers.Proxy(t, server.Addr)) })
	t.Run("a database that fails", func(t *testing.T) {
		require.NoError(t, db.Close())
		err := Deposit(t.Context(), db, "7", 1, 300)
		require.Error(t, err)
		require.NotErrorIs(t, err, lockstore.ErrLost)
	})
}

func open(t *testing.T, addr string) *sql.DB {
	db, err := sql.Open("postgres", testservers.PostgreSQLURL(addr))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// stands fails the test unless the account has this balance and this fence.
func stands(t *testing.T, db *sql.DB, id string, balance int64, fence lockstore.Fence) {
	t.Helper()
	var there int64
	var by lockstore.Fence
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT balance, fence FROM accounts WHERE id = $1", id).Scan(&there, &by))
	require.Equal(t, balance, there)
	require.Equal(t, fence, by)
}

func testDeposit(t *testing.T, db *sql.DB) {
	deposit := func(amount int64, fence lockstore.Fence) error { return Deposit(t.Context(), db, "7", amount, fence) }
	require.NoError(t, deposit(10, 100), "the first write makes the row")
	stands(t, db, "7", 10, 100)
	require.NoError(t, deposit(5, 100), "the same holder may write again")
	stands(t, db, "7", 15, 100)
	require.NoError(t, deposit(1, 200))
	stands(t, db, "7", 16, 200)
	t.Run("F07 F12 a stale fence is refused", func(t *testing.T) {
		require.ErrorIs(t, deposit(1000, 199), lockstore.ErrLost)
		stands(t, db, "7", 16, 200)
	})
	t.Run("a row from before the column was there", func(t *testing.T) {
		require.NoError(t, Deposit(t.Context(), db, "old", 1, 1))
		stands(t, db, "old", 4, 1)
	})
}

// testLostAnswers: a write whose answer is lost is not sent again, and the caller gets an error.
func testLostAnswers(t *testing.T, db *sql.DB, network *testservers.CutProxy) {
	far := open(t, network.Addr)
	require.NoError(t, Deposit(t.Context(), far, "unlucky", 10, 1))
	lost := func(message string) {
		t.Helper()
		network.CutReplies(message)
		require.Error(t, Deposit(t.Context(), far, "unlucky", 5, 1))
		require.Equal(t, 1, network.Cuts())
		network.Forward()
	}
	lost("unlucky") // it is in the message that runs the statement, and not in that with the text
	stands(t, db, "unlucky", 10, 1)
	lost("COMMIT")
	stands(t, db, "unlucky", 15, 1)
}

var errEmpty = errors.New("not enough money")

// move takes money from account a to account b, if it is there.
func move(amount int64) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		var left int64
		if err := tx.QueryRow("UPDATE accounts SET balance = balance - $1 WHERE id = 'a' RETURNING balance", amount).Scan(&left); err != nil {
			return err
		}
		if left < 0 {
			return errEmpty
		}
		_, err := tx.Exec("UPDATE accounts SET balance = balance + $1 WHERE id = 'b'", amount)
		return err
	}
}

func testFenced(t *testing.T, db *sql.DB) {
	for _, id := range []string{"a", "b"} {
		require.NoError(t, Deposit(t.Context(), db, id, 10, 1))
	}
	both := func(a, b int64) {
		t.Helper()
		stands(t, db, "a", a, 1)
		stands(t, db, "b", b, 1)
	}
	fenced := func(key string, fence lockstore.Fence, writes func(*sql.Tx) error) error {
		return Fenced(t.Context(), db, key, fence, writes)
	}
	require.NoError(t, fenced("pair", 200, move(4)), "the first write of a key")
	both(6, 14)
	require.NoError(t, fenced("pair", 200, move(1)))
	both(5, 15)
	t.Run("F07 F12 a stale fence writes nothing", func(t *testing.T) {
		require.ErrorIs(t, fenced("pair", 199, func(*sql.Tx) error {
			t.Error("the writes ran")
			return nil
		}), lockstore.ErrLost)
		both(5, 15)
		require.NoError(t, fenced("another pair", 1, move(1)), "each key has a fence of its own")
		both(4, 16)
	})
	t.Run("a failed write undoes its claim", func(t *testing.T) {
		require.ErrorIs(t, fenced("pair", 300, move(1000)), errEmpty)
		both(4, 16)
		require.NoError(t, fenced("pair", 250, move(1)))
		both(3, 17)
	})
}

// testConcurrentWriters: holders whose leases have ended write at any time, over
// connections of their own. The fences of what is written never go down.
func testConcurrentWriters(t *testing.T, db *sql.DB) {
	var mu sync.Mutex
	var sum, refused int64
	var largest lockstore.Fence
	fences := rand.Perm(400)
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := w; i < len(fences); i += 8 {
				fence := lockstore.Fence(fences[i] + 1)
				one := Deposit(t.Context(), db, "9", 1, fence)
				both := Fenced(t.Context(), db, "account/9", fence, func(tx *sql.Tx) error {
					_, err := tx.Exec("INSERT INTO log (fence) VALUES ($1)", fence)
					return err
				})
				mu.Lock()
				for _, err := range []error{one, both} {
					switch {
					case errors.Is(err, lockstore.ErrLost):
						refused++
					case err != nil:
						t.Error(err)
					}
				}
				if one == nil {
					sum++
					largest = max(largest, fence)
				}
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	require.Equal(t, lockstore.Fence(len(fences)), largest, "the largest fence is never refused")
	stands(t, db, "9", sum, largest) // what was refused is not in the sum
	require.Positive(t, refused)

	rows, err := db.QueryContext(t.Context(), "SELECT fence FROM log ORDER BY n")
	require.NoError(t, err)
	var written []lockstore.Fence
	for rows.Next() {
		var fence lockstore.Fence
		require.NoError(t, rows.Scan(&fence))
		written = append(written, fence)
	}
	require.NoError(t, rows.Err())
	require.NotEmpty(t, written)
	require.True(t, slices.IsSorted(written), "%v", written)
}
