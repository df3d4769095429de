# For the scripts that install something: packages of Debian and Ubuntu.

# impossible TEXT says what a person has to install, and ends the script. It fails only where CI is set, because a
# person without a server can still run the other tests.
impossible() {
	echo "$1" >&2
	if [ -n "${CI:-}" ]; then exit 1; fi
	exit 0
}

# apt_get ARGUMENT... is apt-get as root, quiet: what it says is in apt_said. While another apt is at work, as in the
# first minutes of a machine in a cloud, it waits, for 15 minutes at most. apt_sources is another file than /etc/apt/sources.list.
apt_get() {
	apt_sudo='' apt_waited=0
	[ "$(id -u)" = 0 ] || apt_sudo=sudo
	until apt_said=$($apt_sudo env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq ${apt_sources:+-o "Dir::Etc::SourceList=$apt_sources"} "$@" 2>&1); do
		case $apt_said in
		*'Could not get lock'* | *'Unable to lock'*) ;;
		*) return 1 ;;
		esac
		if [ "$apt_waited" -ge 900 ]; then return 1; fi
		if [ $((apt_waited % 30)) = 0 ]; then echo "another program has the lock of apt: waiting for it, for $apt_waited s so far"; fi
		sleep 5
		apt_waited=$((apt_waited + 5))
	done
}

# apt_packages PACKAGE... installs packages. If that fails, the lists may be missing or old.
apt_packages() {
	echo "Installing by apt-get: $*"
	apt_get install -y --no-install-recommends "$@" || { apt_get update && apt_get install -y --no-install-recommends "$@"; }
}

# apt_install NEEDS PACKAGE... is apt_packages for what tests need. If it cannot be installed, it prints NEEDS and why, and ends the script.
apt_install() {
	needs=$1
	shift
	command -v apt-get >/dev/null || impossible "$needs"
	apt_packages "$@" || impossible "$apt_said
$needs"
}

# npm_install FOLDER NEEDS PACKAGE... installs from npm into a folder of the user's cache, unless it is there. The rename is the last
# step, so an interrupted download is not an installation.
npm_install() {
	npm_folder=$1 npm_needs=$2
	shift 2
	[ ! -d "$npm_folder" ] || return 0
	command -v npm >/dev/null || apt_install "$npm_needs needs npm: install Node.js, then run this again. Its tests are skipped until then." npm
	echo "Installing from npm into $npm_folder: $*"
	mkdir -p "$(dirname "$npm_folder")"
	work=$(mktemp -d "$npm_folder.XXXXXX")
	trap 'rm -rf "$work"' EXIT INT TERM
	npm install --prefix "$work/new" --silent --no-audit --no-fund --ignore-scripts "$@"
	[ -d "$npm_folder" ] || mv "$work/new" "$npm_folder"
}
