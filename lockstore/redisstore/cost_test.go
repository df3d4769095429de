package redisstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

// What an event costs whose work another's run does: one script that writes nothing. A free key still takes two requests.
func TestCostOfACoveredEvent(t *testing.T) {
	addr := "redis://" + testservers.Redis(t)
	looks, client := openClient(t, addr), openClient(t, addr)
	s := storeOn(t, client)
	loadScript(t, s)
	sent := counted(client)
	writes := func() string {
		text, err := looks.Info(t.Context(), "persistence").Result()
		require.NoError(t, err)
		_, text, found := strings.Cut(text, "rdb_changes_since_last_save:")
		require.True(t, found)
		text, _, _ = strings.Cut(text, "\r")
		return text
	}
	event := func(id string) (lockstore.Lease, error) {
		return s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: lockstore.MaxTTL, JoinQueue: true, Work: "index", Event: id})
	}
	lease, err := event("1")
	require.NoError(t, err)
	require.NoError(t, s.Release(t.Context(), lease))
	require.EqualValues(t, 2, sent.Load(), "a free key")
	_, err = event("2")
	require.NoError(t, err)
	_, err = event("3")
	require.ErrorIs(t, err, lockstore.ErrRefused)
	require.EqualValues(t, 4, sent.Load(), "a place")
	before := writes()
	for n := range int32(20) {
		_, err := event("another")
		refused, _ := errors.AsType[*lockstore.Refused](err)
		require.NotNil(t, refused, "%v", err)
		require.True(t, refused.Covered)
		require.EqualValues(t, 5+n, sent.Load())
	}
	require.Equal(t, before, writes())
}
