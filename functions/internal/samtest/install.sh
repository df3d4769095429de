#!/bin/sh
# Installs what the run under SAM needs and says so before it does. One argument:
#
#	sam      the SAM CLI, in a virtual environment in the user's cache
#	docker   a Docker engine, by apt-get; this script starts nothing, but the
#	         distribution's package may
#	busybox  a static busybox in the user's cache, for a stand-in base image
#
# Does nothing when it is there already.
set -eu
. "$(dirname "$0")/../../../internal/testservers/apt.sh"

version=1.170.0 # run.sh and deploy/deploy.sh read it
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock

give_up() {
	echo "install: $1" >&2
	exit 1
}

packages() {
	command -v apt-get >/dev/null || give_up "there is no apt-get here; please install by hand: $*"
	apt_packages "$@" || give_up "these packages do not install: $*: $apt_said"
}

install_sam() {
	command -v curl >/dev/null || packages curl
	target=$cache/sam-$version
	# Written last, so that a half installation is never taken for a whole one. A
	# virtual environment cannot be made elsewhere and renamed.
	if [ -f "$target/complete" ] && "$target/bin/python3" -c '' 2>/dev/null; then return; fi
	command -v python3 >/dev/null && python3 -c 'import ensurepip, venv' 2>/dev/null || packages python3 python3-venv
	echo "installing the SAM CLI $version into $target (200 MB, about a minute)"
	rm -rf "$target"
	mkdir -p "$cache"
	python3 -m venv "$target"
	"$target/bin/pip" install --quiet --disable-pip-version-check "aws-sam-cli==$version" ||
		give_up "pip cannot install aws-sam-cli $version"
	: >"$target/complete"
}

install_docker() {
	missing=
	PATH=$PATH:/usr/sbin:/sbin
	command -v dockerd >/dev/null || missing="docker.io"
	command -v docker >/dev/null || missing="docker.io"
	command -v ip >/dev/null || missing="$missing iproute2"
	# shellcheck disable=SC2086 # a list of packages
	[ -z "$missing" ] || packages $missing
}

# install_busybox takes the program out of the package: installing it would
# remove a busybox that is there and not static.
install_busybox() {
	[ -s /etc/ssl/certs/ca-certificates.crt ] || packages ca-certificates
	[ -x "$cache/busybox-static" ] && return
	command -v apt-get >/dev/null || give_up "there is no apt-get here to get a static busybox"
	echo "putting a static busybox into $cache (2 MB)"
	mkdir -p "$cache"
	work=$(mktemp -d "$cache/tmp.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' INT TERM
	cd "$work"
	if ! apt-get -qq download busybox-static >"$work/log" 2>&1; then
		packages busybox-static # has apt-get update where the lists are missing
		cp "$(command -v busybox)" "$work/busybox"
	else
		dpkg -x busybox-static_*.deb "$work/files"
		cp "$(find "$work/files" -type f -path '*/bin/busybox')" "$work/busybox"
	fi
	chmod 755 "$work/busybox"
	"$work/busybox" true || give_up "the busybox of this distribution does not run"
	mv "$work/busybox" "$cache/busybox-static"
}

case ${1:-} in
sam) install_sam ;;
docker) install_docker ;;
busybox) install_busybox ;;
*) give_up "want sam, docker or busybox as the argument, not \"${1:-}\"" ;;
esac
