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

// Problem is an answer in place of the handler's: a problem of RFC 9457, with further members. detail is a sentence for people. A value that
// has no JSON form panics.
func Problem(status int, detail string, extra map[string]any) *Answer {
	members := map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail}
	maps.Copy(members, extra)
	body, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return &Answer{Status: status, Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: body}
}

// problemWith is a Problem with a code for programs, unless that is "", and with the seconds after which to ask again, unless they are 0.
func problemWith(status int, detail, code string, retryAfter int) *Answer {
	var extra map[string]any
	if code != "" {
		extra = map[string]any{"code": code}
	}
	a := Problem(status, detail, extra)
	if retryAfter > 0 {
		a.Header.Set("Retry-After", strconv.Itoa(retryAfter))
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
func OfLock(err error) *Answer {
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
		return problemWith(http.StatusConflict, detail, code, retryAfter(e))
	case *guard.LockCovered:
		detail := "Another request of the same work waits, and has not begun. It does what this request asks for, unless it fails; so this is no 202. Send the request again, unless others do."
		return problemWith(http.StatusConflict, detail, "covered", 0)
	case *guard.LockBadRequest:
		detail := "The key cannot be locked."
		if e.Err != nil {
			detail = e.Err.Error()
		}
		return Problem(http.StatusBadRequest, detail, nil)
	case *guard.LockNoTime:
		return problemWith(http.StatusServiceUnavailable, "There was no time left to begin. Try again.", "", 1)
	case *guard.LockStoreUnavailable:
		return problemWith(http.StatusServiceUnavailable, "The lock service is unavailable, and the request was not begun. Try again.", "", 1)
	case *guard.LockLost:
		return Problem(http.StatusInternalServerError, "The lock was lost while working. The request may have been carried out, fully or in part.", nil)
	case *guard.LockCorrupt:
		return Problem(http.StatusInternalServerError, "The lock cannot be used, and the request was not begun.", nil)
	}
	return nil
}

// ofRepeat is OfLock for an error of idempotency.Do.
func ofRepeat(err error) *Answer {
	const of = "request with this " + Header
	switch e := err.(type) {
	case *guard.LockBusy:
		return problemWith(http.StatusConflict, "A "+of+" is still being worked on. Try again.", "", retryAfter(e))
	case *idempotency.RepeatMismatch:
		return Problem(http.StatusUnprocessableEntity, "Another "+of+" was sent before.", nil)
	case *idempotency.RepeatInDoubt:
		return problemWith(http.StatusInternalServerError, "The first "+of+" was started, and nobody knows whether it was carried out.", "in-doubt", 0)
	case *idempotency.RepeatNoAnswer:
		return Problem(http.StatusInternalServerError, "The first "+of+" was carried out, and its answer is not there to be sent again.", nil)
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
