package testservers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const installPgBouncer = "run internal/testservers/install-packages.sh pgbouncer"

// PgBouncer starts a PgBouncer in front of a PostgreSQL, and returns the URL of its database behind it. mode is the
// pool_mode: session, transaction or statement. In the last two all clients share two connections.
func PgBouncer(t testing.TB, server *Server, mode string) (url string) {
	t.Helper()
	pgbouncer := find(t, "pgbouncer", installPgBouncer)
	as, err := unprivileged() // it refuses to run as root
	if err != nil {
		t.Fatal(err)
	}
	connections := 2
	if mode == "session" {
		connections = 50
	}
	return PostgreSQLURL(start(t, spec{
		name:    "PgBouncer",
		as:      as,
		prepare: func(dir string) error { return os.Chmod(filepath.Dir(dir), 0o711) },
		command: func(port int, dir string) *exec.Cmd {
			file := filepath.Join(dir, "pgbouncer.ini")
			settings := fmt.Sprintf("[databases]\npostgres = host=127.0.0.1 port=%s dbname=postgres user=postgres\n"+
				"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = %s\ndefault_pool_size = %d\n",
				server.Addr[strings.LastIndexByte(server.Addr, ':')+1:], port, mode, connections)
			_ = os.WriteFile(file, []byte(settings), 0o644) // without it PgBouncer does not start, and says why
			return exec.Command(pgbouncer, file)
		},
		ready: func(addr string) error {
			return exec.Command(filepath.Join(postgresBin(t), "psql"), "-X", "-c", "SELECT 1", PostgreSQLURL(addr)).Run()
		},
	}).Addr)
}
