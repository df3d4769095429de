#!/bin/sh
# Runs a command while it holds a lock of the lock service. So the command runs once
# at a time, on however many machines:
#
#   */5 * * * *  LOCKS_URL=https://... cron.sh shared/reports/daily report --all
#
#   LOCKS_URL   the service, without a path, for example http://127.0.0.1:8080
#   LOCKS_TTL   the lease, 10 to 900 seconds, by default 60; the script renews it. When
#               a machine dies, its lock is free about that many seconds later
#   LOCKS_WAIT  seconds to wait for a lock that somebody else holds, by default 0
#
# The key is spelt as in a URL; in a crontab write \% for %. The command finds the
# fence of the lock in LOCK_FENCE, and an empty standard input. When the lock is lost,
# or cannot be renewed in time, the script stops all processes of the command: by
# TERM, and by KILL before others may get the lock.
#
# Where AWS_ACCESS_KEY_ID is set, the script signs its requests, with
# AWS_SECRET_ACCESS_KEY, with AWS_REGION or AWS_DEFAULT_REGION, and with
# AWS_SESSION_TOKEN if that is set.
#
# The exit status is that of the command, or
#   64       the script was called in a wrong way
#   69       the service gave no lock
#   75       somebody else holds the lock
#   79       the lock was lost, as for lockctl run
#   128 + n  the signal n ended the script
# If the command itself may end with 64 to 79, look at standard error: for these of its own
# the script writes a line that begins with "cron.sh:".
set -u

say() { echo "cron.sh: $*" >&2; }
refuse() { say "$*"; exit 64; }

if [ $# -lt 2 ] || [ -z "${LOCKS_URL:-}" ]; then
	refuse "usage: LOCKS_URL=http://... cron.sh KEY COMMAND [ARGUMENT...]"
fi
url=${LOCKS_URL%/} ttl=${LOCKS_TTL:-60} wait=${LOCKS_WAIT:-0} region=${AWS_REGION:-${AWS_DEFAULT_REGION:-}}
case ${url#*://} in *[/?#]*) refuse "LOCKS_URL is $LOCKS_URL; want it without a path" ;; esac
case $ttl in [1-9][0-9] | [1-8][0-9][0-9] | 900) ;; *) refuse "LOCKS_TTL is $ttl; want 10 to 900" ;; esac
case $wait in 0?* | *[!0-9]*) refuse "LOCKS_WAIT is $wait; want whole seconds" ;; esac
[ -z "${AWS_ACCESS_KEY_ID:-}" ] || [ -n "$region" ] || refuse "AWS_REGION is not set; requests are signed with it"
url=$url/locks/$1
shift
grace=$((ttl / 6)) # between TERM and KILL
newline='
'

# now is in seconds of a clock that also counts while the machine is suspended. Where
# there is such a clock, it is one that nobody sets.
now() {
	if read -r uptime _ </proc/uptime; then echo "${uptime%%.*}"; else date +%s; fi
} 2>/dev/null

random() { od -An -N16 -tx1 /dev/urandom | sed 's/ //g'; }

# ask METHOD SECONDS [BODY] sets status and answer. Secrets go through standard
# input, because everybody on the machine can see arguments.
ask() {
	answer=$({
		printf 'header = "Idempotency-Key: %s"\n' "$again"
		[ -z "$token" ] || printf 'header = "Lock-Token: %s"\n' "$token"
		if [ -n "${AWS_ACCESS_KEY_ID:-}" ]; then
			printf 'aws-sigv4 = "aws:amz:%s:execute-api"\nuser = "%s:%s"\n' "$region" "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"
			[ -z "${AWS_SESSION_TOKEN:-}" ] || printf 'header = "x-amz-security-token: %s"\n' "$AWS_SESSION_TOKEN"
		fi
	} | curl -q --config - --silent --show-error --globoff --path-as-is --max-time "$2" --request "$1" ${3+--data "$3"} \
		--header 'Content-Type: application/json' --write-out '\n%{http_code}' "$url" 2>&1) || {
		[ $? -ne 3 ] || refuse "KEY: spell it as in a URL: $url"
		answer="no answer from $url: $(printf '%s\n' "$answer" | sed -n 's/.*curl: //p')${newline}000"
	}
	status=${answer##*"$newline"} answer=${answer%"$newline"*}
}

# field NAME prints that field of the answer.
field() { printf '%s\n' "$answer" | sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p"; }

# granted BEFORE takes the lease that was asked for at BEFORE. The lease may be trusted
# until end, which is up to 3 seconds too early, because all times here are whole
# seconds.
granted() {
	token=$(field token) expires=$(field expiresIn)
	end=$(($1 + ${expires%%.*} - 2))
}

# send SIGNAL sends the signal to all processes of the command: they are a group of
# their own, a moment after the start. The signal 0 asks whether there is a process.
send() { kill -s "$1" -- "-$job" || kill -s "$1" "$job"; } 2>/dev/null

# keep renews the lock while the command runs, and then releases the lock. It fails if
# the lock was lost. It is a process of its own, so that it goes on when somebody kills
# the script.
keep() {
	trap '' HUP INT TERM
	next=$((before + ttl / 3)) how='it was renewed too late'
	while send 0; do
		before=$(now) left=$((end - grace - before))
		if [ "$left" -le 0 ]; then
			send TERM
			while send 0 && [ "$(now)" -lt "$end" ]; do sleep 1; done
			send KILL
			say "the lock was lost: $how"
			return 1
		fi
		if [ "$before" -ge "$next" ]; then
			ask PATCH $((left < 5 ? left : 5)) "{\"ttl\": $ttl}"
			how="renewing it failed, last with $status $answer"
			case $status in
			200) granted "$before" && next=$((before + ttl / 3)) how='it was renewed too late' ;;
			404) end=$((before + grace)) ;; # the lock is lost
			esac
		fi
		sleep 1
	done
	for _ in 1 2 3; do # when all requests fail, the lease ends by itself
		ask DELETE 5
		case $status in
		204) return 0 ;;
		404)
			say "the lock was lost: its release failed with 404 $answer"
			return 1
			;;
		esac
		sleep 1
	done
	say "the lock could not be released: $status $(field detail)"
}

signal='' job=''
stop() {
	signal=$1
	[ -z "$job" ] || send TERM
}
trap 'stop 1' HUP
trap 'stop 2' INT
trap 'stop 15' TERM

again=$(random) token='' tries=0 patience=$(($(now) + wait))
while [ -z "$signal" ]; do
	before=$(now)
	ask PUT 10 "{\"ttl\": $ttl, \"holder\": \"cron.sh $$ on $(uname -n)\"}"
	pause=$(field retryAfter) tries=$((tries + 1))
	case $status in
	200)
		granted "$before"
		[ "$(now)" -ge $((end - grace)) ] || break
		answer='it came too late'
		;;
	409)
		if [ "$before" -ge "$patience" ]; then
			say "busy: $(field name) holds the lock"
			exit 75
		fi
		# A key in its cooldown says when it is free again, which may be in a month.
		[ "${pause:-1}" -le $((patience - before)) ] || pause=$((patience - before))
		tries=0
		;;
	422) again=$(random) ;; # the answer was lost, and its lease has ended since
	000 | 429 | 5??) ;;     # there may be a lease: the same Idempotency-Key gets the same lease
	*) tries=6 ;;
	esac
	if [ "$tries" -gt 5 ]; then
		say "no lock: $status $answer"
		exit 69
	fi
	sleep "${pause:-1}"
done
if [ -n "$signal" ]; then
	[ -z "$token" ] || ask DELETE 5
	exit $((128 + signal))
fi
group=setsid
command -v setsid >/dev/null || { group='' && set -m; } # dash has no set -m without a terminal
LOCK_FENCE=$(field fence) $group "$@" </dev/null &
job=$!
keep </dev/null &
keeper=$!
[ -z "$signal" ] || send TERM
while wait "$keeper"; kept=$?; [ "$kept" -gt 128 ] && kill -s 0 "$keeper" 2>/dev/null; do :; done # a signal ends wait
[ "$kept" = 0 ] || send KILL
wait "$job"
result=$?
if [ "$kept" != 0 ]; then
	[ "$kept" = 1 ] || say "the lock was lost: what renews it ended with status $kept"
	exit 79
fi
[ -z "$signal" ] || exit $((128 + signal))
exit "$result"
