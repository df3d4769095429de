package lockservice

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

// problem is what a caller gets who does not get what was asked for: a problem
// of RFC 9457, with a code for programs.
type problem struct {
	Type       string            `json:"type"`
	Title      string            `json:"title"`
	Status     int               `json:"status"`
	Detail     string            `json:"detail"`
	Code       string            `json:"code"`
	Holder     *lockstore.Holder `json:"holder,omitempty"`
	RetryAfter int               `json:"retryAfter,omitempty"` // seconds

	allow string
}

func (p *problem) Error() string { return p.Detail }

func newProblem(status int, code, detail string) *problem {
	return &problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

var (
	errForbidden = newProblem(http.StatusForbidden, "forbidden", "This caller may not use this key.")
	// One answer, whatever the reason: it tells nobody whether another's lease is
	// there.
	errNoLease = newProblem(http.StatusNotFound, "no-lease", "This token holds no lease on this key.")
)

func invalid(err error) *problem {
	if err == errTooLong {
		return newProblem(http.StatusRequestEntityTooLarge, "too-large", err.Error())
	}
	return newProblem(http.StatusBadRequest, "invalid", err.Error())
}

func notAllowed(allow string) *problem {
	p := newProblem(http.StatusMethodNotAllowed, "method", "Want one of these methods: "+allow+".")
	p.allow = allow
	return p
}

func wantJSON(r httpapi.Request) error {
	text, ok := header(r, "Content-Type")
	if !ok {
		return nil
	}
	if mediaType, _, err := mime.ParseMediaType(text); err != nil || mediaType != "application/json" {
		return newProblem(http.StatusUnsupportedMediaType, "media-type", "Content-Type: want application/json.")
	}
	return nil
}

// refusal is the answer to an error. What went wrong in the service is for its
// log alone.
func refusal(ctx context.Context, err error, creating bool) *problem {
	switch e := err.(type) {
	case *problem:
		return e
	case *guard.LockBusy:
		p := newProblem(http.StatusConflict, "busy", "Another holds the lock.")
		p.RetryAfter = 1 + rand.IntN(3) // spread, so that those who were refused together do not come back together
		if e.Holder != (lockstore.Holder{}) {
			p.Holder = &e.Holder
		}
		return p
	case *guard.LockLost:
		if creating {
			return newProblem(http.StatusUnprocessableEntity, "ended", "Idempotency-Key: its lease has ended; use a new one.")
		}
		return errNoLease
	case *guard.LockInvalid:
		return newProblem(http.StatusBadRequest, "invalid", e.Err.Error())
	case *guard.LockDeadline:
		return unavailable("There was no time left to ask for the lock. Try again.")
	case *guard.LockStoreUnavailable:
		if errors.Is(e, lockstore.ErrUnavailable) {
			return unavailable("The store is not available. Try again.")
		}
		p := unavailable("It is not known what became of the request. Try again, with the same Idempotency-Key or Lock-Token.")
		p.Code = "unknown"
		return p
	}
	slog.ErrorContext(ctx, "lock service", "error", err.Error())
	return newProblem(http.StatusInternalServerError, "internal", "The service failed.")
}

func unavailable(detail string) *problem {
	p := newProblem(http.StatusServiceUnavailable, "unavailable", detail)
	p.RetryAfter = 1
	return p
}

func (p *problem) response() (httpapi.Response, error) {
	answer, err := respond(p.Status, "application/problem+json", p)
	if p.RetryAfter > 0 {
		answer.Headers["Retry-After"] = strconv.Itoa(p.RetryAfter)
	}
	if p.allow != "" {
		answer.Headers["Allow"] = p.allow
	}
	return answer, err
}

func respond(status int, contentType string, body any) (httpapi.Response, error) {
	b, err := json.Marshal(body)
	return httpapi.Response{StatusCode: status, Headers: map[string]string{"Content-Type": contentType}, Body: string(b)}, err
}
