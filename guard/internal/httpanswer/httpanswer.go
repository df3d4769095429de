// Package httpanswer is the code that httpapi and httpguard share: what a request gets in
// place of the handler's answer, and work that is done once for each Idempotency-Key.
package httpanswer

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Problem is an answer in place of the handler's.
type Problem struct {
	Status     int
	Detail     string // a sentence for people
	Code       string // for programs; "" is none
	RetryAfter int    // in seconds; 0 is no header
}

// OfProblem is the answer with a problem of RFC 9457, with further members. A value that has no JSON form panics.
func OfProblem(status int, detail string, extra map[string]any) Answer {
	members := map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail}
	maps.Copy(members, extra)
	body, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return Answer{Status: status, Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: body}
}

// Answer is the problem as an answer.
func (p *Problem) Answer() Answer {
	var extra map[string]any
	if p.Code != "" {
		extra = map[string]any{"code": p.Code}
	}
	a := OfProblem(p.Status, p.Detail, extra)
	if p.RetryAfter > 0 {
		a.Header.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	return a
}

// EventID is the id by which a client sends its request again. An error says that the guard coalesces, and that there is none.
func EventID(g *guard.Guard, header http.Header) (id string, err error) {
	if id = header.Get(Header); id == "" && g.Coalesces() {
		return "", errors.New(Header + " is missing; want the header, the same one whenever this request is sent again: another request may be carried out in its place")
	}
	return id, nil
}

// OfLock is what a caller gets in place of a guard's error; nil if err is none.
func OfLock(err error) *Problem {
	switch e := err.(type) {
	case *guard.LockBusy:
		detail, code := "Another request is working on the same resource. Try again.", ""
		switch e.State {
		case lockstore.InDoubt:
			detail, code = "Nobody knows whether an earlier request on the same resource was carried out. Somebody has to find out first.", "in-doubt"
		case lockstore.Completed, lockstore.Cooldown:
			detail = "The work on the same resource is done, and the resource stays closed for a while."
		case lockstore.Reserved:
			detail = "Other requests have waited longer for the same resource. Try again."
		}
		return &Problem{http.StatusConflict, detail, code, retryAfter(e)}
	case *guard.LockCovered:
		detail := "Another request of the same work waits, and has not begun. It does what this request asks for, unless it fails; so this is no 202. Send the request again, unless others do."
		return &Problem{Status: http.StatusConflict, Detail: detail, Code: "covered"}
	case *guard.LockBadRequest:
		detail := "The key cannot be locked."
		if e.Err != nil {
			detail = e.Err.Error()
		}
		return &Problem{Status: http.StatusBadRequest, Detail: detail}
	case *guard.LockNoTime:
		return &Problem{Status: http.StatusServiceUnavailable, Detail: "There was no time left to begin. Try again.", RetryAfter: 1}
	case *guard.LockStoreUnavailable:
		return &Problem{Status: http.StatusServiceUnavailable, Detail: "The lock service is unavailable, and the request was not begun. Try again.", RetryAfter: 1}
	case *guard.LockLost:
		return &Problem{Status: http.StatusInternalServerError, Detail: "The lock was lost while working. The request may have been carried out, fully or in part."}
	case *guard.LockCorrupt:
		return &Problem{Status: http.StatusInternalServerError, Detail: "The lock cannot be used, and the request was not begun."}
	}
	return nil
}

// ofRepeat is OfLock for an error of idempotency.Do.
func ofRepeat(err error) *Problem {
	const of = "request with this " + Header
	switch e := err.(type) {
	case *guard.LockBusy:
		return &Problem{Status: http.StatusConflict, Detail: "A " + of + " is still being worked on. Try again.", RetryAfter: retryAfter(e)}
	case *idempotency.RepeatMismatch:
		return &Problem{Status: http.StatusUnprocessableEntity, Detail: "Another " + of + " was sent before."}
	case *idempotency.RepeatInDoubt:
		return &Problem{Status: http.StatusInternalServerError, Detail: "The first " + of + " was started, and nobody knows whether it was carried out.", Code: "in-doubt"}
	case *idempotency.RepeatNoAnswer:
		return &Problem{Status: http.StatusInternalServerError, Detail: "The first " + of + " was carried out, and its answer is not there to be sent again."}
	}
	return OfLock(err)
}

// retryAfter is after how many seconds a caller should ask again.
//
//	the work is done           until the key is free, rounded up
//	the key is in doubt        0: it does not become free by itself
//	otherwise                  1 to 5, at random, so that callers who were refused together
//	                           do not come back together. The longer the holder has had
//	                           the lock, by its own clock, the longer the time may be
//
// The rest of a lease would be too long, because most holders release early.
func retryAfter(busy *guard.LockBusy) int {
	switch busy.State {
	case lockstore.InDoubt:
		return 0
	case lockstore.Completed, lockstore.Cooldown:
		return max(1, int(math.Ceil(busy.StateEndsIn.Seconds())))
	}
	longest := 1
	if since := busy.Holder.Since; !since.IsZero() {
		longest = int(min(max(time.Since(since), time.Second), 5*time.Second) / time.Second)
	}
	return 1 + rand.IntN(longest)
}
