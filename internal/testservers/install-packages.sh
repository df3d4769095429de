#!/bin/sh
# Installs Chromium, etcd, PgBouncer, PostgreSQL, Redis, Valkey and ZooKeeper for the tests, on Debian and Ubuntu. The distribution may start servers
# on their usual ports. The tests start their own servers and do not need these. Usage: install-packages.sh [SERVER...]
set -eu
. "$(dirname "$0")/apt.sh"

install_chromium() {
	command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null ||
		apt_install "Tests of pages need Chromium: install it (chromium-headless-shell or chromium on the PATH). They are skipped until then." chromium-headless-shell
}

install_etcd() {
	command -v etcd >/dev/null || apt_install "The example examples/etcdstore needs etcd: install it (etcd on the PATH). Its test is skipped until then." etcd-server
}

install_pgbouncer() {
	command -v pgbouncer >/dev/null || apt_install "The tests of sqlstore behind a pooler need PgBouncer: install it (pgbouncer on the PATH). They are skipped until then." pgbouncer
}

install_postgres() {
	for program in /usr/lib/postgresql/*/bin/initdb; do # Debian keeps the server's programs out of the PATH
		[ ! -x "$program" ] || return 0
	done
	command -v initdb >/dev/null || apt_install "Tests with PostgreSQL need it: install it (initdb on the PATH). They are skipped until then." postgresql
}

install_redis() {
	command -v redis-server >/dev/null || apt_install "Tests with Redis need it: install it (redis-server on the PATH). They are skipped until then." redis-server
}

install_valkey() {
	if command -v valkey-server >/dev/null; then return; fi
	needs="Tests with Valkey need it: install it (valkey-server on the PATH). They are skipped until then."
	command -v apt-get >/dev/null || impossible "$needs"
	if apt_packages valkey-server; then return; fi
	# Debian 12 has it among the backports only. The machine's own list of sources stays as it is.
	. /etc/os-release
	apt_sources=$(mktemp)
	trap 'rm -f "$apt_sources"' EXIT
	cat /etc/apt/sources.list >"$apt_sources" 2>/dev/null || :
	echo "deb $(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" | head -n 1) $VERSION_CODENAME-backports main" >>"$apt_sources"
	apt_install "$needs" valkey-server
}

install_zookeeper() {
	packages=
	command -v java >/dev/null || packages="default-jre-headless"
	[ -f /usr/share/java/zookeeper.jar ] || packages="$packages zookeeper"
	[ -f /usr/share/java/slf4j-simple.jar ] || packages="$packages libslf4j-java"
	# shellcheck disable=SC2086 # a list of packages
	[ -z "$packages" ] || apt_install "The tests of lockstore/zkstore need Debian's package zookeeper and Java. They are skipped until then." $packages
}

for server in ${*:-chromium etcd pgbouncer postgres redis valkey zookeeper}; do
	("install_$server") # what cannot be installed ends nothing else
done
