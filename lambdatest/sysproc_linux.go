package lambdatest

import "syscall"

// sysProcAttr keeps a terminal's Ctrl-C for us, who end the process, and ends
// it when we are killed ourselves.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
