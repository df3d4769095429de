#!/bin/sh
# Installs DynamoDB Local for the tests with Maven, into the user's cache. Its licence
# forbids redistribution, so it is not in the repository. It needs Java 17, and its installation
# Maven; on Debian and Ubuntu the script installs them.
set -eu
. "$(dirname "$0")/apt.sh"

version=2.6.1 # the same in dynamodb.go; a test compares them
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock
target=$cache/dynamodb-local-$version

if [ -f "$target/lib/DynamoDBLocal-$version.jar" ] && command -v java >/dev/null; then
	exit 0
fi

packages=
command -v java >/dev/null || packages="default-jre-headless"
if [ ! -d "$target" ]; then
	command -v mvn >/dev/null || packages="$packages maven"
fi
if [ -n "$packages" ]; then
	# shellcheck disable=SC2086 # a list of packages
	apt_install "DynamoDB Local needs Java 17 or newer and Maven: install them (java and mvn on the PATH), then run this again. Its tests are skipped until then." $packages
fi
[ -d "$target" ] && exit 0

echo "Installing DynamoDB Local $version into $target (51 MB)"
mkdir -p "$cache"
work=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>lambdalock</groupId><artifactId>install</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>com.amazonaws</groupId><artifactId>DynamoDBLocal</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/new/lib"
# The rename is the last step, so an interrupted download is not an installation.
[ -d "$target" ] || mv "$work/new" "$target"
