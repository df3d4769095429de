package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"regexp"
	"strings"

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
	// Without a schema it is in the schema public of PostgreSQL and DSQL, whatever the search_path is, in the database of a
	// connection to MySQL, and in the main file of SQLite.
	Name string
}

// DefaultTable is the name of a table without one.
const DefaultTable = "lambdalock"

var tableName = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,39}\.)?[a-z_][a-z0-9_]{0,39}$`)

// open returns the KV of the table, without a database.
func (t Table) open() (*kv, error) {
	d, name := t.Dialect, cmp.Or(t.Name, DefaultTable)
	switch {
	case d == nil:
		return nil, lockstore.Invalidf("sqlstore: Table.Dialect is nil")
	case !tableName.MatchString(name):
		return nil, lockstore.Invalidf("sqlstore: Table is %.90q; want a name of letters in lower case, digits and _, at most 40 bytes, and perhaps a schema and a dot before it", name)
	}
	schema, bare, found := strings.Cut(name, ".")
	if !found {
		schema, bare = d.schema, name
	}
	table, inSchema := d.mark+bare+d.mark, "DATABASE()"
	if schema != "" {
		table, inSchema = d.mark+schema+d.mark+"."+table, "'"+schema+"'"
	}
	words := append(d.operators(), "{table}", table, "{name}", "'"+table+"'", "{bare}", "'"+bare+"'", "{schema}", inSchema, "{remark}", "'locks of lambdalock, "+d.name+" 1'", "{now}", d.now)
	return &kv{Dialect: d, words: words}, nil
}

// Schema is the SQL that makes the table. It may run again.
func (t Table) Schema() (string, error) {
	k, err := t.open()
	if err != nil {
		return "", err
	}
	return k.fill(k.create), nil
}

// Options are a store's settings.
type Options struct {
	Table Table

	// Listen, if it is not nil, listens to a channel of PostgreSQL, and calls woken with the payload of each
	// notification. It calls woken("") as soon as it listens, and whenever it listens again after the connection
	// was lost. It returns when ctx ends, or with an error when it cannot listen any more; the store calls it
	// again when the next run waits. It needs a connection of its own to the server itself: a pooler in transaction mode has no
	// notifications. The store calls it when the first run of this process waits, and ends ctx when none has waited for some seconds.
	Listen func(ctx context.Context, channel string, woken func(payload string)) error
}

// New returns a store that keeps its locks in a table of the database. It sends nothing. The caller closes the store,
// and then db. Of db it uses as many connections at once as SetMaxOpenConns allows when New is called, and ten if there is no
// limit; one for SQLite. An error that it returns matches lockstore.ErrInvalid.
func New(db *sql.DB, o Options) (*lockstore.Store, error) {
	k, err := o.Table.open()
	switch {
	case err != nil:
		return nil, err
	case db == nil:
		return nil, lockstore.Invalidf("sqlstore: the *sql.DB is nil")
	case o.Listen != nil && k.Dialect != PostgreSQL:
		return nil, lockstore.Invalidf("sqlstore: Listen is for PostgreSQL; %s has no notifications", k.name)
	}
	room := cmp.Or(db.Stats().MaxOpenConnections, 10)
	var kv casstore.KV = k
	switch k.Dialect {
	case PostgreSQL:
		kv = &waker{kv: k, listen: o.Listen, channel: "lambdalock_" + digest(k.fill("{table}")), waiters: map[string]chan struct{}{}}
	case SQLite:
		room = 1 // who writes
	}
	k.db, k.lanes = db, lanes.New(room)
	s, err := k.store(kv)
	if err != nil {
		return nil, err
	}
	return s.WrapDriver(func(d driver.Driver) driver.Driver { return &server{d, kv} }), nil
}

func (k *kv) store(kv casstore.KV) (*lockstore.Store, error) {
	return casstore.New(kv, casstore.Options{Name: "sqlstore", MaxClockSkew: k.skew})
}

// server is casstore's driver. It tells the KV how urgent a request is.
type server struct {
	driver.Driver
	kv casstore.KV
}

type laneKey struct{} // of a context's value

// Unwrap is for driver.As.
func (s *server) Unwrap() driver.Driver { return s.Driver }

// KV is for tests.
func (s *server) KV() casstore.KV { return s.kv }

// Do implements driver.Driver.
func (s *server) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return s.Driver.Do(context.WithValue(ctx, laneKey{}, lanes.Of(r)), key, r)
}

// Await implements driver.Driver.
func (s *server) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return s.Driver.Await(context.WithValue(ctx, laneKey{}, lanes.Of(r)), key, r)
}

// Opener opens stores for the URLs of o.Table.Dialect: postgres and postgresql, dsql, mysql and mariadb, sqlite. open makes the database of
// the URL: it is where the program chooses its driver. It gets the URL without the parameter table, which is Table.Name if it is there. A
// program that has a *sql.DB already returns it, whatever the URL is. The store does not close it.
func Opener(open func(url string) (*sql.DB, error), o Options) lockstore.SchemeOpener {
	d := cmp.Or(o.Table.Dialect, PostgreSQL)
	server := d != SQLite
	parts := storeurl.Parts{
		Want: d.schemes[0] + "://USER:PASSWORD@HOST:PORT/DATABASE?table=TABLE, and parameters of the driver",
		User: server, Host: server, Port: server, Path: true, Params: []string{"table"}, OtherParams: true,
	}
	if !server {
		parts.Want = "sqlite:///FILE?table=TABLE, and parameters of the driver"
	}
	return lockstore.SchemeOpener{Schemes: d.schemes, Open: func(_ context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
		params, err := storeurl.Params(cfg.URL, parts)
		if err != nil {
			return nil, err
		}
		u, o := *cfg.URL, o
		if params["table"] != "" {
			o.Table.Name = params["table"]
			query := u.Query()
			query.Del("table")
			u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
		}
		if _, err := o.Table.open(); err != nil {
			return nil, err
		}
		db, err := open(u.String())
		if err != nil {
			// The text of a driver may have the URL.
			return nil, lockstore.Invalidf("sqlstore: the function that opens the database of the URL fails with a %T (not shown, it may hold a secret)", err)
		}
		return New(db, o)
	}}
}
