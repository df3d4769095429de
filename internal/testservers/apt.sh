# For the scripts that install servers: packages of Debian and Ubuntu.

# apt_install NEEDS PACKAGE... installs packages. Where there is no apt-get, it prints NEEDS and ends the script. It
# fails only where CI is set, because a person without these servers can still run the other tests.
apt_install() {
	needs=$1
	shift
	if ! command -v apt-get >/dev/null; then
		echo "$needs" >&2
		if [ -n "${CI:-}" ]; then exit 1; fi
		exit 0
	fi
	sudo=
	[ "$(id -u)" = 0 ] || sudo=sudo
	echo "Installing by apt-get: $*"
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null ||
		{ $sudo apt-get -qq update && $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null; }
}
