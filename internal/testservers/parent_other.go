//go:build !linux

package testservers

import "syscall"

// dieWithParent: only Linux can tie a process to its parent.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
