#!/bin/sh
# Installs ZooKeeper and Java for the tests, on Debian and Ubuntu. The package starts no
# server. The tests start their own servers.
set -eu
. "$(dirname "$0")/apt.sh"

packages=
command -v java >/dev/null || packages="default-jre-headless"
[ -f /usr/share/java/zookeeper.jar ] || packages="$packages zookeeper"
[ -f /usr/share/java/slf4j-simple.jar ] || packages="$packages libslf4j-java"
[ -n "$packages" ] || exit 0

# shellcheck disable=SC2086 # a list of packages
apt_install "The tests of lockstore/zkstore need Debian's package zookeeper and Java. They are skipped until then." $packages
