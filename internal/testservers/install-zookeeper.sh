#!/bin/sh
# Installs ZooKeeper and Java for the tests, on Debian and Ubuntu. The package starts no
# server. The tests start their own servers.
set -eu

packages=
command -v java >/dev/null || packages="default-jre-headless"
[ -f /usr/share/java/zookeeper.jar ] || packages="$packages zookeeper"
[ -f /usr/share/java/slf4j-simple.jar ] || packages="$packages libslf4j-java"
[ -n "$packages" ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "The tests of lockstore/zkstore need Debian's package zookeeper and Java. They are skipped until then." >&2
	[ -z "${CI:-}" ]
	exit
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "Installing by apt-get: $packages"
# shellcheck disable=SC2086 # a list of packages
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >/dev/null ||
	{ $sudo apt-get -qq update && $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >/dev/null; }
