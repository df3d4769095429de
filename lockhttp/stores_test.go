package lockhttp

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// stores are a new store of each kind.
var stores = map[string]func(testing.TB) *lockstore.Store{
	"memory":    func(testing.TB) *lockstore.Store { return memstore.New(nil) },
	"miniredis": func(t testing.TB) *lockstore.Store { return openRedis(t, miniredis.RunT(t).Addr()) },
	"redis":     func(t testing.TB) *lockstore.Store { return openRedis(t, testservers.Redis(t)) },
	"dynamodb": func(t testing.TB) *lockstore.Store {
		table := testservers.Table(t, testservers.DynamoDB(t), strings.ReplaceAll(t.Name(), "/", "-"), "key")
		store, err := dynamostore.Open(t.Context(), config(t, table))
		require.NoError(t, err)
		return store.Store
	},
}

func openRedis(t testing.TB, addr string) *lockstore.Store {
	store, err := redisstore.Open(t.Context(), config(t, "redis://"+addr))
	require.NoError(t, err)
	return store
}

func config(t testing.TB, url string) lockstore.Config {
	u, err := lockstore.ParseURL(url)
	require.NoError(t, err)
	return lockstore.Config{URL: u, Getenv: func(string) string { return "local" }}
}

// TestManyRequestsAtOnce sends many requests for one lock at the same time: one has it.
func TestManyRequestsAtOnce(t *testing.T) {
	for name, open := range stores {
		t.Run("F64 "+name, func(t *testing.T) {
			s := newService(t, open(t))
			// Not more than these servers answer in time on a small machine.
			size := cmp.Or(map[string]int{"miniredis": 200, "redis": 200, "dynamodb": 50}[name], 1000)
			require.Equal(t, http.StatusOK, ask(t, s, "GET", key, "").StatusCode)
			answers := make([]httpapi.Response, size)
			var all sync.WaitGroup
			for i := range answers {
				all.Go(func() {
					var err error
					answers[i], err = s.Handle(t.Context(), request(cron, "PUT", key, thirty))
					assert.NoError(t, err)
				})
			}
			all.Wait()
			statuses := map[int]int{}
			for _, a := range answers {
				statuses[a.StatusCode]++
			}
			require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusConflict: size - 1}, statuses)
		})
	}
}

// TestLifeOnEachStore also repeats everything.
func TestLifeOnEachStore(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			s := newService(t, open(t))
			require.Equal(t, object{"state": "free", "fence": 0.0}, ask(t, s, "GET", key, "").said)
			const named = `{"ttl": 30, "holder": "cron on host 4"}`
			had := acquire(t, s, key, named, idem, "7")
			require.InDelta(t, 29, had.said["expiresIn"], 1.5)
			expires, err := time.Parse(time.RFC3339Nano, had.said["expiresAt"].(string))
			require.NoError(t, err)
			require.WithinDuration(t, time.Now().Add(30*time.Second), expires, 5*time.Second)
			again := acquire(t, s, key, named, idem, "7")
			require.Equal(t, had.said["fence"], again.said["fence"])
			require.Equal(t, had.token(), again.token())

			for _, a := range []answer{ask(t, s, "PUT", key, thirty), ask(t, s, "PUT", key, `{"ttl": 30, "wait": 1}`)} {
				require.Equal(t, http.StatusConflict, a.StatusCode)
				require.Equal(t, "cron on host 4", a.said["holder"].(object)["name"])
			}
			for _, ttl := range []string{`{"ttl": 60}`, `{"ttl": 60}`, `{"ttl": 1}`} {
				a := ask(t, s, "PATCH", key, ttl, "Lock-Token", had.token())
				require.Equal(t, http.StatusOK, a.StatusCode, a.Body)
				require.Equal(t, had.said["fence"], a.said["fence"])
			}
			look := ask(t, s, "GET", key, "").said
			require.Equal(t, []string{"fence", "holder", "remaining", "state"}, slices.Sorted(maps.Keys(look)))
			require.Equal(t, had.said["fence"], look["fence"])
			require.Greater(t, look["remaining"], 50.0, "a renewal shortens nothing")

			for range 2 {
				require.Equal(t, http.StatusNoContent, ask(t, s, "DELETE", key, "", "Lock-Token", had.token()).StatusCode)
			}
			require.Equal(t, object{"state": "free", "fence": had.said["fence"]}, ask(t, s, "GET", key, "").said)
			require.Equal(t, http.StatusUnprocessableEntity, ask(t, s, "PUT", key, named, idem, "7").StatusCode)
			require.Equal(t, http.StatusNotFound, ask(t, s, "PATCH", key, thirty, "Lock-Token", had.token()).StatusCode)

			next := acquire(t, s, key, thirty)
			require.Greater(t, next.said["fence"], had.said["fence"])
			for _, method := range []string{"PATCH", "DELETE"} {
				a := ask(t, s, method, key, thirty, "Lock-Token", secret(oldSecret).token(lockstore.Lease{Key: key, Owner: "another", Fence: 1}))
				require.Equal(t, http.StatusNotFound, a.StatusCode)
			}
			require.Equal(t, http.StatusOK, ask(t, s, "PATCH", key, thirty, "Lock-Token", next.token()).StatusCode)
		})
	}
}

// TestOneTokenForMany renews and releases one lease from many sides at once.
func TestOneTokenForMany(t *testing.T) {
	for name, open := range stores {
		t.Run("F62 "+name, func(t *testing.T) {
			s := newService(t, open(t))
			token := acquire(t, s, key, thirty).token()
			var all sync.WaitGroup
			for i := range 16 {
				method, may := "PATCH", []int{http.StatusOK, http.StatusNotFound}
				if i%4 == 0 {
					method, may = "DELETE", []int{http.StatusNoContent}
				}
				all.Go(func() {
					response, err := s.Handle(t.Context(), request(cron, method, key, thirty, "Lock-Token", token))
					assert.NoError(t, err)
					assert.Contains(t, may, response.StatusCode)
				})
			}
			all.Wait()
			require.Equal(t, "free", ask(t, s, "GET", key, "").said["state"])
		})
	}
}
