package run

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const steadyClock = unix.CLOCK_MONOTONIC // it goes on in sleep, unlike that of Linux

// ownFile is the path of the file that this process runs: this system cannot start a file that was removed.
func ownFile() (string, error) { return os.Executable() }

// ownGroup puts a command into a process group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// rename does nothing: this system has no such thing.
func rename(string) bool { return false }

// adopt does nothing: this system has no such thing.
func adopt() {}
