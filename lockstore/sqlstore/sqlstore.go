package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/casstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/lanes"
)

// Table is a table of locks. All programs that use one resource need the same table.
type Table struct {
	Dialect *Dialect

	// Name is a name of letters in lower case, digits and _, and perhaps a schema and a dot before it; "" is DefaultTable.
	// Without a schema it is in the schema public of PostgreSQL and DSQL, whatever the search_path is, and in the main file of SQLite.
	// Of MySQL the schema is a database, and only Schema and Opener do without it: USE would move such a table.
	Name string
}

// DefaultTable is the name of a table without one.
const DefaultTable = "lambdalock"

var tableName = regexp.MustCompile(`^([A-Za-z0-9_-]{1,64}\.)?[a-z_][a-z0-9_]{0,39}$`)

// open returns the KV of the table, without a database. sends says that requests will be sent to it. tx is a transaction of the program, or nil.
func (t Table) open(sends bool, tx *sql.Tx) (*kv, error) {
	d, name := t.Dialect, cmp.Or(t.Name, DefaultTable)
	switch {
	case d == nil:
		return nil, lockstore.Invalidf("sqlstore: Table.Dialect is nil")
	case !tableName.MatchString(name):
		return nil, lockstore.Invalidf("sqlstore: Table is %.90q; want a name of letters in lower case, digits and _, at most 40 bytes, and perhaps a schema and a dot before it", name)
	case sends && d == MySQL && !strings.Contains(name, "."):
		return nil, lockstore.Invalidf("sqlstore: Table is %q; of MySQL want DATABASE.%s, because USE moves a table without a database", name, name)
	}
	schema, bare, found := strings.Cut(name, ".")
	if !found {
		schema, bare = d.schema, name
	}
	table := d.mark + bare + d.mark
	if schema != "" {
		table = d.mark + schema + d.mark + "." + table
	}
	refuses := d.refuses
	if tx == nil {
		refuses += d.alone
	}
	words := []string{"{table}", table, "{name}", "'" + table + "'", "{bare}", "'" + bare + "'", "{schema}", "'" + schema + "'", "{remark}", "'locks of lambdalock, " + d.name + " 1'", "{now}", d.now, "{clock}", cmp.Or(d.clock, d.now),
		"{refuses}", "CASE " + refuses + "ELSE '' END"}
	for _, op := range []string{"=", "<>", "<", ">", ">="} {
		words = append(words, "{"+op+"}", fmt.Sprintf(d.operator, op))
	}
	return &kv{Dialect: d, words: strings.NewReplacer(words...), tx: tx}, nil
}

// Schema is the SQL that makes the table. It may run again.
func (t Table) Schema() (string, error) {
	k, err := t.open(false, nil)
	if err != nil {
		return "", err
	}
	return k.fill(k.create), nil
}

// Options are a store's settings.
type Options struct {
	Table Table

	// Listen, if it is not nil, listens to a channel of PostgreSQL until ctx ends. It calls listening as soon as it listens, now or
	// again after the connection was lost, and woken with the payload of each notification. The store calls it when the first run of
	// this process waits, and again a second after it has returned. It needs a connection of its own to the server itself: a pooler in
	// transaction mode has no notifications. Without it a run that waits reads its key, with a pause that grows with its place
	// and the time that it has waited.
	Listen func(ctx context.Context, channel string, listening func(), woken func(payload string)) error
}

// New returns a store that keeps its locks in a table of the database. It sends nothing. The caller closes the store,
// and then db. Of db it uses as many connections at once as SetMaxOpenConns allows when New is called, and ten if there is no
// limit; one for SQLite. An error that it returns matches lockstore.ErrInvalid.
func New(db *sql.DB, o Options) (*lockstore.Store, error) {
	k, err := o.Table.open(true, nil)
	switch {
	case err != nil:
		return nil, err
	case db == nil:
		return nil, lockstore.Invalidf("sqlstore: the *sql.DB is nil")
	case o.Listen != nil && k.Dialect != PostgreSQL:
		return nil, lockstore.Invalidf("sqlstore: Listen is for PostgreSQL; %s has no notifications", k.name)
	}
	k.db, k.lanes = db, lanes.New(cmp.Or(db.Stats().MaxOpenConnections, 10))
	switch k.Dialect {
	case PostgreSQL:
		return k.store(newWaker(k, o.Listen))
	case SQLite:
		k.lanes = lanes.New(1) // who writes
	}
	return k.store(k)
}

func (k *kv) store(kv casstore.KV) (*lockstore.Store, error) {
	return casstore.New(kv, casstore.Options{Name: "sqlstore", MaxClockSkew: k.skew})
}

// Opener opens stores for the URLs of o.Table.Dialect, PostgreSQL by default: postgres and postgresql, dsql, mysql and mariadb, sqlite. open makes the database of
// the URL: it is where the program chooses its driver. It gets the URL without the parameter table, which is Table.Name if it is there (a program that calls StillHeld or Complete sets the same name in its Table); of MySQL the URL's database has the table, if the name has none. A
// program that has a *sql.DB already returns it, whatever the URL is. The store does not close it.
func Opener(open func(url string) (*sql.DB, error), o Options) lockstore.SchemeOpener {
	d := cmp.Or(o.Table.Dialect, PostgreSQL)
	o.Table.Dialect = d
	server, want := true, d.schemes[0]+"://USER:PASSWORD@HOST:PORT/DATABASE?table=TABLE, and parameters of the driver"
	if d == SQLite {
		server, want = false, "sqlite:///FILE?table=TABLE, and parameters of the driver"
	}
	parts := storeurl.Parts{Want: want, User: server, Host: server, Port: server, Path: true, Params: []string{"table"}, OtherParams: true}
	return lockstore.SchemeOpener{Schemes: d.schemes, Open: func(_ context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
		params, err := storeurl.Params(cfg.URL, parts)
		if err != nil {
			return nil, err
		}
		o, u, query := o, *cfg.URL, cfg.URL.Query()
		o.Table.Name = cmp.Or(params["table"], o.Table.Name)
		if database := strings.Trim(u.Path, "/"); d == MySQL && database != "" && !strings.Contains(o.Table.Name, ".") {
			o.Table.Name = database + "." + cmp.Or(o.Table.Name, DefaultTable)
		}
		if _, err := o.Table.open(true, nil); err != nil {
			return nil, err
		}
		query.Del("table")
		u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
		db, err := open(u.String())
		if err != nil { // the text of a driver may have the URL
			return nil, lockstore.Invalidf("sqlstore: the function that opens the database of the URL fails with a %T (not shown, it may hold a secret)", err)
		}
		return New(db, o)
	}}
}

// StillHeld returns nil if the lease holds its key, alone or with others, by the server's clock. Only the Key and the Fence
// of the lease count, which a guard.Lock has, too. From then on nobody else is
// granted the key, and the lease is neither renewed nor ended, until the transaction ends; on DSQL its commit fails in
// that case, with SQLSTATE 40001. So what the transaction writes is committed only if no other owner has been granted the key.
//
// Call it last, just before Commit: the row of the key is locked, and on SQLite the file. Other requests wait for a while, and are
// then refused, the renewal of this lease among them. Let the server end transactions in which nothing happens. The call waits for a row that
// another transaction has for five seconds at most.
//
// The error matches lockstore.ErrLost if the lease has ended. From REPEATABLE READ on the call fails, too, if the row has changed since
// the transaction began. Roll the transaction back after every error. Do not call it behind a savepoint: to roll back to that would give
// the row free.
func (t Table) StillHeld(ctx context.Context, tx *sql.Tx, lease lockstore.Lease) error {
	if err := lockstore.ValidateResolveNoEffect(lease.Key, lease.Fence); err != nil {
		return err
	}
	return t.within(ctx, tx, lease, driver.Request{Kind: driver.Inspect})
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
	return t.within(ctx, tx, lease, driver.Request{Kind: driver.Complete, Fence: lease.Fence, Result: result, TTL: d})
}

// within locks the row in a transaction of the caller's. Then it looks for the lease, or completes it.
func (t Table) within(ctx context.Context, tx *sql.Tx, lease lockstore.Lease, r driver.Request) error {
	k, err := t.open(true, tx)
	switch {
	case err != nil:
		return err
	case tx == nil:
		return lockstore.Invalidf("sqlstore: the *sql.Tx is nil")
	}
	s, err := k.store(k)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, busyTime)
	defer cancel()
	a, err := s.Driver().Do(limited, lease.Key, driver.Request{Kind: driver.Inspect})
	has := slices.ContainsFunc(a.Status.Holders, func(h driver.LiveLease) bool { return h.Fence == lease.Fence && h.State != driver.Revoked })
	r.Owner = casstore.OwnerOf(k.seen, lease.Fence)
	if err == nil && r.Kind == driver.Complete && r.Owner != "" { // else no holder has the fence
		a, err = s.Driver().Do(limited, lease.Key, r)
		has = a.Outcome == driver.Done
	}
	switch {
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("%w%s", err, tooLong)
	case err != nil:
		return err
	case a.Outcome == driver.Exclusive:
		return lockstore.Invalidf("sqlstore: key %q: Complete needs a lease with MaxHolders 1", lease.Key)
	case !has:
		return fmt.Errorf("sqlstore: key %q: the lease with the fence %d does not hold it: %w", lease.Key, lease.Fence, lockstore.ErrLost)
	}
	return nil
}
