package run

import "syscall"

// ownGroup puts a command into a process group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// rename does nothing: this system has no such thing.
func rename(string) bool { return false }

// adopt does nothing: this system has no such thing.
func adopt() {}
