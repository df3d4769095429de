package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func byPath(_ context.Context, r Request) (string, error) { return r.URL.Path, nil }

func created(context.Context, guard.Lock, Request) (Response, error) {
	return Response{StatusCode: http.StatusCreated}, nil
}

func call(t *testing.T, store *lockstore.Store, key func(context.Context, Request) (string, error), next guard.Handler[Request, Response]) (Response, error) {
	t.Helper()
	g, err := guard.New(store, guard.Options{})
	require.NoError(t, err)
	return Wrap(g, key, next).Handle(context.Background(), Request{URL: url.URL{Path: "/accounts/7"}})
}

// The handler's own errors pass as they are, also when they are another lock's
// and also when they cannot be compared.
func TestHandlersOwnError(t *testing.T) {
	for _, own := range []error{errors.New("own"), &guard.LockBusy{Key: "inner"}, &guard.LockLost{Key: "inner"}, uncomparable{"a"}} {
		_, err := call(t, memstore.New(nil), byPath, func(context.Context, guard.Lock, Request) (Response, error) { return Response{}, own })
		require.Equal(t, own, err)
	}
}

func TestAHandlersPanic(t *testing.T) {
	t.Run("F04 passes after the release", func(t *testing.T) {
		store := memstore.New(nil)
		require.PanicsWithValue(t, "boom", func() {
			_, _ = call(t, store, byPath, func(context.Context, guard.Lock, Request) (Response, error) { panic("boom") })
		})
		status, err := store.Inspect(t.Context(), "/accounts/7")
		require.NoError(t, err)
		require.Positive(t, status.Fence, "it was locked")
		require.Equal(t, lockstore.Free, status.State)
	})
}

type uncomparable []string

func (u uncomparable) Error() string { return u[0] }

func TestMistakesInTheProgramAreNotTheCallers(t *testing.T) {
	t.Run("F51 a nil handler", func(t *testing.T) {
		_, err := call(t, memstore.New(nil), byPath, nil)
		require.ErrorContains(t, err, "handler is nil")
	})
	t.Run("F51 a nil key function", func(t *testing.T) {
		_, err := call(t, memstore.New(nil), nil, created)
		require.ErrorContains(t, err, "key function is nil")
	})
	t.Run("F51 no guard", func(t *testing.T) {
		for want, g := range map[string]*guard.Guard{"guard is nil": nil, "not made by New": new(guard.Guard)} {
			_, err := Wrap(g, byPath, created).Handle(t.Context(), Request{URL: url.URL{Path: "/x"}})
			require.ErrorContains(t, err, want)
		}
	})
}

func TestRetryAfterGrowsWithTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for held, longest := range map[time.Duration]int{
			0: 1, 300 * time.Millisecond: 1, 3 * time.Second: 3, time.Hour: 5, -time.Hour: 1, // another's clock may be ahead
		} {
			seen := map[string]bool{}
			for range 1000 {
				out, ok := Problem(&guard.LockBusy{Key: "k", State: lockstore.Held, Holder: lockstore.HolderInfo{Since: time.Now().Add(-held)}, Remaining: time.Hour})
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

func TestProblemOfALockThatOthersWaitFor(t *testing.T) {
	out, ok := Problem(&guard.LockBusy{Key: "k", State: lockstore.Reserved, Remaining: 10 * time.Second})
	require.True(t, ok)
	require.Equal(t, 409, out.StatusCode)
	require.Equal(t, "1", out.Header.Get("Retry-After"))
	require.Contains(t, string(out.Body), "have waited longer")
	require.NotContains(t, string(out.Body), "is working")
}

func TestProblemOfAClosedKey(t *testing.T) {
	inDoubt, ok := Problem(&guard.LockBusy{Key: "k", State: lockstore.InDoubt})
	require.True(t, ok)
	require.Equal(t, 409, inDoubt.StatusCode)
	require.NotContains(t, inDoubt.Header, "Retry-After", "it does not become free by itself")
	require.Contains(t, string(inDoubt.Body), "Nobody knows")
	for left, seconds := range map[time.Duration]string{0: "1", 89*time.Second + 1: "90"} {
		for _, state := range []lockstore.State{lockstore.Completed, lockstore.Cooldown} {
			done, ok := Problem(&guard.LockBusy{Key: "k", State: state, Remaining: left})
			require.True(t, ok)
			require.Equal(t, 409, done.StatusCode)
			require.Equal(t, seconds, done.Header.Get("Retry-After"))
			require.Contains(t, string(done.Body), "stays closed")
		}
	}
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
	out, ok := Problem(&guard.LockInvalid{Key: "k"})
	require.True(t, ok)
	require.Equal(t, 400, out.StatusCode)
}
