//go:build !linux

package testservers

import "syscall"

// dieWithParent: only Linux can tie a process to its parent.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// workingIn: only Linux says so. Elsewhere a paused PostgreSQL takes no new connections, and goes on with the others.
func workingIn(string) []int { return nil }
