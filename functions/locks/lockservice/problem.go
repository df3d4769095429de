package lockservice

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore"
)

// problem is the answer to a caller who does not get what was asked for: a problem of
// RFC 9457, with a code for programs.
type problem struct {
	Status     int
	Detail     string
	Code       string
	Holder     lockstore.HolderInfo
	RetryAfter int // seconds

	allow string
}

func (p *problem) Error() string { return p.Detail }

func newProblem(status int, code, detail string) *problem {
	return &problem{Status: status, Code: code, Detail: detail}
}

var (
	errForbidden = newProblem(http.StatusForbidden, "forbidden", "This caller may not use this key.")
	// One answer for all tokens that are no good, whatever the reason: it tells
	// nobody whether another's lease is there.
	errNoLease   = newProblem(http.StatusNotFound, "no-lease", "This token holds no lease on this key.")
	errMediaType = newProblem(http.StatusUnsupportedMediaType, "media-type", "Content-Type: want application/json.")
)

func invalid(detail string) *problem { return newProblem(http.StatusBadRequest, "invalid", detail) }

func notAllowed(allow string) *problem {
	p := newProblem(http.StatusMethodNotAllowed, "method", "Want one of these methods: "+allow+".")
	p.allow = allow
	return p
}

func unavailable(code, detail string) *problem {
	p := newProblem(http.StatusServiceUnavailable, code, detail)
	p.RetryAfter = 1
	return p
}

// refusal is the answer to an error.
func refusal(method string, err error) *problem {
	switch e := err.(type) {
	case *problem:
		return e
	case *guard.LockBusy:
		detail := "Another holds the lock."
		if e.Reserved {
			detail = "Nobody holds the lock, but other callers have waited longer for it."
		}
		p := newProblem(http.StatusConflict, "busy", detail)
		p.RetryAfter, p.Holder = retryAfter(e.Holder), e.Holder
		switch why := e.Err.(type) {
		case *lockstore.DoubtError:
			p.Detail, p.RetryAfter = "Nobody knows how the last work under the lock ended. An operator has to settle the key.", 0
		case *lockstore.KeptError:
			p.Detail, p.RetryAfter = "Nobody holds the lock, but it stays closed for a while.", max(1, int(math.Ceil(why.Remaining.Seconds())))
		}
		return p
	case *guard.LockLost:
		if method == http.MethodPut {
			return newProblem(http.StatusUnprocessableEntity, "ended", "Idempotency-Key: the lease that was had with it has ended; use a new one.")
		}
		return errNoLease
	case *guard.LockDeadline:
		if e.Err == nil {
			return unavailable("unavailable", "There was no time left for the request. Try again, with the same Idempotency-Key if there was one.")
		}
	case *guard.LockStoreUnavailable:
		// A look that failed has changed nothing either.
		if method == http.MethodGet || errors.Is(e, lockstore.ErrUnavailable) {
			return unavailable("unavailable", "The store is not available. Try again.")
		}
	case *secretError:
		return unavailable("unavailable", "The service is not ready. Try again.")
	case *guard.LockCorrupt:
		return newProblem(http.StatusInternalServerError, "corrupt", "The lock cannot be used. The service's log says why.")
	default:
		return newProblem(http.StatusInternalServerError, "internal", "The service failed. Its log says why.")
	}
	if method == http.MethodPut {
		return unavailable("unknown", "It is not known whether the lock was had. Try again with the same Idempotency-Key; without one it may be held until the ttl is over.")
	}
	return unavailable("unknown", "It is not known whether this was done. Try again.")
}

// retryAfter is 1 to 5 seconds. The longer the present holder has been at it, the
// longer the caller may have to stay away; and it is random, so that those who
// were refused together do not come back together. The holder's clock is only a
// hint here.
func retryAfter(holder lockstore.HolderInfo) int {
	longest := time.Second
	if !holder.Since.IsZero() {
		longest = min(max(time.Since(holder.Since), time.Second), 5*time.Second)
	}
	return 1 + rand.IntN(int(longest/time.Second))
}

func (p *problem) response() httpapi.Response {
	extra := map[string]any{"code": p.Code}
	if p.Holder != (lockstore.HolderInfo{}) {
		extra["holder"] = p.Holder
	}
	if p.RetryAfter > 0 {
		extra["retryAfter"] = p.RetryAfter
	}
	answer := httpapi.NewProblem(p.Status, p.Detail, extra)
	if p.RetryAfter > 0 {
		answer.Headers["Retry-After"] = strconv.Itoa(p.RetryAfter)
	}
	if p.allow != "" {
		answer.Headers["Allow"] = p.allow
	}
	return answer
}

func respond(body any) httpapi.Response {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // texts, numbers and times of this age always have a JSON form
	}
	return httpapi.Response{StatusCode: http.StatusOK, Headers: map[string]string{"Content-Type": "application/json"}, Body: string(text)}
}
