#!/bin/sh
# Installs PostgreSQL for the tests, on Debian and Ubuntu. The distribution may start a
# server on port 5432. The tests start their own servers and do not need the distribution's.
set -eu
. "$(dirname "$0")/apt.sh"

for program in /usr/lib/postgresql/*/bin/initdb; do
	[ ! -x "$program" ] || exit 0
done
if command -v initdb >/dev/null; then exit 0; fi

apt_install "Tests with PostgreSQL need it: install it (initdb on the PATH). They are skipped until then." postgresql
