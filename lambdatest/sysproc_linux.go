package lambdatest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// sysProcAttr keeps a terminal's Ctrl-C for us, who end the process, and ends
// it when we are killed ourselves.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether all threads of a process have stopped or ended. After SIGSTOP
// that takes a moment: until then a thread on another processor goes on.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is right
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		_, fields, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" ")) // a name may have spaces
		if len(fields) > 0 && !bytes.ContainsAny(fields[:1], "TtZX") {
			return false
		}
	}
	return true
}
