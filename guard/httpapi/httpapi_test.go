package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func byPath(_ context.Context, r Request) (string, error) { return r.URL.Path, nil }

func created(context.Context, guard.Lock, Request) (Response, error) {
	return Response{StatusCode: http.StatusCreated}, nil
}

// The handler's own errors pass as they are, also when they are another lock's
// and also when they cannot be compared. The guard's report has them, too.
func TestHandlersOwnError(t *testing.T) {
	var report guard.Report
	g, err := guard.New(memstore.New(nil), guard.Options{Observe: func(_ context.Context, r guard.Report) { report = r }})
	require.NoError(t, err)
	lost := &guard.LockLost{Key: "inner"}
	for _, own := range []error{errors.New("own"), &guard.LockBusy{Key: "inner"}, lost, fmt.Errorf("own: %w", lost), several{errors.New("own")}, &guard.LockCovered{Key: "inner"}} {
		handler := Wrap(g, byPath, func(context.Context, guard.Lock, Request) (Response, error) { return Response{StatusCode: 202}, own })
		out, err := handler.Handle(t.Context(), Request{URL: url.URL{Path: "/accounts/7"}})
		require.Equal(t, own, err)
		require.Equal(t, 202, out.StatusCode)
		if _, covered := own.(*guard.LockCovered); covered { // which Do wraps
			report.Err = errors.Unwrap(report.Err)
		}
		require.Equal(t, own, report.Err)
	}
}

// The lock is lost under a handler, whose own error may be that of another lost lock.
func TestALostLockOfAHandler(t *testing.T) {
	for _, own := range []error{nil, errors.New("own"), &guard.LockLost{Key: "inner"}, several{errors.New("own")}} {
		synctest.Test(t, func(t *testing.T) {
			var report guard.Report
			store := storetest.NewFaulty(memstore.New(nil), func(c storetest.Call) (f storetest.Fault) {
				if c.Kind == driver.Release {
					f.Drop = lockstore.ErrLost
				}
				return f
			}).Store
			g, err := guard.New(store, guard.Options{Observe: func(_ context.Context, r guard.Report) { report = r }})
			require.NoError(t, err)
			handler := Wrap(g, byPath, func(context.Context, guard.Lock, Request) (Response, error) { return Response{}, own })
			out, err := handler.Handle(t.Context(), Request{URL: url.URL{Path: "/accounts/7"}})
			require.NoError(t, err)
			require.Equal(t, http.StatusInternalServerError, out.StatusCode)
			require.Contains(t, string(out.Body), "was lost")
			require.Equal(t, own, report.Err.(*guard.LockLost).WorkErr)
		})
	}
}

func TestMistakesInTheProgramAreNotTheCallers(t *testing.T) {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	require.NoError(t, err)
	for want, handler := range map[string]guard.Wrapped[Request, Response]{
		"handler is nil":      Wrap(g, byPath, nil),
		"key function is nil": Wrap(g, nil, created),
		"guard is nil":        Wrap(nil, byPath, created),
		"not made by New":     Wrap(new(guard.Guard), byPath, created),
	} {
		t.Run("F51 "+want, func(t *testing.T) {
			_, err := handler.Handle(t.Context(), Request{URL: url.URL{Path: "/x"}})
			require.ErrorContains(t, err, want)
		})
	}
}

func TestRetryAfterGrowsWithTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for held, longest := range map[time.Duration]int{
			0: 1, 300 * time.Millisecond: 1, 3 * time.Second: 3, time.Hour: 5, -time.Hour: 1, // another's clock may be ahead
		} {
			seen := map[string]bool{}
			for range 1000 {
				out, ok := Problem(&guard.LockBusy{Key: "k", State: lockstore.Held, Holder: lockstore.HolderInfo{Since: time.Now().Add(-held)}, StateEndsIn: time.Hour})
				require.True(t, ok)
				seen[out.Header.Get("Retry-After")] = true
			}
			want := map[string]bool{}
			for seconds := range longest {
				want[strconv.Itoa(seconds+1)] = true
			}
			require.Equal(t, want, seen, "held for %v", held)
		}
		out, _ := Problem(&guard.LockBusy{Key: "k", State: lockstore.Held})
		require.Equal(t, "1", out.Header.Get("Retry-After"))
	})
}

func TestProblemOfALockThatNobodyHolds(t *testing.T) {
	for _, c := range []struct {
		state      lockstore.State
		left       time.Duration
		retryAfter string
		says       string
		code       string
	}{
		{lockstore.Reserved, 10 * time.Second, "1", "have waited longer", ""},
		{lockstore.InDoubt, 0, "", "Nobody knows", `"code":"in-doubt"`}, // it does not become free by itself
		{lockstore.Completed, 0, "1", "stays closed", ""},
		{lockstore.Cooldown, 89*time.Second + 1, "90", "stays closed", ""},
	} {
		out, ok := Problem(&guard.LockBusy{Key: "k", State: c.state, StateEndsIn: c.left})
		require.True(t, ok)
		require.Equal(t, 409, out.StatusCode)
		require.Equal(t, c.retryAfter, out.Header.Get("Retry-After"))
		require.Contains(t, string(out.Body), c.says)
		require.Contains(t, string(out.Body), c.code)
		require.NotContains(t, string(out.Body), "is working")
	}
}

// The header is the id by which a client sends its request again.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := guard.New(memstore.New(nil), guard.Options{Coalesce: "index", Wait: time.Minute, EventID: func(context.Context) string { return "the invocation" }})
		require.NoError(t, err)
		handler := Wrap(g, byPath, func(context.Context, guard.Lock, Request) (Response, error) {
			<-time.After(time.Second)
			return Response{StatusCode: http.StatusCreated}, nil
		})
		var text string
		send := func(id string) int {
			r := Request{URL: url.URL{Path: "/accounts/7"}, Header: http.Header{}}
			if id != "" {
				r.Header.Set("Idempotency-Key", id)
			}
			out, err := handler.Handle(t.Context(), r)
			require.NoError(t, err)
			if out.StatusCode >= 400 {
				text = string(out.Body)
			}
			return out.StatusCode
		}
		done := make(chan int)
		for _, id := range []string{"1", "2", "2"} { // the client has sent 2 again
			go func() { done <- send(id) }()
			synctest.Wait()
		}
		require.Equal(t, http.StatusConflict, send("3"))
		require.Contains(t, text, `"code":"covered"`)
		require.Equal(t, http.StatusBadRequest, send(""), "the id of the invocation is another one for each try")
		require.Contains(t, text, "Idempotency-Key is missing; want the header")
		for range 3 {
			require.Equal(t, http.StatusCreated, <-done)
		}
	})
}

func TestNewProblem(t *testing.T) {
	answer := NewProblem(404, `no "x"`, map[string]any{"code": "missing", "tries": 2})
	require.Equal(t, 404, answer.StatusCode)
	require.Equal(t, http.Header{"Content-Type": {"application/problem+json"}}, answer.Header)
	require.JSONEq(t, `{"type": "about:blank", "title": "Not Found", "status": 404, "detail": "no \"x\"", "code": "missing", "tries": 2}`, string(answer.Body))
	require.Panics(t, func() { NewProblem(404, "", map[string]any{"f": func() {}}) })
}

func TestProblemOfOtherErrors(t *testing.T) {
	_, ok := Problem(errors.New("other"))
	require.False(t, ok)
	_, ok = Problem(nil)
	require.False(t, ok)
	out, ok := Problem(&guard.LockBadRequest{Key: "k"})
	require.True(t, ok)
	require.Equal(t, 400, out.StatusCode)
}
