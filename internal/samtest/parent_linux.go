package main

import "syscall"

// ownGroup keeps a terminal's Ctrl-C for us, who end the process in its turn,
// and ends it when we are killed ourselves.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
