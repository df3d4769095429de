package clienttest

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// harness is what a situation has at hand.
type harness struct {
	*testing.T
	program program
	url     string // of the lock at the service itself
	dir     string // of the jobs
	proxy   *proxy
	key     string
}

func newHarness(t *testing.T, service string, p program) *harness {
	// Each of these is escaped in a URL, and none twice.
	key := "shared/clients/" + rand.Text() + "/ü b%2F"
	path := strings.ReplaceAll(url.PathEscape(key), "%2F", "/")
	return &harness{t, p, service + "/locks/" + path, t.TempDir(), newProxy(t, service), key}
}

// until waits until something is so.
func (h *harness) until(what string, is func() bool) {
	h.Helper()
	for end := time.Now().Add(9 * ttl); !is(); <-time.After(20 * time.Millisecond) {
		require.True(h, time.Now().Before(end), "waiting for %s", what)
	}
}

// process is a program that runs.
type process struct {
	*exec.Cmd
	dir  string       // what its job writes
	text bytes.Buffer // what the program has written, once it has ended
}

// start runs the program around its job, with further variables. Its lease does not end while
// the test runs, unless they have short.
func (h *harness) start(env ...string) *process {
	ctx, cancel := context.WithTimeout(context.Background(), 9*ttl)
	p := &process{dir: h.TempDir()}
	args := append(slices.Clone(h.program.command[1:]), h.key)
	p.Cmd = exec.CommandContext(ctx, h.program.command[0], args...)
	// Ours without what would change a program's way to the service.
	p.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasSuffix(strings.ToLower(name), "_proxy") || strings.HasPrefix(name, "AWS_")
	})
	p.Env = slices.Concat(p.Env, []string{"LOCKS_URL=" + h.proxy.URL, "LOCKS_TTL=900", "LOCKS_WAIT=0",
		"JOB_DIR=" + h.dir, "JOB_OUT=" + p.dir, "JOB_STATUS=0",
		"http_proxy=http://127.0.0.1:1", // nobody listens there, and a token without TLS is for no proxy
		"PYTHONPATH=../../clients", "PYTHONDONTWRITEBYTECODE=1"}, env)
	p.Stdout, p.Stderr = &p.text, &p.text
	require.NoError(h, p.Start())
	h.Cleanup(func() {
		cancel()
		if p.ProcessState == nil {
			_ = p.Wait() // its state says how it ended
		}
		if h.Failed() {
			h.Logf("%v: %s", p.ProcessState, &p.text)
			for _, e := range h.proxy.seen("", 0) {
				h.Logf("%s %s, answered with %d %.200s", e.at.Format(time.StampMilli), e.method, e.status, e.text)
			}
		}
	})
	return p
}

// begin starts the program and waits until the job runs, with that fence.
func (h *harness) begin(env ...string) (p *process, fence int64) {
	h.Helper()
	p = h.start(env...)
	return p, h.begun(p)
}

func (h *harness) begun(p *process) int64 {
	h.Helper()
	h.until("the job", func() bool { return p.said("fence") > 0 })
	return int64(p.said("fence"))
}

// said is the number that the job has written last, or 0.
func (p *process) said(file string) float64 {
	text, _ := os.ReadFile(filepath.Join(p.dir, file))
	line, whole := strings.CutSuffix(string(text), "\n")
	number, err := strconv.ParseFloat(line, 64)
	if !whole || err != nil {
		return 0
	}
	return number
}

// lastTick is when the job last knew that the lock was its own.
func (p *process) lastTick() time.Time { return time.UnixMicro(int64(p.said("tick") * 1e6)) }

// exits waits until the process has ended with this status.
func (h *harness) exits(p *process, status int) {
	h.Helper()
	_ = p.Wait() // its state says how it ended
	require.Equal(h, status, p.ProcessState.ExitCode())
}

// openGate lets the jobs end.
func (h *harness) openGate() {
	require.NoError(h, os.WriteFile(filepath.Join(h.dir, "gate"), nil, 0o600))
}

// ends lets the job end. The program then ends with this status, and its lock is free.
func (h *harness) ends(p *process, status int, fence int64) {
	h.Helper()
	h.openGate()
	h.exits(p, status)
	h.free(fence)
}

// free checks that somebody else gets the lock at once, with a larger fence.
func (h *harness) free(fence int64) {
	h.Helper()
	a := h.put()
	require.Equal(h, 200, a.status, "the lock is not free: %s", a.text)
	require.Greater(h, a.Fence, fence)
	h.release(a)
}

// takeOver gets the lock when its lease has ended, which is at end.
func (h *harness) takeOver(end time.Time, fence int64) (a answer) {
	h.Helper()
	h.until("the lock of a dead holder", func() bool {
		asked := time.Now()
		a = h.put()
		require.Contains(h, []int{200, 409}, a.status, "%s", a.text)
		require.True(h, a.status == 200 || asked.Sub(end) < late, "the lock is still held")
		return a.status == 200
	})
	require.Greater(h, a.Fence, fence)
	return a
}

// put asks the service itself for the lock, not through the proxy.
func (h *harness) put() answer { return h.ask("PUT", `{"ttl": 900}`, "Idempotency-Key", rand.Text()) }

// release ends a lease that put got.
func (h *harness) release(a answer) {
	got := h.ask("DELETE", "", "Lock-Token", a.Token)
	require.Equal(h, 204, got.status, "%s", got.text)
}

// state looks at the lock.
func (h *harness) state() answer { return h.ask("GET", "", "Accept", "application/json") }

func (h *harness) ask(method, body, header, value string) answer {
	a, err := do(h.Context(), method, h.url, http.Header{header: {value}}, []byte(body))
	require.NoError(h, err)
	return a
}
