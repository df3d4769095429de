#!/bin/sh
# Installs etcd for the test of examples/etcdstore, on Debian and Ubuntu. The
# distribution may start a server on port 2379. The test starts its own server and
# does not need the distribution's.
set -eu
. "$(dirname "$0")/apt.sh"

if command -v etcd >/dev/null; then exit 0; fi

apt_install "The example examples/etcdstore needs etcd: install it (etcd on the PATH). Its test is skipped until then." etcd-server
