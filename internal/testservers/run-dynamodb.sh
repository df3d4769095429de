#!/bin/sh
# Runs DynamoDB Local with an empty lock table, for your own functions. Everything is in
# memory. With -sharedDb every region and every access key has the same tables. It listens on
# 127.0.0.1 only. Usage: run-dynamodb.sh [PORT [TABLE]]
set -eu

port=${1:-8000}
table=${2:-locks}
here=$(dirname "$0")

fail() {
	echo "make dynamodb: $*" >&2
	exit 1
}

. "$here/port.sh"
check_port "$port" "make dynamodb PORT=8001"

# ask ACTION BODY sets answer, which ends with the HTTP status. DynamoDB Local accepts every
# signature.
ask() {
	answer=$(curl -q -sS --noproxy '*' --max-time "$wait" -w '\n%{http_code}' -H "X-Amz-Target: DynamoDB_20120810.$1" \
		-H "Content-Type: application/x-amz-json-1.0" \
		-H "Authorization: AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0" \
		-d "$2" "http://127.0.0.1:$port/" 2>&1)
}

# made ACTION BODY is ask for what has to succeed.
made() {
	ask "$1" "$2" || fail "$1 failed: $answer"
	case $answer in *200) ;; *) fail "$1 failed: $answer" ;; esac
}

wait=0.5 connected=0
ask ListTables '{}' || connected=$?
if [ "$connected" != 7 ]; then # 7: nothing listens there
	other="another program"
	case $answer in *'"TableNames"'*) other="another DynamoDB Local" ;; esac
	fail "port $port is taken by $other; end it, or choose another port, as in make dynamodb PORT=$((port < 65535 ? port + 1 : 8000))"
fi

sh "$here/install-dynamodb.sh"
version=$(sed -n 's/^version=\([^ ]*\).*/\1/p' "$here/install-dynamodb.sh")
lib=${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock/dynamodb-local-$version/lib
[ -d "$lib" ] || exit 1

java -Djava.library.path="$lib" -cp "$lib/*" "$here/Loopback.java" \
	-inMemory -sharedDb -disableTelemetry -port "$port" >&2 &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || :' EXIT
trap 'exit 130' INT TERM

wait=10
until ask ListTables '{}'; do
	kill -0 "$server" 2>/dev/null || fail "DynamoDB Local did not start; the lines above say why"
	sleep 0.2
done
kill -0 "$server" 2>/dev/null || fail "DynamoDB Local did not start; the lines above say why" # another program answered
made CreateTable "{\"TableName\": \"$table\", \"BillingMode\": \"PAY_PER_REQUEST\",
	\"AttributeDefinitions\": [{\"AttributeName\": \"key\", \"AttributeType\": \"S\"}], \"KeySchema\": [{\"AttributeName\": \"key\", \"KeyType\": \"HASH\"}]}"
made UpdateTimeToLive "{\"TableName\": \"$table\", \"TimeToLiveSpecification\": {\"AttributeName\": \"ttl\", \"Enabled\": true}}"
echo "LOCK_URL='dynamodb://$table?endpoint=http://127.0.0.1:$port'"
wait "$server"
