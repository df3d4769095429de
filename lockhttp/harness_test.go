package lockhttp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

const (
	oldSecret = "0123456789abcdef0123456789abcdef"
	newSecret = "fedcba9876543210fedcba9876543210"

	cron = "arn:aws:sts::123456789012:assumed-role/cron"
	web  = "arn:aws:sts::123456789012:assumed-role/web"
)

// world is a service on a store in memory whose answers can be tampered with.
type world struct {
	*Service
	store *tampered
}

func newWorld(t testing.TB) world {
	store := &tampered{plain: memstore.New(nil)}
	return world{newService(t, store.plain.WrapDriver(func(d driver.Driver) driver.Driver {
		store.Driver = d
		return store
	})), store}
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

// tampered is the driver of a store. The answer to each request goes through a hook. The
// request has been carried out by then.
type tampered struct {
	driver.Driver
	plain *lockstore.Store // the same store without the hook

	mu   sync.Mutex
	hook func(error) error
}

func (s *tampered) answer(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hook == nil {
		return err
	}
	return s.hook(err)
}

func (s *tampered) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = nil
	if err != nil {
		s.hook = func(error) error { return err }
	}
}

// Do implements driver.Driver.
func (s *tampered) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	a, err := s.Driver.Do(ctx, key, r)
	return a, s.answer(err)
}

// Unwrap is for driver.As.
func (s *tampered) Unwrap() driver.Driver { return s.Driver }

func (s *tampered) state(t testing.TB, key string) lockstore.State {
	status, err := s.plain.Inspect(context.Background(), key)
	require.NoError(t, err)
	return status.State
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
