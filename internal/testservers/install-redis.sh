#!/bin/sh
# Installs redis-server and valkey-server for the tests, on Debian and Ubuntu. If both are
# installed, the script does nothing. The distribution may start each server on its
# default port. The tests start their own servers and do not need them.
#
# valkey-server comes from the distribution or from its -backports suite. The script reads
# that suite with a temporary copy of this machine's package sources, and does not change
# the sources of the machine.
set -eu
. "$(dirname "$0")/apt.sh"

give_up() { impossible "install-redis: $1; please install by hand:$missing"; }

missing=
for program in redis-server valkey-server; do
	command -v "$program" >/dev/null || missing="$missing $program"
done
if [ -z "$missing" ]; then exit 0; fi

command -v apt-get >/dev/null || give_up "there is no apt-get here"

work=$(mktemp -d)
trap '${apt_sudo:-} rm -rf "$work"' EXIT # apt has written there as root
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
	apt_get -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" -o Dir::State::Lists="$work/lists" "$@"
}
offered() { apt -s install "$@"; }

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
apt update || give_up "the package lists cannot be read: $apt_said"

for program in $missing; do
	release=
	if ! offered "$program"; then
		backports && apt update || give_up "$program is not in this distribution"
		release=$suite-backports
		offered -t "$release" "$program" || give_up "$program is neither in this distribution nor in $release"
	fi
	echo "install-redis: installing the package $program${release:+ from $release}"
	apt install -y --no-install-recommends ${release:+-t "$release"} "$program" ||
		give_up "$program does not install: $apt_said"
	missing=${missing# "$program"}
done
