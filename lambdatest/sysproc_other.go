//go:build !linux

package lambdatest

import "syscall"

// sysProcAttr keeps a terminal's Ctrl-C for us, who end the process. Only Linux
// can also end it when we are killed; elsewhere it ends itself when its Runtime
// API does not answer any more.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// stopped cannot be asked here: whether a signal has stopped all threads yet is not known.
func stopped(int) bool { return true }
