package pgstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Options are a store's settings. All programs that use one resource need the same Table.
type Options struct {
	// Table is the table of the locks; "" is DefaultTable.
	Table Table

	// Listen, if it is not nil, listens to a channel of the database, and calls woken with the payload of each
	// notification. It calls woken("") as soon as it listens, and whenever it listens again after the connection
	// was lost. It returns when ctx ends, or with an error when it cannot listen any more; the store calls it
	// again when the next run waits. It needs a connection of its own, for as long as it listens. The store calls it
	// when the first run of this process waits, and ends ctx when none has waited for some seconds.
	//
	// With Listen a run that waits is woken at once. Without it, it reads its key, with pauses.
	Listen func(ctx context.Context, channel string, woken func(payload string)) error

	// Unprepared sends each request without a prepared statement of the session, for a pooler that gives the
	// statements of one connection to several sessions and cannot prepare.
	Unprepared bool
}

// New returns a store that keeps its locks in a table of the database. It sends nothing. The caller closes db, after
// the store. Its errors match lockstore.ErrInvalid.
func New(db *sql.DB, o Options) (*lockstore.Store, error) {
	return nil, errors.ErrUnsupported
}

// Opener opens stores for URLs with the scheme postgres or postgresql. open makes the database of the URL: it is
// where the program chooses its driver. It gets the URL without the parameter table, which is Options.Table if it is there.
//
//	pgstore.Opener(func(url string) (*sql.DB, error) { return sql.Open("postgres", url) }, pgstore.Options{})
//
// A program that has a *sql.DB already returns it from open, whatever the URL is. The store does not close it.
func Opener(open func(url string) (*sql.DB, error), o Options) lockstore.Opener {
	return lockstore.Opener{Schemes: []string{"postgres", "postgresql"}, Open: func(context.Context, lockstore.Config) (*lockstore.Store, error) {
		return nil, errors.ErrUnsupported
	}}
}
