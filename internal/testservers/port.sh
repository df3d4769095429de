# For the scripts that run a server, which have a function fail.

# check_port PORT EXAMPLE fails if PORT is no port.
check_port() {
	want="PORT is $1; want 1 to 65535, as in $2"
	case $1 in
	'' | 0* | *[!0-9]* | ??????*) fail "$want" ;;
	esac
	[ "$1" -le 65535 ] || fail "$want"
}
