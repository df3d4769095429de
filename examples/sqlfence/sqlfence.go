// Package sqlfence is an example of a fence in a SQL database. It is the code of
// docs/fencing.md: set the fence, refuse an older one, make the first write, and read
// the number of rows affected. The test runs it on PostgreSQL, with several
// connections that write at the same time.
//
// A program needs a driver of database/sql, which this package does not choose.
package sqlfence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lambdalock/lambdalock/lockstore"
)

const addColumn = `
ALTER TABLE accounts ADD COLUMN fence BIGINT NOT NULL DEFAULT 0
`

const deposit = `
INSERT INTO accounts (id, balance, fence) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE
   SET balance = accounts.balance + excluded.balance, fence = excluded.fence
 WHERE accounts.fence <= excluded.fence
`

// Deposit writes one row, which need not be there yet.
func Deposit(ctx context.Context, db *sql.DB, account string, amount int64, fence lockstore.Fence) error {
	return transaction(ctx, db, func(tx *sql.Tx) error {
		return fenced(tx.ExecContext(ctx, deposit, account, amount, fence))
	})
}

// transaction is also for a single statement: outside of a transaction database/sql sends it again when the driver says that
// the connection is bad, and the first one may have been applied.
func transaction(ctx context.Context, db *sql.DB, writes func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := writes(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// fenced returns lockstore.ErrLost for a write that found a larger fence.
func fenced(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	rows, err := result.RowsAffected()
	if err == nil && rows == 0 {
		err = fmt.Errorf("written under a larger fence: %w", lockstore.ErrLost)
	}
	return err
}

const makeFences = `
CREATE TABLE fences (key VARCHAR(1024) PRIMARY KEY, fence BIGINT NOT NULL)
`

const claim = `
INSERT INTO fences (key, fence) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET fence = excluded.fence WHERE fences.fence <= excluded.fence
`

// Fenced runs writes in a transaction that begins by claiming the lock's key.
func Fenced(ctx context.Context, db *sql.DB, key string, fence lockstore.Fence, writes func(*sql.Tx) error) error {
	return transaction(ctx, db, func(tx *sql.Tx) error {
		if err := fenced(tx.ExecContext(ctx, claim, key, fence)); err != nil {
			return err
		}
		return writes(tx)
	})
}
