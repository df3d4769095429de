package testservers

import (
	"fmt"
	"net"
	"os/exec"
	"os/user"
	"strconv"
	"testing"
)

const installMariaDB = "run internal/testservers/install-mariadb.sh"

// MariaDB starts a MariaDB, with an empty database locks for its user root. A killed server keeps what was committed.
func MariaDB(t testing.TB) *Server {
	t.Helper()
	install, mariadbd, client := find(t, "mariadb-install-db", installMariaDB), find(t, "mariadbd", installMariaDB), find(t, "mariadb", installMariaDB)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, spec{
		name: "MariaDB",
		prepare: func(dir string) error {
			cmd := exec.Command(install, "--no-defaults", "--datadir="+dir+"/data", "--user="+me.Username, "--auth-root-authentication-method=normal", "--skip-name-resolve")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("mariadb-install-db: %w: %s", err, out)
			}
			return nil
		},
		command: func(port int, dir string) *exec.Cmd {
			return exec.Command(mariadbd, "--no-defaults", "--datadir="+dir+"/data", "--user="+me.Username, "--bind-address=127.0.0.1", "--port="+strconv.Itoa(port),
				"--socket=sock", "--pid-file=pid", "--max-connections=500", "--innodb-buffer-pool-size=64M", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=2")
		},
		ready: func(addr string) error {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return err
			}
			return exec.Command(client, "--no-defaults", "--protocol=TCP", "-h", host, "-P", port, "-u", "root", "-e", "CREATE DATABASE IF NOT EXISTS locks").Run()
		},
	})
}
