package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Table is the name of a table of locks: letters, digits and "_", at most 40 bytes, in lower case, with the name of a schema and a "." before
// it if it is not to be found by search_path.
type Table string

// DefaultTable is the table of Options without Table, of StillHeld and of Complete.
const DefaultTable Table = "lambdalock_locks"

// Schema returns the statements that make the table, its types and its functions. They change nothing that is there
// already, except that they replace functions of another version. They fail if there is a table of this name that
// is not a table of locks. A program, or an operator, runs them as one statement without arguments, with the rights to create tables,
// before the first use of the store. The store never does.
func (t Table) Schema() (string, error) {
	return "", errors.ErrUnsupported
}

// Schema is Table.Schema.
func Schema(table string) (string, error) { return Table(table).Schema() }

// StillHeld returns nil if the lease holds its key, alone or with others, by the server's clock. From then on nobody else is
// granted the key, and the lease is neither renewed nor ended, until the transaction ends. So what the transaction writes is
// committed only if no other owner has been granted the key. Call it last, just before Commit: other requests
// for the key wait for the end of the transaction, and so does the renewal of this lease.
//
// The error matches lockstore.ErrLost if the lease has ended. Roll the transaction back after every error.
func (t Table) StillHeld(ctx context.Context, tx *sql.Tx, lease lockstore.Lease) error {
	return errors.ErrUnsupported
}

// Complete is lockstore.Store.Complete in a transaction: the effect of the work and its result are committed together, or none
// of them. Call it last, just before Commit, as StillHeld. A Complete of the same lease afterwards returns nil.
//
// The errors are those of lockstore.Store.Complete. Roll the transaction back after every error. Nobody wakes the
// parked owners of the key.
func (t Table) Complete(ctx context.Context, tx *sql.Tx, lease lockstore.Lease, result []byte, d time.Duration) error {
	return errors.ErrUnsupported
}

// StillHeld is Table.StillHeld of DefaultTable.
func StillHeld(ctx context.Context, tx *sql.Tx, lease lockstore.Lease) error {
	return DefaultTable.StillHeld(ctx, tx, lease)
}

// Complete is Table.Complete of DefaultTable.
func Complete(ctx context.Context, tx *sql.Tx, lease lockstore.Lease, result []byte, d time.Duration) error {
	return DefaultTable.Complete(ctx, tx, lease, result, d)
}
