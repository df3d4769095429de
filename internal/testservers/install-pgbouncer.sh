#!/bin/sh
# Installs PgBouncer for the tests, on Debian and Ubuntu. The distribution may start it on
# port 6432. The tests start their own and do not need the distribution's.
set -eu
. "$(dirname "$0")/apt.sh"

if command -v pgbouncer >/dev/null; then exit 0; fi

apt_install "The tests of pgstore behind a pooler need PgBouncer: install it (pgbouncer on the PATH). They are skipped until then." pgbouncer
