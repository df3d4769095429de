#!/bin/sh
# Builds the functions and the probes beside this file as they are deployed, prints how large the
# binaries are, and ends with status 1 when one is over its budget. Run it at the top of the repository:
#
#	sh internal/size/size.sh
#
# A megabyte is 1,000,000 bytes here. The binaries are built for arm64, which is what is deployed. The linker
# rounds each segment up to 64 kB there.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
status=0

# measure has one line for each binary: its budget in bytes, and its folder.
measure() {
	while read -r budget folder; do
		(cd "$folder" && GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go build -trimpath -tags=lambda.norpc -buildvcs=false '-ldflags=-s -w' -o "$dir/bootstrap" .)
		bytes=$(wc -c <"$dir/bootstrap")
		echo "$folder" >>"$dir/measured"
		verdict=ok
		if [ "$bytes" -gt "$budget" ]; then
			verdict="OVER: look for the import that came in, with go list -deps and go tool nm -size -sort size"
			status=1
		fi
		printf '%-36s %9d of %9d  %s\n' "$folder" "$bytes" "$budget" "$verdict"
	done
}

measure <<'EOF'
6000000 internal/size/probe/bare
8950000 internal/size/probe/redis
8450000 internal/size/probe/dynamodb
6700000 internal/size/probe/zookeeper
11300000 internal/size/probe/both
7750000 examples/counter/cosmosdb
7350000 examples/counter/datastore
11650000 functions/locks
11650000 functions/nightly
11650000 functions/settle
11650000 functions/sfnlock
11650000 functions/withdraw
EOF
for main in functions/*/main.go internal/size/probe/*/main.go examples/counter/*/main.go; do
	grep -qx "$(dirname "$main")" "$dir/measured" || { echo "$(dirname "$main") has no budget here"; status=1; }
done
exit $status
