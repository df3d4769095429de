# For the scripts that install something: packages of Debian and Ubuntu.

# impossible TEXT says what a person has to install, and ends the script. It fails only where CI is set, because a
# person without a server can still run the other tests.
impossible() {
	echo "$1" >&2
	if [ -n "${CI:-}" ]; then exit 1; fi
	exit 0
}

# apt_get ARGUMENT... is apt-get as root, quiet: what it says is in apt_said. While another apt is at work, as in the
# first minutes of a machine in a cloud, it waits, for 15 minutes at most.
apt_get() {
	apt_sudo='' apt_waited=0
	[ "$(id -u)" = 0 ] || apt_sudo=sudo
	until apt_said=$($apt_sudo env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" 2>&1); do
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
