package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// example is a client of the lock service in a language of its own.
type example struct {
	file    string
	command []string // to which the program is added
	// program is refused the lock KEY, and has the lock KEY/own.
	program string
}

var examples = []example{
	{"clients/lock.py", []string{"python3", "-c"}, `
import sys
sys.path.insert(0, "clients")
from lock import Lock, LockBusy
try:
    with Lock("KEY"):
        sys.exit("two have the lock")
except LockBusy:
    pass
with Lock("KEY/own") as lock:
    lock.check()
    assert lock.fence > 0
`},
	{"clients/lock.mjs", []string{"node", "--input-type=module", "--eval"}, `
import { withLock, LockBusy } from "./clients/lock.mjs";
const refused = await withLock("KEY", {}, () => "two have the lock").catch((e) => e);
if (!(refused instanceof LockBusy)) throw refused;
await withLock("KEY/own", {}, (lock) => {
  lock.check();
  if (!(lock.fence > 0)) throw new Error("fence: " + lock.fence);
});
`},
}

// clients runs the examples, each as the command for which clients/cron.sh holds
// the lock.
func (tr trial) clients(ctx context.Context, base string, r *report) error {
	for _, e := range examples {
		if _, err := exec.LookPath(e.command[0]); err != nil {
			r.called[e.file] = check{untried: fmt.Sprintf("%s, because %s is not installed", e.file, e.command[0])}
			continue
		}
		key := "shared/" + rand.Text()
		began := time.Now()
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		args := append([]string{"clients/cron.sh", key}, e.command...)
		cmd := exec.CommandContext(ctx, "sh", append(args, strings.ReplaceAll(e.program, "KEY", key))...)
		cmd.Env = append(os.Environ(), "LOCKS_URL="+base, "AWS_ACCESS_KEY_ID=") // nothing to sign for
		cmd.SysProcAttr = ownGroup()
		text, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, lastLines(string(text), 6))
		}
		r.called[e.file] = tr.checked(e.file+" below clients/cron.sh", err, time.Since(began))
	}
	return ctx.Err()
}
