package testservers

import "syscall"

// dieWithParent ends a server when the test's own process is killed, where
// cleanups do not run.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
