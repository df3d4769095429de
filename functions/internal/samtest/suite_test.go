//go:build sam

package samtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/lockstore"
)

// suite is all that is tried on one store.
type suite struct {
	ctx      context.Context
	fixtures []fixture

	accounts functest.Accounts
	fresh    func(context.Context) error // as in store
	locks    *lockstore.Store            // nil where the locks are out of reach

	// once runs an event and returns the function's answer, also an error.
	once func(context.Context, fixture) ([]byte, error)
	// serve starts what the SAM CLI has a command for: start-lambda or start-api. In AWS both are there.
	serve func(t *testing.T, command string) *service
}

func newSuite(t *testing.T, ctx context.Context, tm *template.Template, on store) *suite {
	functions, err := tm.Functions()
	require.NoError(t, err)
	s := &suite{ctx: ctx, fixtures: readFixtures(t, "events", functions), fresh: on.fresh, accounts: functest.OpenAccounts(t, on.accounts, on.getenv)}
	if on.locks != "" {
		s.locks, err = lockstore.Open(ctx, on.locks, on.getenv, openers...)
		require.NoError(t, err)
	}
	return s
}

// run makes a test of each check. After an interruption no further phase starts.
func (s *suite) run(t *testing.T) {
	t.Run("events", s.events)
	require.NoError(t, s.ctx.Err())
	t.Run("HTTP", func(t *testing.T) {
		api := s.serve(t, "start-api")
		for _, f := range s.fixtures {
			if r, ok := f.unused().request(t); ok {
				t.Run(f.Name, func(t *testing.T) { s.request(t, api, f, r) })
			}
		}
		t.Run("a lock from PUT to DELETE", func(t *testing.T) { s.lock(t, api) })
	})
}

// onZooKeeper runs what needs neither the lock service, which is not built for it, nor parked places.
func (s *suite) onZooKeeper(t *testing.T) {
	s.fixtures = slices.DeleteFunc(s.fixtures, func(f fixture) bool { return strings.HasPrefix(f.Name, "locks") || f.parks() })
	t.Run("events", s.events)
}

func (s *suite) events(t *testing.T) {
	for _, f := range s.fixtures {
		t.Run(f.Name, func(t *testing.T) { s.event(t, f) })
	}
}

// prepare makes the world that the event was written for: accounts, and a lock that
// another holds where the event is about that. What it returns releases the lock.
func (s *suite) prepare(t *testing.T, f fixture) (release func()) {
	if f.Held != "" && s.locks == nil {
		t.Skip("it needs a lock that another holds, and the cache is out of reach from here")
	}
	require.NoError(t, s.fresh(s.ctx))
	for _, id := range []string{account, another} {
		s.accounts.Put(t, id, functest.Opening)
	}
	if f.Held == "" {
		return func() {}
	}
	return s.hold(t, f.Held)
}

// hold takes a lock as another invocation would.
func (s *suite) hold(t *testing.T, key string) (release func()) {
	lease, err := s.locks.Acquire(s.ctx, lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: 2 * time.Minute})
	require.NoError(t, err)
	return sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 10*time.Second)
		defer cancel()
		require.NoError(t, s.locks.Release(ctx, lease))
	})
}

// event sends an event to its function.
func (s *suite) event(t *testing.T, f fixture) {
	defer s.prepare(t, f)()
	f = f.unused()
	got, err := patiently(s.ctx, func() ([]byte, error) { return s.once(s.ctx, f) }, slow)
	require.NoError(t, err)
	s.releaseLock(t, f, got)
	require.NoError(t, eventfiles.SameAnswer(f.Want, got))
}

// releaseLock releases the lock that an answer grants, or the next event would find
// the lock held.
func (s *suite) releaseLock(t *testing.T, f fixture, answer []byte) {
	if event, ok := f.release(answer); ok {
		_, err := patiently(s.ctx, func() ([]byte, error) { return s.once(s.ctx, event) }, slow)
		require.NoError(t, err)
	}
}

// request sends an event of the HTTP API as a request.
func (s *suite) request(t *testing.T, api *service, f fixture, r request) {
	defer s.prepare(t, f)()
	got, err := patiently(s.ctx, func() (response, error) { return api.call(s.ctx, r) }, response.slow)
	require.NoError(t, err)
	answer, err := json.Marshal(map[string]string{"body": string(got.body)})
	require.NoError(t, err)
	s.releaseLock(t, f, answer)
	require.NoError(t, got.same(f.Want))
}

// lockAnswer is what the lock service says of a lock, to its holder and to others.
type lockAnswer struct {
	Fence     int64
	Token     string
	ExpiresIn float64
	State     string
	Holder    struct{ Name string }
}

// lock borrows a lock as a program without this module would, from the PUT to the
// DELETE, and looks at what the API makes of the path. The rest of the service is tested where it is.
func (s *suite) lock(t *testing.T, api *service) {
	var last response
	ask := func(status int, method, path, body string, header ...string) (l lockAnswer) {
		r := request{method, path, http.Header{"Content-Type": {"application/json"}}, []byte(body)}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		var err error
		last, err = patiently(s.ctx, func() (response, error) { return api.call(s.ctx, r) }, response.slow)
		require.NoError(t, err)
		require.True(t, status == last.status || status == 0, "%s %s is answered by %d %s, want %d", method, path, last.status, last.body, status)
		if status == http.StatusOK {
			require.NoError(t, json.Unmarshal(last.body, &l), "%s %s is answered by %q", method, path, last.body)
		}
		return l
	}
	// New in each run, because a store may remember the run before.
	run := rand.Text()
	// One key in two spellings: a slash that is escaped is a slash.
	key, spelt := "/locks/shared/"+run+"/a%20b%C3%A4", "/locks/shared%2F"+run+"%2Fa%20b%c3%a4"

	first := ask(200, "PUT", key, `{"ttl": 30, "holder": "samtest"}`)
	require.True(t, first.Fence > 0 && first.Token != "" && first.ExpiresIn > 0 && first.ExpiresIn < 30, "a grant is %+v", first)
	busy := ask(409, "PUT", spelt, `{"ttl": 30}`)
	require.True(t, last.header.Get("Retry-After") != "" && busy.Token == "", "busy is told by %v %s", last.header, last.body)
	seen := ask(200, "GET", spelt, "")
	require.True(t, seen.State == "held" && seen.Fence == first.Fence && seen.Holder.Name == "samtest" && seen.Token == "", "a held lock is shown as %s", last.body)
	renewed := ask(200, "PATCH", spelt, `{"ttl": 60}`, "Lock-Token", first.Token)
	require.True(t, renewed.Fence == first.Fence && renewed.ExpiresIn > 30, "a renewed grant is %+v", renewed)
	ask(204, "DELETE", spelt, "", "Lock-Token", renewed.Token)
	free := ask(200, "GET", key, "")
	require.True(t, free.State == "free" && free.Fence == first.Fence, "a free lock is shown as %s", last.body)

	// A path is decoded once: this is no key with a slash.
	escaped := "/locks/shared/" + run + "%252Fa"
	twice := ask(200, "PUT", escaped, `{"ttl": 30}`)
	require.Equal(t, "free", ask(200, "GET", "/locks/shared/"+run+"/a", "").State, "%252F is taken for a slash")
	ask(204, "DELETE", escaped, "", "Lock-Token", twice.Token)

	// None of these may give the lock of another path. The SAM CLI refuses the first
	// itself and leaves the others to the function, %FF as U+FFFD; other gateways
	// refuse more or redirect.
	for _, path := range []string{"", "shared/", "shared//RUN", "shared/./RUN", "shared/x/../RUN", "shared/%2E/RUN",
		"shared/x/%2E%2E/RUN", "shared/%2FRUN", "shared/RUN%00", "shared/RUN%FF"} {
		path = "/locks/" + strings.Replace(path, "RUN", run, 1)
		ask(0, "PUT", path, `{"ttl": 30}`)
		require.True(t, last.status >= 300 && last.status < 500, "PUT %s is answered by %d %s", path, last.status, last.body)
	}
}
