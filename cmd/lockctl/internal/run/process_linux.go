package run

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const steadyClock = unix.CLOCK_BOOTTIME

// ownFile is the file that this process runs. It is there also after an upgrade has removed or replaced the file at its path: the wait for the
// lock may take hours.
func ownFile() (string, error) { return "/proc/self/exe", nil }

// ownGroup puts a command into a process group of its own. The system kills the command
// when the guard process is killed. This hangs on the thread that starts the command, so
// that thread must not end before.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// rename gives this process a name for ps, and says if it has it.
func rename(name string) bool { return os.WriteFile("/proc/self/comm", []byte(name), 0) == nil }

// adopt makes this process the parent of the command's orphans, so that it can see when
// they have ended. Where it fails, the system's first process is their parent.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
