package lockhttp

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

// problem is the answer to a caller who does not get what was asked for: a problem of
// RFC 9457, with a code for programs.
type problem struct {
	status     int
	detail     string
	code       string
	holder     lockstore.HolderInfo
	retryAfter int // seconds
	allow      string
}

func (p *problem) Error() string { return p.detail }

func newProblem(status int, code, detail string) *problem {
	return &problem{status: status, code: code, detail: detail}
}

var (
	errForbidden = newProblem(http.StatusForbidden, "forbidden", "This caller may not use this key.")
	// One answer for all tokens that are no good, whatever the reason: it tells
	// nobody whether another's lease is there.
	errNoLease   = newProblem(http.StatusNotFound, "no-lease", "This token holds no lease on this key.")
	errPath      = newProblem(http.StatusNotFound, "path", "Want the path /locks/KEY or /openapi.json.")
	errMediaType = newProblem(http.StatusUnsupportedMediaType, "media-type", "Content-Type: want application/json.")
)

func invalid(detail string) *problem { return newProblem(http.StatusBadRequest, "invalid", detail) }

func notAllowed(allow string) *problem {
	p := newProblem(http.StatusMethodNotAllowed, "method", "Want one of these methods: "+allow+".")
	p.allow = allow
	return p
}

// answered is the problem that package httpapi makes of a guard's error.
func answered(err error) *problem {
	answer, _ := httpapi.Problem(err)
	var said struct{ Code, Detail string }
	if err := json.Unmarshal(answer.Body, &said); err != nil {
		panic(err) // each answer of httpapi is a problem
	}
	p := newProblem(answer.StatusCode, said.Code, said.Detail)
	p.retryAfter, _ = strconv.Atoi(answer.Header.Get("Retry-After")) // 0 without the header
	return p
}

// guarded is the same with another code and detail.
func guarded(err error, code, detail string) *problem {
	p := answered(err)
	p.code, p.detail = code, detail
	return p
}

// refusal is the answer to an error.
func refusal(method string, err error) *problem {
	switch e := err.(type) {
	case *problem:
		return e
	case *guard.LockBusy:
		p := answered(err)
		p.code, p.detail, p.holder = cmp.Or(p.code, "busy"), busyDetail(e.State), e.Holder // a key in doubt has a code of its own
		return p
	case *guard.LockCovered:
		p := answered(err)
		p.holder = e.Holder
		return p
	case *guard.LockLost: // the caller's lease; the service does no work under it
		if method == http.MethodPut {
			return newProblem(http.StatusUnprocessableEntity, "ended", "Idempotency-Key: the lease that was had with it has ended; use a new one.")
		}
		return errNoLease
	case *guard.LockNoTime:
		if e.Err == nil {
			return guarded(err, "unavailable", "There was no time left for the request. Try again, with the same Idempotency-Key if there was one.")
		}
	case *guard.LockStoreUnavailable:
		// A look that failed has changed nothing either.
		if method == http.MethodGet || errors.Is(e, lockstore.ErrUnavailable) {
			return guarded(err, "unavailable", "The store is not available. Try again.")
		}
	case *secretError:
		p := newProblem(http.StatusServiceUnavailable, "unavailable", "The service is not ready. Try again.")
		p.retryAfter = 1
		return p
	case *guard.LockCorrupt:
		return guarded(err, "corrupt", "The lock cannot be used. The service's log says why.")
	default:
		return newProblem(http.StatusInternalServerError, "internal", "The service failed. Its log says why.")
	}
	if method == http.MethodPut {
		return guarded(err, "unknown", "It is not known whether the lock was had. Try again with the same Idempotency-Key; without one it may be held until the ttl is over.")
	}
	return guarded(err, "unknown", "It is not known whether this was done. Try again.")
}

func busyDetail(state lockstore.State) string {
	switch state {
	case lockstore.Reserved:
		return "Nobody holds the lock, but other callers have waited longer for it."
	case lockstore.Revoked:
		return "An operator has ended the lease of the lock, and nobody gets the lock before its end."
	case lockstore.Completed, lockstore.Cooldown:
		return "Nobody holds the lock, but it stays closed for a while."
	case lockstore.InDoubt:
		return "Nobody knows how the last work under the lock ended. An operator has to resolve the key."
	}
	return "Another holds the lock."
}

func (p *problem) response() httpapi.Response {
	extra := map[string]any{"code": p.code}
	if p.holder != (lockstore.HolderInfo{}) {
		extra["holder"] = p.holder
	}
	if p.retryAfter > 0 {
		extra["retryAfter"] = p.retryAfter
	}
	answer := httpapi.NewProblem(p.status, p.detail, extra)
	if p.retryAfter > 0 {
		answer.Header.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.allow != "" {
		answer.Header.Set("Allow", p.allow)
	}
	return answer
}

// respond is the answer with this body; nil is none.
func respond(body any) httpapi.Response {
	if body == nil {
		return httpapi.Response{StatusCode: http.StatusNoContent, Header: http.Header{}}
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // texts, numbers and times of this age always have a JSON form
	}
	return httpapi.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: text}
}
