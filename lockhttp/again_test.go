package lockhttp

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

const (
	key    = "shared/k"
	thirty = `{"ttl": 30}`
	idem   = "Idempotency-Key"
)

// TestRepeatedAcquire repeats a request that has an Idempotency-Key.
func TestRepeatedAcquire(t *testing.T) {
	bubble(t, "F55 an acquire with an Idempotency-Key", func(t *testing.T) {
		s := newWorld(t).Service
		had := acquire(t, s, key, thirty, idem, "7")
		<-time.After(10 * time.Second)
		again := acquire(t, s, key, `{"ttl": 900}`, idem, "7")
		require.Equal(t, had.said["fence"], again.said["fence"])
		require.Equal(t, had.token(), again.token())
		require.Equal(t, 19.75, again.said["expiresIn"], "the first thirty count")
		require.Equal(t, had.said["expiresAt"], again.said["expiresAt"])

		t.Log("F64: nobody else gets the lease")
		const host = `{"ttl": 30, "holder": "another host of the same role"}`
		for _, r := range []struct{ as, key, body string }{{web, "7", thirty}, {cron, "70", thirty}, {cron, "07", thirty}, {cron, "7 ", thirty}, {cron, "7", host}} {
			a := send(t, t.Context(), s, request(r.as, "PUT", key, r.body, idem, r.key))
			require.Equal(t, http.StatusConflict, a.StatusCode, "%v", r)
		}
		require.Equal(t, http.StatusConflict, ask(t, s, "PUT", key, thirty).StatusCode)
		require.NotEqual(t, had.token(), acquire(t, s, key+"2", thirty, idem, "7").token(), "another key is another lock")

		require.Equal(t, http.StatusOK, ask(t, s, "PATCH", key, `{"ttl": 60}`, "Lock-Token", had.token()).StatusCode)
		require.Equal(t, 29.75, acquire(t, s, key, thirty, idem, "7").said["expiresIn"], "at most what the request asks for")

		require.Equal(t, http.StatusNoContent, ask(t, s, "DELETE", key, "", "Lock-Token", again.token()).StatusCode)
		for range 2 {
			require.Equal(t, http.StatusUnprocessableEntity, ask(t, s, "PUT", key, thirty, idem, "7").StatusCode, "released")
		}
		acquire(t, s, key, `{"ttl": 2}`, idem, "8")
		<-time.After(1600 * time.Millisecond)
		require.Equal(t, 0.15, acquire(t, s, key, thirty, idem, "8").said["expiresIn"])
		<-time.After(100 * time.Millisecond)
		require.Equal(t, http.StatusUnprocessableEntity, ask(t, s, "PUT", key, thirty, idem, "8").StatusCode, "all but over")
		<-time.After(300 * time.Millisecond)
		require.Equal(t, http.StatusUnprocessableEntity, ask(t, s, "PUT", key, `{"ttl": 30, "wait": 20}`, idem, "8").StatusCode, "expired")
		require.Equal(t, http.StatusOK, ask(t, s, "PUT", key, thirty).StatusCode)
	})
}

func TestMaxHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newWorld(t).Service
		const two = `{"ttl": 30, "maxHolders": 2}`
		first := acquire(t, s, key, two)
		<-time.After(10 * time.Second)
		second := acquire(t, s, key, `{"ttl": 30, "maxHolders": 3, "holder": "me"}`, idem, "7")
		require.Equal(t, []any{0.0, 1.0}, []any{first.said["seat"], second.said["seat"]})
		require.NotContains(t, acquire(t, s, key+"2", thirty).said, "seat")
		for _, more := range []string{two, thirty, `{"ttl": 30, "maxHolders": 32}`} {
			require.Equal(t, http.StatusConflict, ask(t, s, "PUT", key, more).StatusCode, more)
		}

		look := ask(t, s, "GET", key, "")
		var holders []any
		for i, had := range []answer{first, second} {
			lease, ok := leaseOf(had.token(), key, []secret{secret(oldSecret)})
			require.True(t, ok)
			require.NotContains(t, look.Body, string(lease.Owner))
			who := look.said["holders"].([]any)[i].(object)["holder"]
			require.Equal(t, cron, who.(object)["caller"])
			holders = append(holders, object{"state": "held", "seat": float64(i), "fence": had.said["fence"], "remaining": float64(20 + 10*i), "holder": who})
		}
		require.Equal(t, object{"state": "held", "fence": second.said["fence"], "remaining": 30.0, "maxHolders": 2.0, "holders": holders}, look.said)

		require.NotContains(t, ask(t, s, "PATCH", key, thirty, "Lock-Token", first.token()).said, "seat")
		require.Equal(t, http.StatusNoContent, ask(t, s, "DELETE", key, "", "Lock-Token", first.token()).StatusCode)
		require.Equal(t, http.StatusConflict, ask(t, s, "PUT", key, thirty).StatusCode, "one who wants to be alone")
		require.EqualValues(t, 0, acquire(t, s, key, two).said["seat"])
	})
}

func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		body := func(event string) string {
			return `{"ttl": 30, "wait": 20, "coalesce": "index", "event": "` + event + `"}`
		}
		held := acquire(t, w.Service, key, `{"ttl": 30, "holder": "me"}`)
		waits := make(chan answer)
		go func() { waits <- ask(t, w.Service, "PUT", key, body("1")) }()
		synctest.Wait()
		began := time.Now()
		a := ask(t, w.Service, "PUT", key, body("2"))
		require.Equal(t, http.StatusConflict, a.StatusCode)
		require.Equal(t, "covered", a.said["code"])
		require.Equal(t, "me", a.said["holder"].(object)["name"])
		require.Equal(t, described.At("components", "responses", "Busy", "content", "application/problem+json", "examples", "covered", "value", "detail"), a.said["detail"])
		require.Empty(t, a.Header.Get("Retry-After"))
		require.Zero(t, time.Since(began))
		require.Equal(t, "busy", ask(t, w.Service, "PUT", key, thirty).said["code"], "without coalesce")
		require.Equal(t, http.StatusNoContent, ask(t, w.Service, "DELETE", key, "", "Lock-Token", held.token()).StatusCode)
		require.Equal(t, http.StatusOK, (<-waits).StatusCode, "it does the work of both")
	})
}

func TestNoTimeLeft(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	a := send(t, ctx, newWorld(t).Service, request(cron, "PUT", key, thirty))
	require.Equal(t, "unavailable", a.said["code"])
}

// TestLostReplies loses the store's replies to a request that it carried out.
func TestLostReplies(t *testing.T) {
	// lostThenDown carries the first request out, loses its reply, and refuses all
	// later ones.
	lostThenDown := func(w *world) {
		n := 0
		w.faults(func() storetest.Fault {
			if n++; n == 1 {
				return storetest.Fault{Cut: errLostReply}
			}
			return storetest.Fault{Cut: lockstore.ErrUnavailable}
		})
	}
	for _, method := range []string{"PATCH", "DELETE"} {
		bubble(t, "F23 F24 F25 "+method+": a store that is down behind the lost reply does not make it undone", func(t *testing.T) {
			w := newWorld(t)
			token := acquire(t, w.Service, key, `{"ttl": 10}`).token()
			lostThenDown(w)
			a := ask(t, w.Service, method, key, `{"ttl": 60}`, "Lock-Token", token)
			require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
			require.Equal(t, "unknown", a.said["code"], "unavailable says that it was certainly not done")
			w.fail(nil)
			done := map[string]string{"PATCH": "held", "DELETE": "free"}[method]
			require.Equal(t, done, ask(t, w.Service, "GET", key, "").said["state"], "it was done")
		})
	}
}

// TestClientGone ends the request's context while the store is being asked.
func TestClientGone(t *testing.T) {
	for name, headers := range map[string][]string{"plain": nil, "to be repeated": {idem, "7"}} {
		bubble(t, name, func(t *testing.T) {
			w := newWorld(t)
			ctx, cancel := context.WithCancel(t.Context())
			w.faults(func() storetest.Fault {
				time.AfterFunc(time.Second, cancel)
				return storetest.Fault{After: 2 * time.Second}
			})
			a := send(t, ctx, w.Service, request(cron, "PUT", key, thirty, headers...))
			require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
			require.Equal(t, "unknown", a.said["code"])
			if headers == nil {
				require.Equal(t, lockstore.Free, w.state(t, key), "nobody would ever release it")
				return
			}
			w.fail(nil)
			require.Equal(t, http.StatusOK, ask(t, w.Service, "PUT", key, thirty, headers...).StatusCode)
		})
	}
}

// Whatever a request says of its holder, the answers to others name the caller
// whom the gateway has authenticated.
func TestHolder(t *testing.T) {
	for name, c := range map[string]struct {
		as, holder   string
		name, caller any
	}{
		"F78 another's ARN":    {as: web, holder: cron, name: cron, caller: web},
		"none":                 {as: web, name: web, caller: web},
		"nobody authenticated": {holder: cron, name: cron},
		"nobody at all":        {name: Anonymous},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			body := thirty
			if c.holder != "" {
				body = fmt.Sprintf(`{"ttl": 30, "holder": %q}`, c.holder)
			}
			r := request(c.as, "PUT", key, body)
			require.Equal(t, http.StatusOK, send(t, t.Context(), w.Service, r).StatusCode)
			for _, a := range []answer{ask(t, w.Service, "GET", key, ""), ask(t, w.Service, "PUT", key, thirty)} {
				shown := a.said["holder"].(object)
				require.Equal(t, c.name, shown["name"])
				require.Equal(t, c.caller, shown["caller"])
			}
		})
	}
}

func bubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
