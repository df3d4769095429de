package testservers

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// dieWithParent ends a server when the test's own process is killed, where
// cleanups do not run.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// workingIn returns the processes whose working directory is dir.
func workingIn(dir string) (pids []int) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil // there is none in a folder that is not there
	}
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // only a pattern can be wrong
	for _, link := range links {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if at, linkErr := os.Readlink(link); err == nil && linkErr == nil && at == dir {
			pids = append(pids, pid)
		}
	}
	return pids
}
