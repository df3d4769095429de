package clienttest

import (
	"bufio"
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lambdatest"
)

const (
	root = "../.."
	slow = 10 * time.Second // a machine that is busy with other tests
)

func TestOnThePlainServer(t *testing.T) {
	t.Parallel()
	try(t, serve(t))
}

func TestOnTheFunction(t *testing.T) {
	t.Parallel()
	try(t, runner(t))
}

// atOnce is how many trials run at a time, whatever -parallel is: they mostly wait.
const atOnce = 8

func try(t *testing.T, url string) {
	trials := Trials(root, Service{URL: url, TTL: 15 * time.Second, Late: slow})
	errs, missing := make([]error, len(trials)), make([]error, len(trials))
	running := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, trial := range trials {
		all.Go(func() {
			running <- struct{}{}
			defer func() { <-running }()
			if missing[i] = trial.Missing(t.Context()); missing[i] == nil {
				errs[i] = trial.Run(t.Context())
			}
		})
	}
	all.Wait()
	for i, trial := range trials {
		t.Run(trial.Name, func(t *testing.T) {
			if missing[i] != nil && os.Getenv("CI") == "" {
				t.Skip(missing[i])
			}
			assert.NoError(t, errors.Join(missing[i], errs[i]))
		})
	}
}

func build(t *testing.T, pkg string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), filepath.Base(pkg))
	require.NoError(t, lambdatest.Build(t.Context(), filepath.Join(root, pkg), binary))
	return binary
}

// serve starts what make serve starts.
func serve(t *testing.T) string {
	cmd := exec.Command(build(t, "cmd/lockctl"), "serve", "0")
	cmd.Env = append(cmd.Environ(), "LOCK_URL=memory://")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		assert.NoError(t, cmd.Process.Signal(os.Interrupt))
		assert.NoError(t, cmd.Wait(), "it stops in order")
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	url := regexp.MustCompile(`http://[0-9.:]+\d`).FindString(line)
	require.NotEmpty(t, url)
	return url
}

// runner puts the function's binary behind the gateway. An invocation gets an
// environment of its own if all are at work, as on the platform.
func runner(t *testing.T) string {
	config := lambdatest.Config{
		Binary:  build(t, "functions/locks"),
		Name:    "locks",
		Timeout: 29 * time.Second, // as in the template
		Env: []string{
			"LOCK_URL=redis://" + miniredis.RunT(t).Addr(),
			"LOCK_TOKEN_SECRET=text:///a secret that is long enough for its hash",
			`LOCK_CALLERS={"anonymous": ["shared/"]}`,
		},
	}
	var mu sync.Mutex
	var idle, all []*lambdatest.Env
	take := func(ctx context.Context) (*lambdatest.Env, error) {
		mu.Lock()
		defer mu.Unlock()
		if n := len(idle); n > 0 {
			env := idle[n-1]
			idle = idle[:n-1]
			return env, nil
		}
		env, err := lambdatest.Start(ctx, config)
		if err == nil {
			all = append(all, env)
		}
		return env, err
	}
	t.Cleanup(func() {
		for _, env := range all {
			assert.NoError(t, env.Close())
		}
		t.Logf("%d environments", len(all))
	})
	server := httptest.NewServer(lambdatest.HTTPAPI{
		Routes: []string{"ANY /locks/{key+}", "GET /openapi.json"},
		Invoke: func(ctx context.Context, r httpapi.Request) (httpapi.Response, error) {
			env, err := take(context.WithoutCancel(ctx))
			if err != nil {
				return httpapi.Response{}, err
			}
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				idle = append(idle, env)
			}()
			return env.InvokeHTTP(ctx, r)
		},
	})
	t.Cleanup(server.Close)
	return server.URL
}
