package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The mount that has the file counts, also if it is named before another one.
func TestNetwork(t *testing.T) {
	const mounts = "/dev/vda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/vdb /home/local ext4 rw 0 0\n//server/share /share cifs rw 0 0\n" +
		"sshfs /mnt/far fuse.sshfs rw 0 0\n/dev/sdc /mnt/near fuseblk rw 0 0\nnone /homes 9p rw 0 0\nserver:/a /mnt/two\\040words nfs4 rw 0 0\n"
	for file, want := range map[string]bool{
		"/var/lib/locks.db": false, "/home/me/locks.db": true, "/home/local/locks.db": false, "/homework/locks.db": false, "/homes/locks.db": true,
		"/share/locks.db": true, "/mnt/far/a/locks.db": true, "/mnt/near/locks.db": false, "": false, "/mnt/two words/locks.db": true,
	} {
		if got := network(file, mounts); (got != "") != want {
			t.Errorf("%s: %q", file, got)
		}
	}
	if got := network("/home/locks.db", ""); got != "" {
		t.Error(got)
	}
}

// onNFS is a connection to a file of SQLite. It answers only where the file is.
type onNFS struct{}

func (onNFS) Connect(context.Context) (driver.Conn, error) { return onNFS{}, nil }
func (onNFS) Driver() driver.Driver                        { return nil }
func (onNFS) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (onNFS) Begin() (driver.Tx, error)                    { return nil, driver.ErrSkip }
func (onNFS) Commit() error                                { return nil }
func (onNFS) Rollback() error                              { return nil }
func (onNFS) Close() error                                 { return nil }

func (onNFS) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return onNFS{}, nil }

func (onNFS) QueryContext(_ context.Context, statement string, _ []driver.NamedValue) (driver.Rows, error) {
	if !strings.Contains(statement, "'', file FROM") {
		return nil, errors.New("another statement: " + statement)
	}
	return &place{name: strings.Split(statement, "'")[1]}, nil
}

type place struct {
	name string
	done bool
}

func (p *place) Columns() []string { return []string{"name", "refused", "file"} }
func (p *place) Close() error      { return nil }
func (p *place) Next(row []driver.Value) error {
	if p.done {
		return io.EOF
	}
	p.done, row[0], row[1], row[2] = true, p.name, "", "/far/locks.db"
	return nil
}

// The store itself refuses a file on a network file system.
func TestNetworkIsRefused(t *testing.T) {
	usual := mountsFile
	defer func() { mountsFile = usual }()
	mountsFile = filepath.Join(t.TempDir(), "mounts")
	if err := os.WriteFile(mountsFile, []byte("server:/far /far nfs4 rw 0 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(onNFS{})
	defer func() { _ = db.Close() }()
	s, err := New(db, Options{Table: Table{Dialect: SQLite}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	_, err = s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: lockstore.MinTTL})
	if !errors.Is(err, lockstore.ErrUnavailable) || !strings.Contains(err.Error(), "nfs4") {
		t.Error(err)
	}
}
