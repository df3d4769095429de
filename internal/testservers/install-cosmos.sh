#!/bin/sh
# Installs a server with the API of Azure Cosmos DB for the tests, with npm, into the user's
# cache. The server needs Node.js 20 or newer. On Debian and Ubuntu the script installs npm
# too.
set -eu
. "$(dirname "$0")/apt.sh"

version=1.0.1 # of @vercel/cosmosdb-server; the same in cosmos.go, a test compares them

npm_install "${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock/cosmosdb-server-$version" "The server for Azure Cosmos DB" "@vercel/cosmosdb-server@$version"
