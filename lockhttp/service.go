// Package lockhttp is the server of locks over HTTP, for programs in any language; folder clients has
// clients. Its handler,
// [Service.Handle], is behind an HTTP API of API Gateway, behind any other source of package httpapi that leaves
// these paths as they are, or behind a plain server that makes the same events.
//
//	PUT    /locks/{key}  {"ttl": 30, "wait": 5, "holder": "cron on host 4"}   acquires
//	PATCH  /locks/{key}  {"ttl": 30}   Lock-Token: the token                  renews
//	DELETE /locks/{key}                Lock-Token: the token                  releases
//	GET    /locks/{key}                                                       looks
//	GET    /openapi.json                                                      says all this exactly
//
// The service has no sessions: a token says all that it needs to know. The key is the rest of
// the path, decoded once, with its slashes.
//
// The owner of a lease is made of the caller, the key, the Idempotency-Key and the holder. So
// two hosts of one role that use the same Idempotency-Key exclude each other if they name
// different holders: the second one is told that the lock is busy. Without a holder the
// service cannot tell them apart, and both have the one lease.
package lockhttp

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/lib/stableowner"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
	"github.com/lambdalock/lambdalock/lockstore"
)

//go:embed openapi.json
var openAPI string

// Service answers the requests.
type Service struct {
	guard   *guard.Guard
	secrets secretsFunc
	callers callers
}

// Open makes the service; the locks are those of the guard. The URL secret says where
// the secret of the tokens is:
//
//	secretsmanager:///NAME or .../ARN   AWS Secrets Manager; a rotated secret's previous version counts, too
//	text:///TEXT                        the secret itself, for a machine of one's own
//
// The secret has at least 32 bytes. The variable LOCK_CALLERS says who may use
// which keys: a JSON object of callers with lists of key prefixes. The entry "*"
// is for everybody but the caller "anonymous", beside their own. A guard with
// guard.Options.Coalesce is an error. Open makes no request.
func Open(g *guard.Guard, secret *url.URL, getenv func(string) string) (*Service, error) {
	if g.Coalesces() {
		return nil, errors.New("lockhttp: the guard has guard.Options.Coalesce (boot: LOCK_COALESCE); want none: each request says itself whether it coalesces")
	}
	secrets, err := openSecrets(secret, getenv)
	if err != nil {
		return nil, fmt.Errorf("the token secret's URL: %w", err)
	}
	callers, err := parseCallers(getenv("LOCK_CALLERS"))
	if err != nil {
		return nil, fmt.Errorf("LOCK_CALLERS: %w", err)
	}
	return &Service{g, secrets, callers}, nil
}

// state is the answer to one who looks.
type state struct {
	State      lockstore.State      `json:"state"`
	Fence      lockstore.Fence      `json:"fence"`                // of the last grant; 0 when none is known
	Holder     lockstore.HolderInfo `json:"holder,omitzero"`      // if only one may hold the lock
	Remaining  float64              `json:"remaining,omitempty"`  // seconds
	Waiting    int                  `json:"waiting,omitempty"`    // places in the key's queue
	OldestWait float64              `json:"oldestWait,omitempty"` // seconds since the first of them joined
	MaxHolders int                  `json:"maxHolders,omitempty"` // the smallest number of the holders
	Holders    []seated             `json:"holders,omitempty"`    // everybody who has a live lease
}

// seated is one of those who have a lease.
type seated struct {
	State     lockstore.State      `json:"state"`
	Holder    lockstore.HolderInfo `json:"holder,omitzero"`
	Seat      int                  `json:"seat"`
	Fence     lockstore.Fence      `json:"fence"`
	Remaining float64              `json:"remaining"` // seconds
}

// Handle answers one request. It returns no error: whatever goes wrong has a status.
func (s *Service) Handle(ctx context.Context, r httpapi.Request) (httpapi.Response, error) {
	answer, err := s.route(ctx, r)
	if err != nil {
		p := refusal(r.Method, err)
		if p.status >= http.StatusInternalServerError {
			// What went wrong is for the log alone.
			tell.Log(ctx, nil, slog.LevelError, "lock service",
				slog.String("requestId", s.guard.HolderInfo(ctx).ID), slog.String("code", p.code), slog.String("error", err.Error()))
		}
		answer = p.response()
	}
	answer.Header.Set("Cache-Control", "no-store")
	return answer.For(r), nil
}

func (s *Service) route(ctx context.Context, r httpapi.Request) (httpapi.Response, error) {
	key, isLock := lockKey(r)
	if !isLock {
		if !isDescription(r) {
			return httpapi.Response{}, errPath
		}
		if r.Method != http.MethodGet {
			return httpapi.Response{}, notAllowed("GET")
		}
		return httpapi.Response{StatusCode: http.StatusOK, Body: []byte(openAPI), Header: http.Header{"Content-Type": {"application/json"}}}, nil
	}
	handle, ok := map[string]func(context.Context, httpapi.Request, string) (any, error){
		http.MethodPut: s.put, http.MethodPatch: s.patch, http.MethodDelete: s.delete, http.MethodGet: s.get,
	}[r.Method]
	if !ok {
		return httpapi.Response{}, notAllowed("DELETE, GET, PATCH, PUT")
	}
	if err := checkKey(key); err != nil {
		return httpapi.Response{}, err
	}
	// Before anything is asked about the key, so that no answer tells a caller who
	// may not use it whether it is held.
	if !s.callers.allow(caller(r), key) {
		return httpapi.Response{}, errForbidden
	}
	body, err := handle(ctx, r, key)
	if err != nil {
		return httpapi.Response{}, err
	}
	return respond(body), nil
}

// lockKey is the key in the path. ok is false in another path.
func lockKey(r httpapi.Request) (key string, ok bool) {
	if key, ok = r.PathParameters["key"]; ok {
		return key, true
	}
	return strings.CutPrefix(r.URL.Path, "/locks/") // the source has no routes
}

// isDescription: the path may begin with a base path, as of a domain of API Gateway; the route does not.
func isDescription(r httpapi.Request) bool {
	return r.URL.Path == "/openapi.json" || strings.HasSuffix(r.Route, " /openapi.json")
}

func (s *Service) put(ctx context.Context, r httpapi.Request, key string) (any, error) {
	want, err := parseTerms(r, "ttl", "wait", "holder", "maxHolders", "coalesce", "event")
	if err != nil {
		return nil, err
	}
	again, err := parseIdempotencyKey(r)
	if err != nil {
		return nil, err
	}
	// Before the lock is had: without a secret there is no token for it.
	secrets, err := s.secrets(ctx, secretUse)
	if err != nil {
		return nil, err
	}
	who := caller(r)
	req := guard.LeaseRequest{Key: key, TTL: want.ttl, Wait: want.wait, Coalesce: want.work, EventID: want.event, HolderInfo: s.guard.HolderInfo(ctx)}
	req.HolderInfo.Name = cmp.Or(want.holder, who)
	if who != Anonymous {
		req.HolderInfo.Caller = who
	}
	if again != "" {
		// A repeated request asks for the same lease, also after a rotation of the secret.
		req.Owner = stableowner.Of("lambdalock http", who, key, again, want.holder)
	}
	lease, err := s.guard.WithMaxHolders(want.maxHolders).Acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	answer := granted(lease, secrets)
	if want.maxHolders > 1 {
		answer["seat"] = lease.Seat
	}
	return answer, nil
}

func (s *Service) patch(ctx context.Context, r httpapi.Request, key string) (any, error) {
	want, err := parseTerms(r, "ttl")
	if err != nil {
		return nil, err
	}
	lease, secrets, err := s.bearer(ctx, r, key)
	if err != nil {
		return nil, err
	}
	if lease.TTL, err = s.guard.Renew(ctx, lease, want.ttl); err != nil {
		return nil, err
	}
	return granted(lease, secrets), nil
}

func (s *Service) delete(ctx context.Context, r httpapi.Request, key string) (any, error) {
	lease, _, err := s.bearer(ctx, r, key)
	if err != nil {
		return nil, err
	}
	return nil, s.guard.Release(ctx, lease)
}

func (s *Service) get(ctx context.Context, _ httpapi.Request, key string) (any, error) {
	status, err := s.guard.Inspect(ctx, key)
	if err != nil {
		return nil, err
	}
	answer := state{State: status.State, Fence: status.Fence, Remaining: seconds(status.Remaining), Waiting: status.Waiting, OldestWait: seconds(status.OldestWait), MaxHolders: status.MaxHolders()}
	if answer.MaxHolders <= 1 {
		answer.Holder = status.Holder
	}
	for _, h := range status.Holders {
		answer.Holders = append(answer.Holders, seated{h.State, h.HolderInfo, h.Seat, h.Fence, seconds(h.Remaining)})
	}
	return answer, nil
}

// bearer is the lease of the request's token, and the secrets for a new one.
func (s *Service) bearer(ctx context.Context, r httpapi.Request, key string) (lockstore.Lease, []secret, error) {
	text, ok := header(r, "Lock-Token")
	if !ok {
		return lockstore.Lease{}, nil, invalid("Lock-Token: is missing; want the token of the lease")
	}
	// Another environment may have made it with a secret that is newer than those
	// that are known here. While that cannot be read, nothing is known of its lease.
	for _, age := range []time.Duration{secretUse, 0} {
		secrets, err := s.secrets(ctx, age)
		if err != nil {
			return lockstore.Lease{}, nil, err
		}
		if lease, ok := leaseOf(text, key, secrets); ok {
			return lease, secrets, nil
		}
	}
	return lockstore.Lease{}, nil, errNoLease
}

// granted is the answer to one who has the lock, with a lease whose TTL counts from now.
func granted(lease lockstore.Lease, secrets []secret) map[string]any {
	return map[string]any{
		"fence":     lease.Fence,
		"expiresAt": time.Now().Add(lease.TTL).UTC().Truncate(time.Millisecond), // by this service's clock
		"expiresIn": seconds(lease.TTL),
		"token":     secrets[0].token(lease),
	}
}

// seconds are whole milliseconds, never more than d.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }
