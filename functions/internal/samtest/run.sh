#!/bin/sh
# Runs the functions as the SAM CLI does, in Docker: it gets all that TestSAM needs
# and runs that test, the tests of what TestSAM and TestAWS check with, and the programs of
# clients/ on the function in all situations. Run it at the top of the repository.
#
# What is installed is in the user's cache, or comes by apt-get. The Docker engine is
# the one that answers the docker command. Where none answers, the engine is one with
# a data root, a socket and a process of its own, which is stopped in the end. That
# needs Linux and root. Where no engine can run this script says why and ends with
# status 0, or with status 1 where the environment variable CI is set.
set -eu

here=functions/internal/samtest
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock
built=$PWD/build/sam
dir=$(mktemp -d)
engine='' bridge=''
PATH=$PATH:/usr/sbin:/sbin

# finish ends what was started, also after Ctrl-C: the test has ended by then.
finish() {
	# A container that the SAM CLI has left behind has a function's folder mounted.
	for folder in "$built"/* "$built"/own-function/*; do
		for id in $(docker ps --all --quiet --filter "volume=$folder" 2>/dev/null); do
			docker rm --force "$id" >/dev/null || true
		done
	done
	if [ -n "$engine" ]; then
		kill "$engine" 2>/dev/null && wait "$engine" || true
		[ -z "$bridge" ] || ip link delete "$bridge" || echo "samtest: the network interface $bridge stays behind" >&2
	fi
	rm -rf "$dir"
}
trap 'status=$?; trap "" INT TERM; finish; exit $status' EXIT
trap 'echo "samtest: interrupted; everything that was started is stopped" >&2; exit 130' INT TERM

no_engine() {
	echo "samtest: nothing was tested: no Docker engine can run here: $1" >&2
	[ -z "${CI:-}" ] || exit 1
	exit 0
}

# start_engine changes no firewall rule and no forwarding: a function reaches this
# machine on the bridge and nothing beyond, and this machine reaches a function
# through the engine's own proxy.
start_engine() {
	[ "$(uname)" = Linux ] || no_engine "none answers; please start Docker"
	[ "$(id -u)" -eq 0 ] || no_engine "none answers, and to start one needs root"
	echo "no Docker engine answers; starting one with a data root of its own"
	sh $here/install.sh docker || no_engine "Docker cannot be installed"
	ip link show docker0 >/dev/null 2>&1 || bridge=docker0 # the engine makes it, and leaves it behind
	export DOCKER_HOST="unix://$dir/docker.sock"
	echo '{}' >"$dir/docker.json" # instead of this machine's settings
	# A session of its own, because Ctrl-C is for the test first. The storage driver
	# vfs works on every file system, also in a container.
	setsid dockerd --config-file "$dir/docker.json" --host "$DOCKER_HOST" --pidfile "$dir/docker.pid" \
		--data-root "$cache/docker" --exec-root "$dir/exec" --storage-driver vfs \
		--iptables=false --ip6tables=false --ip-forward=false --ip-masq=false >"$dir/dockerd.log" 2>&1 &
	engine=$!
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
		! docker version >/dev/null 2>&1 || return 0
		kill -0 "$engine" 2>/dev/null || break
		sleep 1
	done
	no_engine "$(tail -n 4 "$dir/dockerd.log")"
}

# base_image names the image that the functions run in: the official one if it is
# here or can be had, or else an image that has just what is needed. That has another
# name, so that nobody takes it for the real one.
base_image() {
	image=public.ecr.aws/lambda/provided:al2023-$arch
	if docker image inspect "$image" >/dev/null 2>&1; then return; fi
	case $(curl --silent --max-time 5 --output /dev/null --write-out '%{http_code}' https://public.ecr.aws/v2/) in
	200 | 401)
		echo "pulling the base image $image"
		if docker pull --quiet "$image"; then return; fi
		;;
	esac
	image=lambdalock-standin:al2023-$arch
	if docker image inspect "$image" >/dev/null 2>&1; then return; fi
	sh $here/install.sh busybox
	mkdir "$dir/image"
	cp "$cache/busybox-static" "$dir/image/busybox"
	cp /etc/ssl/certs/ca-certificates.crt "$dir/image"
	# A shell, mv and chmod, with which the SAM CLI puts its emulator in, and cp and rm
	# for layers. busybox looks at the name that it is called by, so copies do.
	cat >"$dir/image/Dockerfile" <<-'EOF'
		FROM scratch
		COPY busybox /bin/sh
		COPY busybox /bin/mv
		COPY busybox /bin/chmod
		COPY busybox /bin/cp
		COPY busybox /bin/rm
		COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
		WORKDIR /tmp
		WORKDIR /var/task
	EOF
	DOCKER_BUILDKIT=0 docker build --quiet --tag "$image" "$dir/image"
}

if host=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null) &&
	version=$(DOCKER_HOST=$host docker version --format '{{.Server.Version}}' 2>/dev/null); then
	export DOCKER_HOST="$host" # the SAM CLI knows no contexts
	echo "Docker engine $version answers and is used"
else
	start_engine
fi
arch=$(docker version --format '{{.Server.Arch}}')
case $arch in
amd64) arch=x86_64 ;;
arm64) ;;
*) no_engine "the engine runs on $arch; Lambda has x86_64 and arm64" ;;
esac
base_image
echo "base image $image"
sh $here/install.sh sam
sh internal/testservers/install-packages.sh redis valkey zookeeper
sh internal/testservers/install-dynamodb.sh
version=$(sed -n 's/^version=\([^ ]*\).*/\1/p' $here/install.sh)
export SAMLOCAL_PROGRAM="$cache/sam-$version/bin/sam" SAMLOCAL_BUILT="$built" SAMLOCAL_ARCH="$arch" SAMLOCAL_IMAGE="$image"
go test -tags sam ./$here -v -count=1 -timeout 35m
