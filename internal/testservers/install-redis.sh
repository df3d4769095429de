#!/bin/sh
# Installs redis-server and valkey-server for the tests, on Debian and Ubuntu. If both are
# installed, the script does nothing. The distribution may start each server on its
# default port. The tests start their own servers and do not need them.
#
# valkey-server comes from the distribution or from its -backports suite. The script reads
# that suite with a temporary copy of this machine's package sources, and does not change
# the sources of the machine.
set -eu

# give_up says what to do by hand. It fails only where CI is set, because a
# person without these servers can still run the other tests.
give_up() {
	echo "install-redis: $1" >&2
	echo "install-redis: please install by hand: $missing" >&2
	if [ -n "${CI:-}" ]; then exit 1; fi
	exit 0
}

missing=
for program in redis-server valkey-server; do
	command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -z "$missing" ]; then exit 0; fi

command -v apt-get >/dev/null || give_up "there is no apt-get here"
sudo=
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || give_up "this needs root, and there is no sudo"
	sudo=sudo
fi

work=$(mktemp -d)
trap '$sudo rm -rf "$work"' EXIT # apt has written there as root
trap 'exit 1' INT TERM
chmod 755 "$work" # apt reads it as another user

# A copy of the machine's package sources, and a folder for their lists.
mkdir -p "$work/sources" "$work/lists/partial"
sources=/etc/apt/sources.list.d
for file in /etc/apt/sources.list "$sources"/*.list "$sources"/*.sources; do
	if [ -f "$file" ]; then cp "$file" "$work/sources/"; fi
done
chmod -R u=rwX,go=rX "$work/sources"

apt() {
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get \
		-o Dir::Etc::SourceList=/dev/null \
		-o Dir::Etc::SourceParts="$work/sources" \
		-o Dir::State::Lists="$work/lists" "$@"
}
offered() { apt -s install "$@" >/dev/null 2>&1; }

# backports adds the -backports suite to the copy, for each source of the main suite.
backports() {
	. /etc/os-release
	suite=${VERSION_CODENAME:-}
	if [ -z "$suite" ]; then return 1; fi
	for file in "$work"/sources/*; do
		case $file in
		*.sources)
			awk -v suite="$suite" -v RS= '
				$0 ~ "(^|\n)Suites:[^\n]*[ \t]" suite "([ \t\n]|$)" {
					sub(/(^|\n)Suites:[^\n]*/, "\nSuites: " suite "-backports"); print; print ""
				}' "$file" >"$work/extra"
			target="${file%.sources}-backports.sources"
			;;
		*)
			awk -v suite="$suite" '
				$1 == "deb" { for (i = 2; i <= NF; i++) if ($i == suite) { $i = suite "-backports"; print; break } }
				' "$file" >"$work/extra"
			target="${file%.list}-backports.list"
			;;
		esac
		if [ -s "$work/extra" ]; then cp "$work/extra" "$target"; fi
	done
	rm -f "$work/extra"
}

echo "install-redis: reading the package lists"
apt -qq update || give_up "the package lists cannot be read"

for program in $missing; do
	release=
	if ! offered "$program"; then
		backports && apt -qq update || give_up "$program is not in this distribution"
		release=$suite-backports
		offered -t "$release" "$program" || give_up "$program is neither in this distribution nor in $release"
	fi
	echo "install-redis: installing the package $program${release:+ from $release}"
	apt -qq install -y --no-install-recommends ${release:+-t "$release"} "$program" >/dev/null ||
		give_up "$program does not install"
	missing=${missing# "$program"}
done
