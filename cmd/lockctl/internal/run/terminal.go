package run

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of lockctl. A shell with job control makes the
// process group of lockctl its foreground group; only this group may read from it, and
// Ctrl-C and Ctrl-Z are for this group. The command has another group, so lockctl gives it
// the foreground. A nil terminal is none.
type terminal struct {
	file *os.File
	own  int // lockctl's process group
}

func openTerminal() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return &terminal{file, syscall.Getpgrp()}
}

// isCommands says that the command's standard input and output are this terminal, and that
// it is lockctl's turn to read from it. In "lockctl run ... | less" the terminal is for less,
// which is in lockctl's group, until the command asks for it.
func (t *terminal) isCommands() bool {
	for _, fd := range []int{0, 1} {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		if t == nil || err != nil || group != t.own {
			return false
		}
	}
	return true
}

// give makes a process group the foreground group if lockctl is in the foreground. It also
// succeeds if the group has the foreground already: a command that reads at once is stopped
// before it gets the foreground, and the guard process tells the stop after that.
func (t *terminal) give(group int) bool {
	if t == nil {
		return false
	}
	foreground := t.foreground()
	return foreground == group || foreground == t.own && t.set(group)
}

func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// gone says that the terminal was closed, and that the leader of its session is another process. When the leader ends,
// the system sends SIGHUP to the foreground group. lockctl has its own SIGHUP from the leader, a shell.
func (t *terminal) gone() bool {
	leader, err := unix.Getsid(0)
	return t.foreground() == 0 && err == nil && leader != os.Getpid()
}

func (t *terminal) set(group int) bool {
	return unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group) == nil
}

// takeBack makes lockctl's group the foreground group again if the command's group is it:
// a script that goes on after lockctl needs the terminal.
func (t *terminal) takeBack(group int) {
	if t == nil || t.foreground() != group {
		return
	}
	t.set(t.own) // from the background: run ignores SIGTTOU
}
