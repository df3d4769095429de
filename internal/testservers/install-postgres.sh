#!/bin/sh
# Installs PostgreSQL for the test of examples/sqlfence, on Debian and Ubuntu. The
# distribution may start a server on port 5432. The test starts its own server and
# does not need the distribution's.
set -eu

for program in /usr/lib/postgresql/*/bin/initdb; do
	[ ! -x "$program" ] || exit 0
done
if command -v initdb >/dev/null; then exit 0; fi

if ! command -v apt-get >/dev/null; then
	echo "The example examples/sqlfence needs PostgreSQL: install it (initdb on the PATH). Its test is skipped until then." >&2
	[ -z "${CI:-}" ]
	exit
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "Installing by apt-get: postgresql"
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends postgresql >/dev/null ||
	{ $sudo apt-get -qq update && $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends postgresql >/dev/null; }
