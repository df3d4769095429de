#!/bin/sh
# Installs PostgreSQL for the test of examples/sqlfence, on Debian and Ubuntu. The
# distribution may start a server on port 5432. The test starts its own server and
# does not need the distribution's.
set -eu
. "$(dirname "$0")/apt.sh"

for program in /usr/lib/postgresql/*/bin/initdb; do
	[ ! -x "$program" ] || exit 0
done
if command -v initdb >/dev/null; then exit 0; fi

apt_install "The example examples/sqlfence needs PostgreSQL: install it (initdb on the PATH). Its test is skipped until then." postgresql
