package run

import "golang.org/x/sys/unix"

const steadyClock = unix.CLOCK_BOOTTIME
