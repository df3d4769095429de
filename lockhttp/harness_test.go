package lockhttp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

const (
	oldSecret = "0123456789abcdef0123456789abcdef"
	newSecret = "fedcba9876543210fedcba9876543210"

	cron = "arn:aws:sts::123456789012:assumed-role/cron"
	web  = "arn:aws:sts::123456789012:assumed-role/web"
)

// world is a service on a store in memory that fails as the test says.
type world struct {
	*Service
	plain *lockstore.Store // the same store without faults
	plan  atomic.Pointer[func() storetest.Fault]
}

func newWorld(t testing.TB) *world {
	w := &world{plain: memstore.New(nil)}
	w.fail(nil)
	w.Service = newService(t, storetest.NewFaulty(w.plain, func(storetest.Call) storetest.Fault { return (*w.plan.Load())() }).Store)
	return w
}

func (w *world) faults(plan func() storetest.Fault) { w.plan.Store(&plan) }

// fail carries all requests out, and answers them with this error, unless it is nil.
func (w *world) fail(err error) {
	w.faults(func() storetest.Fault { return storetest.Fault{Cut: err} })
}

func (w *world) state(t testing.TB, key string) lockstore.State {
	status, err := w.plain.Inspect(context.Background(), key)
	require.NoError(t, err)
	return status.State
}

// newService allows all callers the keys below "shared/", and cron all keys.
func newService(t testing.TB, store *lockstore.Store) *Service {
	g, err := guard.New(store, guard.Options{HolderInfo: func(context.Context) lockstore.HolderInfo {
		return lockstore.HolderInfo{Name: "locks", ID: "request"}
	}})
	require.NoError(t, err)
	return &Service{g, fixed(oldSecret), callers{everybody: {"shared/"}, Anonymous: {"shared/"}, cron: {""}}}
}

func fixed(all ...string) secretsFunc {
	return func(context.Context, time.Duration) (secrets []secret, err error) {
		for _, s := range all {
			secrets = append(secrets, secret(s))
		}
		return secrets, nil
	}
}

// answer is a response with what its body says.
type answer struct {
	httpapi.Response
	said map[string]any
}

func (a answer) token() string { return a.said["token"].(string) }

// request is one of a caller; headers are pairs of name and value.
func request(as, method, key, body string, headers ...string) httpapi.Request {
	r := httpapi.Request{Method: method, Caller: as, Body: []byte(body), PathParameters: map[string]string{"key": key}, Header: http.Header{}}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] != "" {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	return r
}

// ask sends a request of the caller cron. Its answer is one that is documented.
func ask(t testing.TB, s *Service, method, key, body string, headers ...string) answer {
	t.Helper()
	return send(t, t.Context(), s, request(cron, method, key, body, headers...))
}

func send(t testing.TB, ctx context.Context, s *Service, r httpapi.Request) answer {
	t.Helper()
	response, err := s.Handle(ctx, r)
	require.NoError(t, err)
	require.NoError(t, described.check(r, response), "%+v", response)
	a := answer{Response: response}
	if len(response.Body) > 0 {
		require.NoError(t, json.Unmarshal(response.Body, &a.said))
	}
	return a
}

// acquire takes a lock that is free.
func acquire(t testing.TB, s *Service, key, body string, headers ...string) answer {
	t.Helper()
	a := ask(t, s, http.MethodPut, key, body, headers...)
	require.Equal(t, http.StatusOK, a.StatusCode, "%s", a.Body)
	return a
}

// errLostReply is any error of a store that leaves the outcome open.
var errLostReply = errors.New("the reply was lost")
