#!/bin/sh
# Runs DynamoDB Local with an empty lock table, for your own functions. Everything is in
# memory. With -sharedDb every region and every access key has the same tables. The server
# listens on all interfaces. Usage: run-dynamodb.sh [PORT [TABLE]]
set -eu

port=${1:-8000}
table=${2:-locks}
here=$(dirname "$0")
sh "$here/install-dynamodb.sh"
version=$(sed -n 's/^version=\([^ ]*\).*/\1/p' "$here/install-dynamodb.sh")
lib=${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock/dynamodb-local-$version/lib
[ -d "$lib" ] || exit 1

java -Djava.library.path="$lib" -cp "$lib/*" com.amazonaws.services.dynamodbv2.local.main.ServerRunner \
	-inMemory -sharedDb -disableTelemetry -port "$port" >&2 &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || :' EXIT
trap 'exit 130' INT TERM

# ask ACTION BODY: DynamoDB Local accepts every signature.
ask() {
	curl -sS -f -o /dev/null -H "X-Amz-Target: DynamoDB_20120810.$1" -H "Content-Type: application/x-amz-json-1.0" \
		-H "Authorization: AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0" \
		-d "$2" "http://127.0.0.1:$port/"
}

until ask ListTables '{}' 2>/dev/null; do
	kill -0 "$server" # the server ends if another program has the port
	sleep 0.2
done
kill -0 "$server"
ask CreateTable "{\"TableName\": \"$table\", \"BillingMode\": \"PAY_PER_REQUEST\",
	\"AttributeDefinitions\": [{\"AttributeName\": \"key\", \"AttributeType\": \"S\"}], \"KeySchema\": [{\"AttributeName\": \"key\", \"KeyType\": \"HASH\"}]}"
ask UpdateTimeToLive "{\"TableName\": \"$table\", \"TimeToLiveSpecification\": {\"AttributeName\": \"ttl\", \"Enabled\": true}}"
echo "LOCK_URL='dynamodb://$table?endpoint=http://127.0.0.1:$port'"
wait "$server"
