package counter

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// counter counts requests, each of which takes a while, and those that the lock should have kept away.
type counter struct {
	mu                    sync.Mutex
	running, count, wrong int
	fence                 uint64
}

func (c *counter) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	fence, err := strconv.ParseUint(r.Header.Get("Fence"), 10, 64)
	c.mu.Lock()
	if c.running++; err != nil || c.running > 1 || fence <= c.fence {
		c.wrong++
	}
	c.count, c.fence = c.count+1, fence
	c.mu.Unlock()
	<-time.After(5 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
}

// A counter that refuses a fence makes the run fail.
func TestRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPreconditionFailed) }))
	defer server.Close()
	_, err := handle(server.URL)(t.Context(), guard.Lock{Fence: 1}, task{})
	require.EqualError(t, err, "the counter answered 412 Precondition Failed")
}

// Three environments of the binary that is deployed send ten tasks each at once. No two run at once.
func TestEnvironments(t *testing.T) {
	for folder, locks := range map[string]func(*testing.T) []string{
		"cosmosdb": func(t *testing.T) []string {
			return []string{"LOCK_URL=cosmos://account/db/locks?endpoint=http://" + testservers.Cosmos(t)}
		},
		"datastore": func(t *testing.T) []string {
			return []string{"LOCK_URL=datastore://project", "DATASTORE_EMULATOR_HOST=" + testservers.Datastore(t).Addr}
		},
	} {
		t.Run(folder, func(t *testing.T) {
			c := &counter{}
			server := httptest.NewServer(c)
			defer server.Close()
			env := append(locks(t), "LOCK_WAIT=30s", "COUNTER_URL="+server.URL)
			binary := filepath.Join(t.TempDir(), "bootstrap")
			require.NoError(t, lambdatest.Build(t.Context(), "./"+folder, binary))
			const environments, tasks = 3, 10
			all, err := lambdatest.StartAll(t.Context(), environments, lambdatest.Config{Binary: binary, Timeout: time.Minute, Env: env})
			require.NoError(t, err)
			defer all.Close()
			var senders sync.WaitGroup
			for _, env := range all {
				senders.Go(func() {
					for range tasks {
						r, err := env.Invoke(t.Context(), []byte(`{"account": "7"}`))
						if !assert.NoError(t, err) || !assert.Empty(t, r.ErrorType, r.ErrorMessage) {
							return
						}
					}
				})
			}
			senders.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			require.Equal(t, environments*tasks, c.count)
			require.Zero(t, c.wrong, "two at once, or a smaller fence after a larger one")
		})
	}
}
