package lockservice

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

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
