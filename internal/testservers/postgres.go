package testservers

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const installPostgres = "run internal/testservers/install-packages.sh postgres"

// PostgreSQL starts a PostgreSQL for the test and returns the URL of an empty
// database. The server trusts every user who connects from this machine.
func PostgreSQL(t testing.TB) (url string) {
	t.Helper()
	return PostgreSQLURL(StartPostgreSQL(t).Addr)
}

// PostgreSQLURL is the URL of the database behind an address.
func PostgreSQLURL(addr string) string {
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

// StartPostgreSQL is PostgreSQL for a test that kills, restarts or pauses the server. A killed
// server keeps what was committed.
//
// PostgreSQL refuses to run as root. Where the tests run as root, it runs as the
// user nobody.
func StartPostgreSQL(t testing.TB) *Server {
	t.Helper()
	bin := postgresBin(t)
	as, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, spec{
		name:   "PostgreSQL",
		as:     as,
		folder: "data",
		kill:   syscall.SIGQUIT, // as a crash; after SIGKILL shared memory would be left behind
		prepare: func(dir string) error {
			if as != nil { // the test's folder is root's
				if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
					return err
				}
				if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
					return err
				}
			}
			cmd := exec.Command(filepath.Join(bin, "initdb"), "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
			cmd.Dir = dir
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("initdb: %w: %s", err, out)
			}
			return nil
		},
		command: func(port int, dir string) *exec.Cmd {
			return exec.Command(filepath.Join(bin, "postgres"), "-D", "data", "-h", "127.0.0.1", "-p", strconv.Itoa(port),
				"-c", "unix_socket_directories=", "-c", "dynamic_shared_memory_type=mmap", "-c", "fsync=off",
				"-c", "max_connections=500")
		},
		ready: func(addr string) error {
			return exec.Command(filepath.Join(bin, "psql"), "-X", "-c", "SELECT 1", PostgreSQLURL(addr)).Run()
		},
	})
}

// postgresBin returns the folder of the server's programs, or ends the test.
func postgresBin(t testing.TB) string {
	t.Helper()
	// Debian keeps the server's programs out of the PATH.
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 || testing.Short() {
		found = []string{find(t, "initdb", installPostgres)}
	}
	return filepath.Dir(found[len(found)-1])
}

func postgresVersion(t testing.TB) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(postgresBin(t), "postgres"), "--version").Output()
	_, after, _ := strings.Cut(string(out), ") ")
	version, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	if err != nil || version == "" {
		t.Fatalf("PostgreSQL's version: %q, %v", out, err)
	}
	return version
}

// unprivileged returns the user nobody for a process that runs as root, else nil.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(nobody.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}
