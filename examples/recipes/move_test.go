package recipes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// The test binary is also the function.
func TestMain(m *testing.M) {
	if os.Getenv("RESOURCE") == "" {
		os.Exit(m.Run())
	}
	function()
}

// function is the main function of the versions with one store, and of the version in between, which has
// NEW_LOCK_URL, too.
func function() {
	resource := boot.EnvVar("RESOURCE")
	key := func(_ context.Context, event string) (string, error) { return event, nil }
	handle := func(ctx context.Context, lock guard.Lock, _ string) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/%d", resource, lock.Fence), nil)
		if err != nil {
			return "", err
		}
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		return reply.Status, reply.Body.Close()
	}
	if boot.EnvVar("NEW_LOCK_URL") == "" {
		g := boot.MustGuardFromEnv(redisstore.Opener)
		boot.Start(g, guard.Wrap(g, key, handle))
	}
	from, to := Guards(redisstore.Opener)
	boot.Start(from, WrapBoth(from, to, key, handle))
}

// resource counts the runs that use it at once.
type resource struct {
	stay time.Duration // of a run, or until there are two
	two  chan struct{} // closed then

	mu                         sync.Mutex
	runs, running, most, stale int
	last                       uint64 // fence; stale counts the runs with a smaller one
}

func (r *resource) ServeHTTP(_ http.ResponseWriter, request *http.Request) {
	fence, err := strconv.ParseUint(request.URL.Path[1:], 10, 64)
	r.mu.Lock()
	if err != nil || fence <= r.last {
		r.stale++
	}
	r.last = fence
	r.runs++
	r.running++
	if r.running == 2 && r.most == 1 {
		close(r.two)
	}
	r.most = max(r.most, r.running)
	r.mu.Unlock()
	select {
	case <-r.two:
	case <-time.After(r.stay):
	case <-request.Context().Done(): // the function was killed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
}

// The lines of each guard name its own store. LOCK_URL is as before.
func TestGuards(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer out.Close()
	stdout, logger := os.Stdout, slog.Default()
	defer func() { os.Stdout = stdout; slog.SetDefault(logger) }()
	os.Stdout = out
	t.Setenv("LOCK_URL", "memory://")
	t.Setenv("NEW_LOCK_URL", "redis://"+miniredis.RunT(t).Addr())
	from, to := Guards(memstore.Opener, redisstore.Opener)
	for _, g := range []*guard.Guard{from, to} {
		require.NoError(t, g.Do(t.Context(), "k", func(context.Context, guard.Lock) error { return nil }))
	}
	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	var stores []string
	for line := range strings.Lines(string(text)) {
		var report struct{ Message, Store string }
		require.NoError(t, json.Unmarshal([]byte(line), &report))
		if report.Message == "lock" {
			stores = append(stores, report.Store)
		}
	}
	require.Equal(t, []string{"memory", "redis"}, stores, "%s", text)
	require.Equal(t, "memory://", os.Getenv("LOCK_URL"))
}

// A sentence about the new store's URL names its variable.
func TestGuardsNameTheWrongURL(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "RESOURCE=any", "LOCK_URL=redis://localhost", "NEW_LOCK_URL=redis://localhost?shards=3")
	said, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(said), "lambdalock: NEW_LOCK_URL: ")
}

// The locks move from a server to another one while eight environments work, four of a version and four of the next one. No
// runs overlap, and the fence grows. The control leaves the version in between out.
func TestMove(t *testing.T) {
	from, to := "redis://"+testservers.Redis(t), "valkey://"+testservers.Valkey(t)
	before, both, after := []string{"LOCK_URL=" + from}, []string{"LOCK_URL=" + from, "NEW_LOCK_URL=" + to}, []string{"LOCK_URL=" + to}
	self, err := os.Executable()
	require.NoError(t, err)
	for _, step := range []struct {
		name     string
		versions [2][]string
		of, each int // environments of a version, and runs of each
		stay     time.Duration
		most     int
	}{
		{"first step", [2][]string{before, both}, 4, 15, 5 * time.Millisecond, 1},
		{"second step", [2][]string{both, after}, 4, 15, 5 * time.Millisecond, 1},
		{"control", [2][]string{before, after}, 1, 1, time.Minute, 2},
	} {
		t.Run(step.name, func(t *testing.T) {
			r := &resource{stay: step.stay, two: make(chan struct{})}
			server := httptest.NewServer(r)
			t.Cleanup(server.Close)
			var envs lambdatest.Envs
			t.Cleanup(func() { assert.NoError(t, envs.Close()) })
			for _, env := range step.versions {
				more, err := lambdatest.StartAll(t.Context(), step.of, lambdatest.Config{Binary: self, Timeout: time.Minute,
					Env: append([]string{"RESOURCE=" + server.URL, "LOCK_WAIT=50s"}, env...)})
				require.NoError(t, err)
				envs = append(envs, more...)
			}
			var all sync.WaitGroup
			for _, e := range envs {
				all.Go(func() {
					for range step.each {
						result, err := e.Invoke(t.Context(), []byte(`"account/7"`))
						assert.NoError(t, err)
						assert.Empty(t, result.ErrorType, result.ErrorMessage)
						assert.Equal(t, `"200 OK"`, string(result.Payload))
					}
				})
			}
			all.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			assert.Equal(t, 2*step.of*step.each, r.runs)
			assert.Equal(t, step.most, r.most, "at once")
			if step.most == 1 {
				assert.Zero(t, r.stale)
			}
		})
	}
}
