package sqlfence

import (
	"database/sql"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	_ "github.com/mattn/go-sqlite3"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// open returns a database in a file. A writer waits for another's transaction
// instead of failing.
func open(t *testing.T) *sql.DB {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(t.TempDir(), "db")+"?_busy_timeout=60000&_txlock=immediate&_journal_mode=WAL&_synchronous=OFF")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	for _, statement := range []string{"CREATE TABLE accounts (id VARCHAR(64) PRIMARY KEY, balance BIGINT NOT NULL)", addColumn, makeFences} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	return db
}

// account returns what the database keeps of an account.
func account(t *testing.T, db *sql.DB, id string) (balance int64, fence lockstore.Fence) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT balance, fence FROM accounts WHERE id = $1", id).Scan(&balance, &fence))
	return balance, fence
}

func TestDeposit(t *testing.T) {
	db := open(t)
	deposit := func(amount int64, fence lockstore.Fence) error { return Deposit(t.Context(), db, "7", amount, fence) }
	stands := func(balance int64, fence lockstore.Fence) {
		t.Helper()
		seen, by := account(t, db, "7")
		require.Equal(t, balance, seen)
		require.Equal(t, fence, by)
	}
	require.NoError(t, deposit(10, 100), "the first write makes the row")
	stands(10, 100)
	require.NoError(t, deposit(5, 100), "one holder writes as often as it likes")
	stands(15, 100)
	require.NoError(t, deposit(1, 200))
	stands(16, 200)
	t.Run("F07 F12 a stale fence is refused", func(t *testing.T) {
		require.ErrorIs(t, deposit(1000, 199), lockstore.ErrLost)
		stands(16, 200)
	})
	t.Run("a row from before the column was there", func(t *testing.T) {
		_, err := db.ExecContext(t.Context(), "INSERT INTO accounts (id, balance) VALUES ('8', 3)")
		require.NoError(t, err)
		require.NoError(t, Deposit(t.Context(), db, "8", 1, 1))
		balance, _ := account(t, db, "8")
		require.Equal(t, int64(4), balance)
	})
	t.Run("a database that fails", func(t *testing.T) {
		require.NoError(t, db.Close())
		err := deposit(1, 300)
		require.Error(t, err)
		require.NotErrorIs(t, err, lockstore.ErrLost)
	})
}

// move takes money from one account to another, if it is there.
func move(from, to string, amount int64) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		for id, change := range map[string]int64{from: -amount, to: amount} {
			if _, err := tx.Exec("UPDATE accounts SET balance = balance + $1 WHERE id = $2", change, id); err != nil {
				return err
			}
		}
		var left int64
		if err := tx.QueryRow("SELECT balance FROM accounts WHERE id = $1", from).Scan(&left); err != nil || left >= 0 {
			return err
		}
		return errEmpty
	}
}

var errEmpty = errors.New("not enough money")

func TestFenced(t *testing.T) {
	db := open(t)
	for _, id := range []string{"7", "8"} {
		require.NoError(t, Deposit(t.Context(), db, id, 10, 1))
	}
	both := func(seven, eight int64) {
		t.Helper()
		first, _ := account(t, db, "7")
		second, _ := account(t, db, "8")
		require.Equal(t, []int64{seven, eight}, []int64{first, second})
	}
	fenced := func(key string, fence lockstore.Fence, writes func(*sql.Tx) error) error {
		return Fenced(t.Context(), db, key, fence, writes)
	}
	require.NoError(t, fenced("pair", 200, move("7", "8", 4)), "the first write of a key")
	both(6, 14)
	require.NoError(t, fenced("pair", 200, move("7", "8", 1)))
	both(5, 15)
	t.Run("F07 F12 a stale fence writes nothing", func(t *testing.T) {
		require.ErrorIs(t, fenced("pair", 199, func(*sql.Tx) error {
			t.Error("the writes ran")
			return nil
		}), lockstore.ErrLost)
		both(5, 15)
		require.NoError(t, fenced("another pair", 1, move("7", "8", 1)), "each key has a fence of its own")
		both(4, 16)
	})
	t.Run("a failed write takes its claim back", func(t *testing.T) {
		require.ErrorIs(t, fenced("pair", 300, move("7", "8", 1000)), errEmpty)
		both(4, 16)
		require.NoError(t, fenced("pair", 250, move("7", "8", 1)))
		both(3, 17)
	})
}

// F12: holders whose leases have passed write at any time, over connections of
// their own. The fences of what is written never go down.
func TestConcurrentWriters(t *testing.T) {
	db := open(t)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE log (n INTEGER PRIMARY KEY AUTOINCREMENT, fence BIGINT)")
	require.NoError(t, err)
	var mu sync.Mutex
	var sum, refused int64
	var largest lockstore.Fence
	fences := rand.Perm(400)
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := w; i < len(fences); i += 8 {
				fence := lockstore.Fence(fences[i] + 1)
				one := Deposit(t.Context(), db, "7", 1, fence)
				both := Fenced(t.Context(), db, "account/7", fence, func(tx *sql.Tx) error {
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
	balance, fence := account(t, db, "7")
	require.Equal(t, sum, balance, "what was refused is not in the sum")
	require.Equal(t, largest, fence)
	require.Equal(t, lockstore.Fence(len(fences)), fence, "the largest fence is never refused")
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

// The page shows the code that was tested here.
func TestThePageShowsThisCode(t *testing.T) {
	page, err := os.ReadFile("../../docs/fencing.md")
	require.NoError(t, err)
	code, err := os.ReadFile("sqlfence.go")
	require.NoError(t, err)
	shown := regexp.MustCompile("(?s)```(?:go|sql)\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, shown, 6)
	for _, block := range shown {
		require.Contains(t, string(code), block[1])
	}
}
