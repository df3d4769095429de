// Command transfer moves money between two accounts in PostgreSQL, once for each id. Its locks are in the same
// database, so a transfer is committed together with its result.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"

	_ "github.com/lib/pq" // the driver is the program's choice

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

// Transfer is the event.
type Transfer struct {
	ID    string `json:"id"`
	From  string `json:"from"`
	To    string `json:"to"`
	Cents int64  `json:"cents"`
}

// Receipt is the result.
type Receipt struct {
	ID   string `json:"id"`
	Left int64  `json:"left"` // on the account that paid
}

var locks = sqlstore.Table{Dialect: sqlstore.PostgreSQL}

func main() {
	g, db := open()
	once := boot.Must(idempotency.New(g, idempotency.Options{}))
	boot.Start(g, idempotency.Wrap(once, call, func(ctx context.Context, _ guard.Lock, t Transfer) (Receipt, error) {
		return move(ctx, db, t)
	}))
}

// open returns the guard and the database of LOCK_URL. Opener reads the URL's parameter table itself, and locks.Complete
// needs the same table.
func open() (*guard.Guard, *sql.DB) {
	locks.Name = boot.MustURLFromEnv("LOCK_URL").Query().Get("table")
	var db *sql.DB
	g := boot.MustGuardFromEnv(sqlstore.Opener(func(url string) (_ *sql.DB, err error) {
		db, err = sql.Open("postgres", url)
		return db, err
	}, sqlstore.Options{Table: locks}))
	return g, db
}

func call(_ context.Context, t Transfer) (idempotency.Call, error) {
	if t.Cents <= 0 || t.From == t.To {
		return idempotency.Call{}, fmt.Errorf("cents: is %d, from %q to %q; want 1 or more, between two accounts", t.Cents, t.From, t.To)
	}
	c := idempotency.NewCall("transfer", t.ID)
	c.Fingerprint = t // the same id for another transfer is an error
	return c, nil
}

// move commits the transfer and its result, or nothing. If the answer to the commit is lost, the next run of the event
// finds out.
func move(ctx context.Context, db *sql.DB, t Transfer) (Receipt, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return Receipt{}, err
	}
	defer tx.Rollback()
	// Transfers in both directions lock their two rows in the same order. Otherwise PostgreSQL ends one of them as a deadlock.
	if _, err := tx.ExecContext(ctx, "SELECT id FROM accounts WHERE id IN ($1, $2) ORDER BY id FOR UPDATE", t.From, t.To); err != nil {
		return Receipt{}, err
	}
	receipt := Receipt{ID: t.ID}
	err = tx.QueryRowContext(ctx, "UPDATE accounts SET cents = cents - $2 WHERE id = $1 RETURNING cents", t.From, t.Cents).Scan(&receipt.Left)
	if err != nil {
		return Receipt{}, fmt.Errorf("account %q: %w", t.From, err)
	}
	added, err := tx.ExecContext(ctx, "UPDATE accounts SET cents = cents + $2 WHERE id = $1", t.To, t.Cents)
	if err != nil {
		return Receipt{}, fmt.Errorf("account %q: %w", t.To, err)
	}
	if n, err := added.RowsAffected(); err != nil || n != 1 {
		return Receipt{}, fmt.Errorf("account %q: %d rows: %w", t.To, n, cmp.Or(err, sql.ErrNoRows))
	}
	result, err := idempotency.Prepare(ctx, receipt)
	if err != nil {
		return Receipt{}, err
	}
	lease := lockstore.Lease{Key: result.Lock.Key, Fence: result.Lock.Fence}
	if err := locks.Complete(ctx, tx, lease, result.Data, result.Time); err != nil {
		return Receipt{}, err
	}
	return receipt, tx.Commit()
}
