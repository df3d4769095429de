//go:build !linux

package main

import "syscall"

// ownGroup keeps a terminal's Ctrl-C for us, who end the process in its turn.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
