#!/bin/sh
# Installs a server with the API of Azure Cosmos DB for the tests, with npm, into the user's
# cache. The server needs Node.js 20 or newer. On Debian and Ubuntu the script installs npm
# too.
set -eu
. "$(dirname "$0")/apt.sh"

version=1.0.1 # of @vercel/cosmosdb-server; the same in cosmos.go, a test compares them
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock
target=$cache/cosmosdb-server-$version

[ ! -d "$target" ] || exit 0

if ! command -v npm >/dev/null; then
	apt_install "The server for Azure Cosmos DB needs npm: install Node.js, then run this again. Its tests are skipped until then." npm
fi

echo "Installing from npm into $target: @vercel/cosmosdb-server@$version"
mkdir -p "$cache"
work=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
npm install --prefix "$work/new" --silent --no-audit --no-fund --ignore-scripts "@vercel/cosmosdb-server@$version"
# The rename is the last step, so an interrupted download is not an installation.
[ -d "$target" ] || mv "$work/new" "$target"
