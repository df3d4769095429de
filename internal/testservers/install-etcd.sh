#!/bin/sh
# Installs etcd for the test of examples/etcdstore, on Debian and Ubuntu. The
# distribution may start a server on port 2379. The test starts its own server and
# does not need the distribution's.
set -eu

if command -v etcd >/dev/null; then exit 0; fi

if ! command -v apt-get >/dev/null; then
	echo "The example examples/etcdstore needs etcd: install it (etcd on the PATH). Its test is skipped until then." >&2
	[ -z "${CI:-}" ]
	exit
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "Installing by apt-get: etcd-server"
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends etcd-server >/dev/null ||
	{ $sudo apt-get -qq update && $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends etcd-server >/dev/null; }
