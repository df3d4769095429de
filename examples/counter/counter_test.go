package counter

import (
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/examples/counter/internal/fencednumber"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// Three environments of the binary that is deployed send ten tasks each at once. No update
// is lost.
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
			number := &fencednumber.Server{}
			resource := httptest.NewServer(number)
			defer resource.Close()
			env := append(locks(t), "LOCK_WAIT=30s", "COUNTER_URL="+resource.URL)
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
			require.EqualValues(t, environments*tasks, number.Value())
		})
	}
}

// The same work without the lock: two that read before one writes lose an update.
func TestWithoutTheLock(t *testing.T) {
	number := &fencednumber.Server{Readers: &sync.WaitGroup{}}
	number.Readers.Add(2)
	resource := httptest.NewServer(number)
	defer resource.Close()
	var tasks sync.WaitGroup
	for range 2 {
		tasks.Go(func() {
			_, err := handle(resource.URL)(t.Context(), guard.Lock{}, task{"7"})
			assert.NoError(t, err)
		})
	}
	tasks.Wait()
	require.EqualValues(t, 1, number.Value())
}
