package clienttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// program is one of examples/ and how a trial runs it.
type program struct {
	file          string
	needs         []string // a command that fails where the program cannot run
	command       func(root, key string) *exec.Cmd
	signal        syscall.Signal // that ends it in order
	authorization string         // of its requests
	checks        bool           // the job itself looks at the lease
}

// bearer is what jobs/job.py and jobs/job.mjs send.
const bearer = "Bearer of a test"

var programs = []program{
	{
		file:  "cron.sh",
		needs: []string{"sh", "-c", "command -v curl && command -v sed && command -v od"},
		command: func(root, key string) *exec.Cmd {
			// The job is a process of the command, not the command itself.
			return exec.Command("sh", filepath.Join(root, "clients", "cron.sh"), spelt(key), "sh", "-c", `sh "$0"; exit $?`, job(root, "job.sh"))
		},
		signal: syscall.SIGTERM,
	},
	{
		file:          "lock.py",
		needs:         []string{"python3", "-c", "import sys; sys.exit(sys.version_info < (3, 8))"},
		command:       func(root, key string) *exec.Cmd { return exec.Command("python3", job(root, "job.py"), key) },
		signal:        syscall.SIGINT,
		authorization: bearer,
		checks:        true,
	},
	{
		file:          "lock.mjs",
		needs:         []string{"node", "-e", "process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)"},
		command:       func(root, key string) *exec.Cmd { return exec.Command("node", job(root, "job.mjs"), key) },
		authorization: bearer,
		checks:        true,
	},
}

func job(root, file string) string {
	return filepath.Join(root, "internal", "clienttest", "jobs", file)
}

func (p program) missing(ctx context.Context) error {
	if text, err := exec.CommandContext(ctx, p.needs[0], p.needs[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s cannot run here: %q: %w %s", p.file, p.needs, err, text)
	}
	return nil
}

// environment is ours without what would change a program's way to the service.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasSuffix(strings.ToLower(name), "_proxy") || strings.HasPrefix(name, "AWS_")
	})
}

// process is a program that runs.
type process struct {
	cmd   *exec.Cmd
	out   events[string] // lines of its standard output
	ended chan struct{}

	mu   sync.Mutex
	part []byte // of a line
	err  bytes.Buffer
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, &p.err
	cmd.WaitDelay = 5 * time.Second // for what is left of a tree that was killed
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // its state says how it ended
		close(p.ended)
	}()
	return p, nil
}

// Write takes the process's output apart.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.part = append(p.part, b...)
	for {
		line, rest, whole := bytes.Cut(p.part, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		p.out.add(string(line))
		p.part = rest
	}
}

// tail is what it said, the ticks aside; all of it once it has ended.
func (p *process) tail() string {
	lines := slices.DeleteFunc(slices.Clone(p.out.list()), func(line string) bool { return strings.HasPrefix(line, "tick ") })
	select {
	case <-p.ended:
		return strings.Join(lines, ", ") + ", " + p.err.String() + p.cmd.ProcessState.String()
	default:
		return strings.Join(lines, ", ")
	}
}

// last is the rest of the last line that begins so.
func last(lines []string, begin string) string {
	for _, line := range slices.Backward(lines) {
		if rest, ok := strings.CutPrefix(line, begin); ok {
			return rest
		}
	}
	return ""
}

// kill ends the process and all that it has started.
func (p *process) kill() {
	select {
	case <-p.ended:
		return
	default:
	}
	// What is stopped starts nothing any more.
	_ = errors.Join(p.signalAll(syscall.SIGSTOP), p.signalAll(syscall.SIGKILL)) // an error means that it is gone
	<-p.ended
}

// signalAll sends a signal to the process and all that it has started, also
// meanwhile.
func (p *process) signalAll(signal syscall.Signal) error {
	sent := map[int]bool{}
	for {
		all, err := family(p.cmd.Process.Pid)
		if err != nil {
			return err
		}
		before := len(sent)
		for _, pid := range all {
			if !sent[pid] {
				sent[pid] = true
				if err := syscall.Kill(pid, signal); err != nil && err != syscall.ESRCH {
					return err
				}
			}
		}
		if len(sent) == before {
			return nil
		}
	}
}

// family are the process and what it has started, and what those have.
func family(pid int) ([]int, error) {
	text, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("ps: %w", err)
	}
	children := map[int][]int{}
	for line := range strings.Lines(string(text)) {
		var child, parent int
		if _, err := fmt.Sscan(line, &child, &parent); err != nil {
			return nil, fmt.Errorf("ps: %q: %w", line, err)
		}
		children[parent] = append(children[parent], child)
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all, nil
}
