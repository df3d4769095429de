package lockhttp

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// TestStates looks at a key in each of its states, and asks for it.
func TestStates(t *testing.T) {
	for state, c := range map[lockstore.State]struct {
		bring  func(context.Context, *lockstore.Store, lockstore.Lease) error // from held
		look   []string                                                       // members of the answer to GET, with the fence
		detail string                                                         // of the answer to PUT; "" if it gets the lock
		after  string                                                         // its Retry-After
	}{
		lockstore.Free: {
			bring: func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error { return s.Release(ctx, l) },
		},
		lockstore.Reserved: {
			bring: func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
				for _, owner := range []lockstore.Owner{"handed", "waits"} {
					_, err := s.Acquire(ctx, lockstore.Request{Key: key, Owner: owner, TTL: time.Minute, JoinQueue: true})
					if !errors.Is(err, lockstore.ErrRefused) {
						return err
					}
				}
				return s.Release(ctx, l)
			},
			look: []string{"waiting", "maxHolders", "holders"}, detail: "Nobody holds the lock, but other callers have waited longer for it.", after: "1",
		},
		lockstore.Held: {
			look: []string{"holder", "remaining", "maxHolders", "holders"}, detail: "Another holds the lock.", after: "1",
		},
		lockstore.Revoked: {
			bring: func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
				_, err := s.Revoke(ctx, lockstore.RevokeRequest{Key: key, Fence: l.Fence, By: lockstore.HolderInfo{Name: "an operator"}})
				return err
			},
			look: []string{"holder", "remaining", "maxHolders", "holders"}, detail: "An operator has ended the lease of the lock, and nobody gets the lock before its end.", after: "1",
		},
		lockstore.Completed: {
			bring: func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
				return s.Complete(ctx, l, []byte("a result of somebody"), 90*time.Second)
			},
			look: []string{"holder", "remaining"}, detail: "Nobody holds the lock, but it stays closed for a while.", after: "90",
		},
		lockstore.Cooldown: {
			bring: func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
				return s.Complete(ctx, l, nil, 90*time.Second)
			},
			look: []string{"holder", "remaining"}, detail: "Nobody holds the lock, but it stays closed for a while.", after: "90",
		},
		lockstore.InDoubt: {
			bring: func(ctx context.Context, s *lockstore.Store, l lockstore.Lease) error {
				defer func() { <-time.After(time.Minute) }()
				return s.MarkStarted(ctx, l)
			},
			look: []string{"holder"}, detail: "Nobody knows how the last work under the lock ended. An operator has to resolve the key.",
		},
	} {
		bubble(t, state.String(), func(t *testing.T) {
			w := newWorld(t)
			lease, err := w.store.plain.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "mine", TTL: time.Minute, HolderInfo: lockstore.HolderInfo{Name: "me"}})
			require.NoError(t, err)
			if c.bring != nil {
				require.NoError(t, c.bring(t.Context(), w.store.plain, lease))
			}
			look := ask(t, w.Service, "GET", key, "")
			require.Equal(t, http.StatusOK, look.StatusCode)
			require.Equal(t, state.String(), look.said["state"])
			require.ElementsMatch(t, append(c.look, "state", "fence"), slices.Collect(maps.Keys(look.said)))
			require.NotContains(t, look.Body, "result")

			put := ask(t, w.Service, "PUT", key, thirty)
			if c.detail == "" {
				require.Equal(t, http.StatusOK, put.StatusCode, put.Body)
				return
			}
			require.Equal(t, http.StatusConflict, put.StatusCode, put.Body)
			require.Equal(t, "busy", put.said["code"])
			require.Equal(t, c.detail, put.said["detail"])
			require.Equal(t, c.after, put.Header.Get("Retry-After"))
			require.Equal(t, look.said["holder"], put.said["holder"])
			require.NotContains(t, put.Body, "result")
		})
	}
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
