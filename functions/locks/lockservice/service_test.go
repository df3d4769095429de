package lockservice

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// Callers that wait get the lock in the order in which they came, and a GET says how many
// wait.
func TestWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, memstore.New(nil))
		had := acquire(t, s, key, thirty)
		var served []int
		var all sync.WaitGroup
		for n := range 3 {
			all.Go(func() {
				mine := acquire(t, s, key, `{"ttl": 30, "wait": 20}`)
				served = append(served, n)
				<-time.After(time.Second)
				require.Equal(t, http.StatusNoContent, ask(t, s, "DELETE", key, "", "Lock-Token", mine.token()).StatusCode)
			})
			synctest.Wait()
		}
		require.EqualValues(t, 3, ask(t, s, "GET", key, "").said["waiting"])
		began := time.Now()
		require.Equal(t, http.StatusNoContent, ask(t, s, "DELETE", key, "", "Lock-Token", had.token()).StatusCode)
		synctest.Wait()
		require.Equal(t, http.StatusConflict, ask(t, s, "PUT", key, thirty).StatusCode, "a caller that does not wait is behind those who do")
		all.Wait()
		require.Equal(t, []int{0, 1, 2}, served)
		require.Equal(t, 3*time.Second, time.Since(began), "the lock is never idle while somebody waits")
		require.NotContains(t, ask(t, s, "GET", key, "").said, "waiting")
	})
}

func TestBusyWithoutAHolder(t *testing.T) {
	p := refusal(http.MethodPut, &guard.LockBusy{Key: key, Reserved: true})
	require.Equal(t, "busy", p.Code)
	require.Equal(t, "Nobody holds the lock, but other callers have waited longer for it.", p.Detail)
	require.Equal(t, 1, p.RetryAfter)
	require.NotContains(t, p.response().Body, "holder")
}

func TestBusyWithAClosedKey(t *testing.T) {
	inDoubt := refusal(http.MethodPut, &guard.LockBusy{Key: key, Err: &lockstore.DoubtError{}})
	require.Equal(t, "busy", inDoubt.Code)
	require.Contains(t, inDoubt.Detail, "settle")
	require.NotContains(t, inDoubt.response().Headers, "Retry-After")
	kept := refusal(http.MethodPut, &guard.LockBusy{Key: key, Err: &lockstore.KeptError{HeldError: lockstore.HeldError{Remaining: 90 * time.Second}}})
	require.Equal(t, "busy", kept.Code)
	require.Contains(t, kept.Detail, "stays closed")
	require.Equal(t, 90, kept.RetryAfter)
}

func TestLifeOfALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, memstore.New(nil))
		began := time.Now()
		had := acquire(t, s, "reports/daily", `{"ttl": 30, "holder": "cron on host 4"}`)
		require.Equal(t, 29.75, had.said["expiresIn"])
		require.Equal(t, began.Add(29750*time.Millisecond).UTC().Format(time.RFC3339Nano), had.said["expiresAt"])

		busy := ask(t, s, "PUT", "reports/daily", `{"ttl": 30}`)
		require.Equal(t, http.StatusConflict, busy.StatusCode)
		require.Equal(t, map[string]any{"name": "cron on host 4", "caller": cron, "id": "request", "since": began.UTC().Format(time.RFC3339Nano)}, busy.said["holder"])

		look := ask(t, s, "GET", "reports/daily", "")
		require.Equal(t, map[string]any{"held": true, "fence": had.said["fence"], "holder": busy.said["holder"], "remaining": 30.0}, look.said)

		<-time.After(20 * time.Second)
		renewed := ask(t, s, "PATCH", "reports/daily", `{"ttl": 60}`, "lock-token", had.token())
		require.Equal(t, http.StatusOK, renewed.StatusCode, renewed.Body)
		require.Equal(t, had.said["fence"], renewed.said["fence"])
		require.Equal(t, 59.75, renewed.said["expiresIn"])

		for range 2 {
			released := ask(t, s, "DELETE", "reports/daily", "", "Lock-Token", renewed.token())
			require.Equal(t, http.StatusNoContent, released.StatusCode, "again is no error")
		}
		require.Equal(t, http.StatusNotFound, ask(t, s, "PATCH", "reports/daily", `{"ttl": 60}`, "Lock-Token", renewed.token()).StatusCode)
		require.Equal(t, map[string]any{"held": false, "fence": had.said["fence"]}, ask(t, s, "GET", "reports/daily", "").said)
		require.Greater(t, acquire(t, s, "reports/daily", `{"ttl": 1}`).said["fence"], had.said["fence"])
	})
}
