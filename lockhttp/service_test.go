package lockhttp

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// inState is the driver of a store whose keys are in one state, and closed.
type inState struct {
	driver.Driver
	driver.Status
}

func (d inState) Do(_ context.Context, _ string, r driver.Request) (driver.Answer, error) {
	outcome := driver.Refused
	if r.Kind == driver.Inspect {
		outcome = driver.Done
	}
	return driver.Answer{Outcome: outcome, Status: d.Status}, nil
}

// TestStates looks at a key in each state in which nobody gets it, and asks for it.
func TestStates(t *testing.T) {
	me := lockstore.HolderInfo{Name: "me"}.Encode()
	lease := func(state driver.State) []driver.LiveLease {
		return []driver.LiveLease{{State: state, Fence: 7, MaxHolders: 1, Text: me, Remaining: time.Minute}}
	}
	leased, done := []string{"holder", "remaining", "maxHolders", "holders"}, []string{"holder", "remaining"}
	for _, c := range []struct {
		driver.Status
		look   []string // members of the answer to GET, with state and fence
		detail string   // of the answer to PUT
		code   string
		after  string // its Retry-After
	}{
		{driver.Status{State: driver.Reserved, Waiting: 1, OldestWait: 12300 * time.Millisecond, Holders: lease(driver.Reserved)}, []string{"waiting", "oldestWait", "maxHolders", "holders"},
			"Nobody holds the lock, but other callers have waited longer for it.", "busy", "1"},
		{driver.Status{State: driver.Held, Holder: me, Remaining: time.Minute, Holders: lease(driver.Held)}, leased, "Another holds the lock.", "busy", "1"},
		{driver.Status{State: driver.Revoked, Holder: me, Remaining: time.Minute, Holders: lease(driver.Revoked)}, leased,
			"An operator has ended the lease of the lock, and nobody gets the lock before its end.", "busy", "1"},
		{driver.Status{State: driver.Completed, Holder: me, Remaining: 90 * time.Second, Result: driver.HiddenBytes("a result")}, done,
			"Nobody holds the lock, but it stays closed for a while.", "busy", "90"},
		{driver.Status{State: driver.Cooldown, Holder: me, Remaining: 90 * time.Second}, done, "Nobody holds the lock, but it stays closed for a while.", "busy", "90"},
		{driver.Status{State: driver.InDoubt, Holder: me}, []string{"holder"},
			"Nobody knows how the last work under the lock ended. An operator has to resolve the key.", "in-doubt", ""},
	} {
		t.Run(c.State.String(), func(t *testing.T) {
			s := newService(t, lockstore.New("in one state", inState{Status: c.Status}))
			look := ask(t, s, "GET", key, "")
			require.Equal(t, http.StatusOK, look.StatusCode)
			require.Equal(t, c.State.String(), look.said["state"])
			require.ElementsMatch(t, append(c.look, "state", "fence"), slices.Collect(maps.Keys(look.said)))
			oldest, _ := look.said["oldestWait"].(float64)
			require.Equal(t, c.OldestWait.Seconds(), oldest)
			require.NotContains(t, string(look.Body), "result")

			put := ask(t, s, "PUT", key, thirty)
			require.Equal(t, http.StatusConflict, put.StatusCode, put.Body)
			require.Equal(t, []any{c.code, c.detail}, []any{put.said["code"], put.said["detail"]})
			require.Equal(t, c.after, put.Header.Get("Retry-After"))
			require.Equal(t, look.said["holder"], put.said["holder"])
			require.NotContains(t, string(put.Body), "result")
		})
	}
}

// A source without routes has the key in the path alone.
func TestKeyInThePath(t *testing.T) {
	w := newWorld(t)
	r := request(web, "PUT", "", thirty)
	r.PathParameters, r.URL.Path = nil, "/locks/shared/a b"
	require.Equal(t, http.StatusOK, send(t, t.Context(), w.Service, r).StatusCode)
	require.Equal(t, lockstore.Held, w.state(t, "shared/a b"))
	r.URL.Path = "/locks/payroll"
	require.Equal(t, http.StatusForbidden, send(t, t.Context(), w.Service, r).StatusCode)
}

func TestLifeOfALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, memstore.New(nil))
		began := time.Now()
		had := acquire(t, s, "reports/daily", `{"ttl": 30.0, "holder": "cron on host 4"}`)
		require.Equal(t, 29.75, had.said["expiresIn"])
		require.Equal(t, began.Add(29750*time.Millisecond).UTC().Format(time.RFC3339Nano), had.said["expiresAt"])

		busy := ask(t, s, "PUT", "reports/daily", `{"ttl": 30}`)
		require.Equal(t, http.StatusConflict, busy.StatusCode)
		require.Equal(t, map[string]any{"name": "cron on host 4", "caller": cron, "id": "request", "since": began.UTC().Format(time.RFC3339Nano)}, busy.said["holder"])

		look := ask(t, s, "GET", "reports/daily", "")
		require.Equal(t, map[string]any{
			"state": "held", "fence": had.said["fence"], "holder": busy.said["holder"], "remaining": 30.0, "maxHolders": 1.0,
			"holders": []any{object{"state": "held", "fence": had.said["fence"], "holder": busy.said["holder"], "remaining": 30.0, "seat": 0.0}},
		}, look.said)

		<-time.After(20 * time.Second)
		renewed := ask(t, s, "PATCH", "reports/daily", `{"ttl": 6e1}`, "lock-token", had.token())
		require.Equal(t, http.StatusOK, renewed.StatusCode, renewed.Body)
		require.Equal(t, had.said["fence"], renewed.said["fence"])
		require.Equal(t, 59.75, renewed.said["expiresIn"])

		for range 2 {
			released := ask(t, s, "DELETE", "reports/daily", "", "Lock-Token", renewed.token())
			require.Equal(t, http.StatusNoContent, released.StatusCode, "again is no error")
		}
		require.Equal(t, http.StatusNotFound, ask(t, s, "PATCH", "reports/daily", `{"ttl": 60}`, "Lock-Token", renewed.token()).StatusCode)
		require.Equal(t, map[string]any{"state": "free", "fence": had.said["fence"]}, ask(t, s, "GET", "reports/daily", "").said)
		require.Greater(t, acquire(t, s, "reports/daily", `{"ttl": 1}`).said["fence"], had.said["fence"])
	})
}
