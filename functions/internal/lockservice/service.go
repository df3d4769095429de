// Package lockservice is a lock over HTTP, for programs in any language. Its
// handler is behind an HTTP API of API Gateway, or a plain server that makes the
// same events.
//
//	PUT    /locks/{key}  {"ttl": 30, "wait": 5, "holder": "cron on host 4"}
//	PATCH  /locks/{key}  {"ttl": 30}   Lock-Token: the token   renews
//	DELETE /locks/{key}                Lock-Token: the token   releases
//	GET    /locks/{key}                                        looks
//	GET    /openapi.json                                       says all this exactly
//
// A lock that is had frees itself after ttl seconds, when its holder has died.
// The service keeps no session: the token says all that it needs to know, see
// token. The key is the rest of the path, decoded once, with its slashes.
package lockservice

import (
	"context"
	_ "embed"
	"errors"
	"net/http"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

//go:embed openapi.json
var openAPI string

// Service answers the requests.
type Service struct {
	guard   *guard.Guard
	secrets Secrets
	callers Callers
}

// New makes a Service whose locks are those of the guard.
func New(g *guard.Guard, secrets Secrets, callers Callers) *Service {
	return &Service{g, secrets, callers}
}

// grant is the answer to a request that has the lock.
type grant struct {
	Fence     lockstore.Fence `json:"fence"`
	ExpiresAt time.Time       `json:"expiresAt"`
	ExpiresIn float64         `json:"expiresIn"`
	Token     string          `json:"token"`
}

// state is the answer to one who looks.
type state struct {
	Held      bool              `json:"held"`
	Fence     lockstore.Fence   `json:"fence"`
	Holder    *lockstore.Holder `json:"holder,omitempty"`
	Remaining float64           `json:"remaining,omitempty"`
}

// Handle answers one request.
func (s *Service) Handle(ctx context.Context, r httpapi.Request) (httpapi.Response, error) {
	answer, err := s.route(ctx, r)
	if err != nil {
		creating := r.RequestContext.HTTP.Method == http.MethodPut
		if answer, err = refusal(ctx, err, creating).response(); err != nil {
			return httpapi.Response{}, err
		}
	}
	answer.Headers["Cache-Control"] = "no-store"
	return answer, nil
}

func (s *Service) route(ctx context.Context, r httpapi.Request) (httpapi.Response, error) {
	method := r.RequestContext.HTTP.Method
	key, isLock := r.PathParameters["key"]
	if !isLock {
		if method != http.MethodGet {
			return httpapi.Response{}, notAllowed("GET")
		}
		return httpapi.Response{StatusCode: http.StatusOK, Body: openAPI, Headers: map[string]string{"Content-Type": "application/json"}}, nil
	}
	handle := map[string]func(context.Context, httpapi.Request, string) (httpapi.Response, error){
		http.MethodPut: s.put, http.MethodPatch: s.patch, http.MethodDelete: s.delete, http.MethodGet: s.get,
	}[method]
	if handle == nil {
		return httpapi.Response{}, notAllowed("DELETE, GET, PATCH, PUT")
	}
	if err := parseKey(key); err != nil {
		return httpapi.Response{}, invalid(err)
	}
	if !s.callers.allow(caller(r), key) {
		return httpapi.Response{}, errForbidden
	}
	return handle(ctx, r, key)
}

func (s *Service) put(ctx context.Context, r httpapi.Request, key string) (httpapi.Response, error) {
	if err := wantJSON(r); err != nil {
		return httpapi.Response{}, err
	}
	want, err := parseTerms(r, "ttl", "wait", "holder")
	if err != nil {
		return httpapi.Response{}, invalid(err)
	}
	again, err := parseIdempotencyKey(r)
	if err != nil {
		return httpapi.Response{}, invalid(err)
	}
	secrets, err := s.secrets(ctx)
	if err != nil {
		return httpapi.Response{}, err
	}
	loan := guard.Loan{Key: key, TTL: want.ttl, Wait: want.wait, Holder: lockstore.Holder{Name: want.holder, ID: r.RequestContext.RequestID}}
	if want.holder == "" {
		loan.Holder.Name = caller(r)
	}
	lease, err := s.lend(ctx, loan, secrets, caller(r), again)
	if err != nil {
		return httpapi.Response{}, err
	}
	return granted(lease, secrets[0])
}

// lend gets the lease. The same caller, key and Idempotency-Key have the same
// owner, and so the same lease. Behind a rotation it may be that of the owner
// made with the secret before, so that one is asked for when the key is busy.
func (s *Service) lend(ctx context.Context, loan guard.Loan, secrets []secret, caller, again string) (lockstore.Lease, error) {
	if again == "" {
		return s.guard.Acquire(ctx, loan)
	}
	wait := loan.Wait
	for i, secret := range secrets {
		loan.Owner, loan.Wait = secret.owner(caller, loan.Key, again), 0
		lease, err := s.guard.Acquire(ctx, loan)
		if _, busy := err.(*guard.LockBusy); !busy {
			return lease, err
		}
		if i == len(secrets)-1 && wait == 0 {
			return lease, err
		}
	}
	loan.Owner, loan.Wait = secrets[0].owner(caller, loan.Key, again), wait
	return s.guard.Acquire(ctx, loan)
}

func (s *Service) patch(ctx context.Context, r httpapi.Request, key string) (httpapi.Response, error) {
	if err := wantJSON(r); err != nil {
		return httpapi.Response{}, err
	}
	want, err := parseTerms(r, "ttl")
	if err != nil {
		return httpapi.Response{}, invalid(err)
	}
	lease, secrets, err := s.bearer(ctx, r, key)
	if err != nil {
		return httpapi.Response{}, err
	}
	if lease.TTL, err = s.guard.Renew(ctx, lease, want.ttl); err != nil {
		return httpapi.Response{}, err
	}
	return granted(lease, secrets[0])
}

func (s *Service) delete(ctx context.Context, r httpapi.Request, key string) (httpapi.Response, error) {
	lease, _, err := s.bearer(ctx, r, key)
	if err != nil {
		return httpapi.Response{}, err
	}
	if err := s.guard.Release(ctx, lease); err != nil {
		return httpapi.Response{}, err
	}
	return httpapi.Response{StatusCode: http.StatusNoContent, Headers: map[string]string{}}, nil
}

func (s *Service) get(ctx context.Context, _ httpapi.Request, key string) (httpapi.Response, error) {
	status, err := s.guard.Inspect(ctx, key)
	if err != nil {
		return httpapi.Response{}, err
	}
	answer := state{Held: status.Held, Fence: status.Fence, Remaining: seconds(status.Remaining)}
	if status.Holder != (lockstore.Holder{}) {
		answer.Holder = &status.Holder
	}
	return respond(http.StatusOK, "application/json", answer)
}

// bearer is the lease of the request's token.
func (s *Service) bearer(ctx context.Context, r httpapi.Request, key string) (lockstore.Lease, []secret, error) {
	text, ok := header(r, "Lock-Token")
	if !ok {
		return lockstore.Lease{}, nil, invalid(errors.New("Lock-Token: the header is missing; want the token of the lease"))
	}
	secrets, err := s.secrets(ctx)
	if err != nil {
		return lockstore.Lease{}, nil, err
	}
	lease, ok := leaseOf(text, key, secrets)
	if !ok {
		return lockstore.Lease{}, nil, errNoLease
	}
	return lease, secrets, nil
}

func granted(lease lockstore.Lease, s secret) (httpapi.Response, error) {
	return respond(http.StatusOK, "application/json", grant{
		Fence:     lease.Fence,
		ExpiresAt: time.Now().Add(lease.TTL).UTC().Truncate(time.Millisecond),
		ExpiresIn: seconds(lease.TTL),
		Token:     s.token(lease),
	})
}

// seconds are whole milliseconds, never more than d.
func seconds(d time.Duration) float64 {
	return float64(d.Milliseconds()) / 1000
}
