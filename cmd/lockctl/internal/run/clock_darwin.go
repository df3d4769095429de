package run

import "golang.org/x/sys/unix"

const steadyClock = unix.CLOCK_MONOTONIC // it goes on in sleep, unlike that of Linux
