#!/bin/sh
# Runs a PostgreSQL with an empty lock table, for your own functions. It listens on 127.0.0.1 only, trusts everybody
# there, and its data are gone in the end. Run it at the top of the repository, after make build/lockctl. Usage: run-postgres.sh [PORT]
set -eu

port=${1:-5433}
here=$(dirname "$0")
url="postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"

fail() {
	echo "make postgres: $*" >&2
	exit 1
}

. "$here/port.sh"
check_port "$port" "make postgres PORT=5434"

sh "$here/install-packages.sh" postgres
for program in /usr/lib/postgresql/*/bin/initdb; do # Debian keeps the server's programs out of the PATH
	[ ! -x "$program" ] || PATH=$(dirname "$program"):$PATH
done
command -v initdb >/dev/null || exit 1

! psql -X -q -c '' "$url" 2>/dev/null || fail "port $port is taken by another PostgreSQL; choose another, as in make postgres PORT=5434"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
as=
if [ "$(id -u)" = 0 ]; then # PostgreSQL refuses to run as root
	chown nobody "$dir"
	as='setpriv --reuid=nobody --clear-groups'
fi
(cd "$dir" && $as initdb -D data -U postgres -A trust -E UTF8 --no-locale --no-sync) >/dev/null
(cd "$dir" && exec $as postgres -D data -h 127.0.0.1 -p "$port" -c unix_socket_directories= -c logging_collector=off -c idle_in_transaction_session_timeout=10s) >"$dir/log" 2>&1 &
server=$!
trap 'kill -INT "$server" 2>/dev/null; wait "$server" 2>/dev/null || :; rm -rf "$dir"' EXIT

until psql -X -q -c '' "$url" 2>/dev/null; do
	kill -0 "$server" 2>/dev/null || { tail -n 3 "$dir/log" >&2; fail "PostgreSQL did not start; the lines above say why"; }
	sleep 0.2
done
build/lockctl schema >"$dir/schema.sql"
psql -X -q -v ON_ERROR_STOP=1 -f "$dir/schema.sql" "$url" >/dev/null
cat <<END

PostgreSQL is at 127.0.0.1:$port, with an empty lock table. Ctrl-C ends it. In another terminal:

export LOCK_URL='$url'
END
wait "$server"
