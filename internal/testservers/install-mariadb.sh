#!/bin/sh
# Installs MariaDB for the tests of lockstore/sqlstore, on Debian and Ubuntu. The distribution may start a server on the
# usual port. The tests start their own.
set -eu
. "$(dirname "$0")/apt.sh"
command -v mariadbd >/dev/null || apt_install "The tests of lockstore/sqlstore need MariaDB: install it (mariadbd on the PATH). They are skipped until then." mariadb-server
