package stores

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/lib/pq"
	"modernc.org/sqlite"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/sqlstore"
)

// connections are how many lockctl makes to a database at once.
const connections = 10

// sqlOpeners open stores in SQL databases. Nobody listens there: a command that waits for a lock asks for it. makes says that a file
// of SQLite which is not there is made: a command that only looks at locks must not take a wrong path for a file without locks.
func sqlOpeners(makes bool) []lockstore.SchemeOpener {
	return []lockstore.SchemeOpener{
		sqlOpener(sqlstore.PostgreSQL, postgreSQL), sqlOpener(sqlstore.DSQL, postgreSQL), sqlOpener(sqlstore.MySQL, mySQL),
		{Schemes: []string{"sqlite"}, Open: func(ctx context.Context, c lockstore.Config) (*lockstore.Store, error) {
			table := sqlstore.Table{Dialect: sqlstore.SQLite, Name: c.URL.Query().Get("table")}
			return sqlOpener(sqlstore.SQLite, func(u *url.URL) (driver.Connector, error) { return newFile(u, table, makes) }).Open(ctx, c)
		}},
	}
}

func sqlOpener(d *sqlstore.Dialect, connector func(*url.URL) (driver.Connector, error)) lockstore.SchemeOpener {
	return sqlstore.Opener(func(text string) (*sql.DB, error) {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		c, err := connector(u)
		if err != nil {
			return nil, err
		}
		db := sql.OpenDB(c)
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
		return db, nil
	}, sqlstore.Options{Table: sqlstore.Table{Dialect: d}})
}

func postgreSQL(u *url.URL) (driver.Connector, error) {
	u.Scheme = "postgres"              // of DSQL, too
	return pq.NewConnector(u.String()) // sql.Open would say only later what is wrong with the URL
}

// mySQL encrypts by default, and does not ask who the server is, as lib/pq. The parameters are those of the driver, and variables of the
// session: the server's own time to wait for a row would be 50 s.
func mySQL(u *url.URL) (driver.Connector, error) {
	params := u.Query()
	for name, value := range map[string]string{"tls": "skip-verify", "innodb_lock_wait_timeout": "2"} {
		if !params.Has(name) {
			params.Set(name, value)
		}
	}
	config, err := mysql.ParseDSN("tcp(" + net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "3306")) + ")/?" + params.Encode())
	if err != nil {
		return nil, err
	}
	config.User, config.DBName = u.User.Username(), strings.TrimPrefix(u.Path, "/")
	config.Passwd, _ = u.User.Password()
	return mysql.NewConnector(config)
}

// file makes connections to a file of SQLite, and perhaps the file and its table.
type file struct {
	driver.Connector
	path, schema string
	makes        bool
}

var errNoFile = errors.New("there is no such file; lockctl run and serve make it, in a folder that is there")

// busyTime is how long a connection tries to make a table that another process makes at this moment.
const busyTime = 5 * time.Second

func newFile(u *url.URL, table sqlstore.Table, makes bool) (driver.Connector, error) {
	schema, err := table.Schema()
	if err != nil {
		return nil, err
	}
	under, err := sqlite.NewConnector((&url.URL{Scheme: "file", Path: u.Path, RawQuery: u.RawQuery}).String())
	return &file{under, u.Path, "PRAGMA journal_mode = WAL; " + schema, makes}, err
}

func (f *file) Connect(ctx context.Context) (driver.Conn, error) {
	if _, err := os.Stat(f.path); errors.Is(err, os.ErrNotExist) {
		if !f.makes {
			return nil, fmt.Errorf("%s: %w", f.path, errNoFile)
		}
		// The owners in the file are secret. SQLite says what is wrong if the file cannot be made.
		if made, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
			_ = made.Close()
		}
	}
	for began := time.Now(); ; {
		conn, err := f.Connector.Connect(ctx)
		if err != nil || !f.makes {
			return conn, err
		}
		if _, err = conn.(driver.ExecerContext).ExecContext(ctx, f.schema, nil); err == nil {
			return conn, nil
		}
		_ = conn.Close()
		busy := strings.Contains(err.Error(), "is locked") && time.Since(began) < busyTime
		if !busy || pause.For(ctx, 10*time.Millisecond) != nil {
			return nil, err
		}
	}
}

// sqlStatus is serverStatus of SQL databases.
func sqlStatus(err error) int {
	if refused, ok := errors.AsType[*pq.Error](err); ok {
		switch refused.Code {
		case "28000", "28P01", "42501": // a wrong user or password, or a right that is missing
			return exit.Permission
		case "3D000", "3F000", "42P01": // there is no such database, schema or table
			return exit.Config
		}
	}
	if refused, ok := errors.AsType[*mysql.MySQLError](err); ok {
		switch refused.Number {
		case 1044, 1045, 1142, 1143, 1698: // as above
			return exit.Permission
		case 1046, 1049, 1146:
			return exit.Config
		}
	}
	if refused, ok := errors.AsType[*sqlite.Error](err); ok {
		switch code := refused.Code() & 0xff; {
		case code == 8: // it may only be read
			return exit.Permission
		case code == 14 || code == 1 && strings.Contains(err.Error(), "no such table"): // it cannot be opened
			return exit.Config
		}
	}
	if errors.Is(err, errNoFile) || errors.Is(err, mysql.ErrNoTLS) {
		return exit.Config
	}
	return 0
}
