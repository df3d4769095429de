package pgstore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
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
	if err := t.validate(); err != nil {
		return "", err
	}
	return strings.ReplaceAll(schema, string(DefaultTable), string(t)), nil
}

//go:embed schema.sql
var schema string

var tableName = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,39}\.)?[a-z_][a-z0-9_]{0,39}$`)

func (t Table) validate() error {
	if !tableName.MatchString(string(t)) {
		return lockstore.Invalidf("pgstore: Table is %.90q; want a name of letters in lower case, digits and _, at most 40 bytes, and perhaps a schema and a dot before it", string(t))
	}
	return nil
}

// asked is the argument by which the functions know that they are those of the table, and of this version.
func (t Table) asked() string { return string(t) + " 2" }

// statement is that of all requests.
func (t Table) statement() string {
	return "SELECT " + columns + " FROM " + string(t) + "_do(" + parameters("") + ")"
}

// parameters are those of the function, with their types: otherwise a function of the same name that another role has made for
// other types could be called. key is put in front of the third, the key.
func parameters(key string) string {
	return "$1::text, $2::text, " + key + "$3::text, $4::text, $5::bigint, $6::bigint, $7::integer, $8::text, $9::boolean, $10::bigint, $11::text, $12::bytea"
}

// Schema is Table.Schema.
func Schema(table string) (string, error) { return Table(table).Schema() }

// StillHeld returns nil if the lease holds its key, alone or with others, by the server's clock. Only the Key and the Fence
// of the lease count, which a guard.Lock has, too. From then on nobody else is
// granted the key, and the lease is neither renewed nor ended, until the transaction ends. So what the transaction writes is
// committed only if no other owner has been granted the key. Call it last, just before Commit: other requests
// for the key wait for the end of the transaction, and so does the renewal of this lease.
//
// The error matches lockstore.ErrLost if the lease has ended. Roll the transaction back after every error. Do not call it behind a
// savepoint: to roll back to that would give the row free.
func (t Table) StillHeld(ctx context.Context, tx *sql.Tx, lease lockstore.Lease) error {
	if err := lockstore.ValidateResolveNoEffect(lease.Key, lease.Fence); err != nil {
		return err
	}
	return t.within(ctx, tx, "still held", lease, driver.Request{})
}

// Complete is lockstore.Store.Complete in a transaction: the effect of the work and its result are committed together, or none
// of them. Call it last, just before Commit, as StillHeld. Of the lease only the Key and the Fence count. In a second
// transaction the error matches lockstore.ErrLost, so that the effect is not committed twice; lockstore.Store.Complete of the same lease
// returns nil afterwards.
//
// The errors are those of lockstore.Store.Complete. Roll the transaction back after every error. Nobody wakes the
// parked owners of the key.
func (t Table) Complete(ctx context.Context, tx *sql.Tx, lease lockstore.Lease, result []byte, d time.Duration) error {
	if err := lockstore.ValidateResolveEffect(lease.Key, lease.Fence, result, d); err != nil {
		return err
	}
	return t.within(ctx, tx, driver.Complete.String(), lease, driver.Request{Result: result, TTL: d})
}

// within sends a request in a transaction of the caller's. What an error undoes is the caller's transaction.
func (t Table) within(ctx context.Context, tx *sql.Tx, kind string, lease lockstore.Lease, r driver.Request) error {
	if err := t.validate(); err != nil {
		return err
	}
	if tx == nil {
		return lockstore.Invalidf("pgstore: the *sql.Tx is nil")
	}
	r.Fence = lease.Fence
	var got row
	c := &call{key: lease.Key} // without the owner the fence says whose lease it is, and what has ended is lost
	if err := one(ctx, tx, t.statement(), arguments(t, kind, lease.Key, "", c, r), got.into()); err != nil {
		return t.refusal(fmt.Sprintf("key %q: not applied", lease.Key), err)
	}
	switch a, err := got.answer(c); {
	case err != nil:
		return err
	case a.Outcome == driver.Lost:
		return fmt.Errorf("pgstore: key %q: %s: %w", lease.Key, a.Why, lockstore.ErrLost)
	case a.Outcome == driver.Exclusive:
		return lockstore.Invalidf("pgstore: key %q: %s needs a lease with MaxHolders 1", lease.Key, kind)
	case a.Outcome != driver.Done:
		return fmt.Errorf("pgstore: key %q: the answer to %s is %q", lease.Key, kind, got.outcome)
	}
	return nil
}

// StillHeld is Table.StillHeld of DefaultTable.
func StillHeld(ctx context.Context, tx *sql.Tx, lease lockstore.Lease) error {
	return DefaultTable.StillHeld(ctx, tx, lease)
}

// Complete is Table.Complete of DefaultTable.
func Complete(ctx context.Context, tx *sql.Tx, lease lockstore.Lease, result []byte, d time.Duration) error {
	return DefaultTable.Complete(ctx, tx, lease, result, d)
}
