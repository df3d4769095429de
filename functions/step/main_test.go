package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/functions/internal/steplock"
	"github.com/lambdalock/lambdalock/lockstore"
)

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	const key = "account/7"
	free := func(t *testing.T, w functest.World) { w.Free(t, key) }
	held := func(t *testing.T, w functest.World) {
		inspector, ok := lockstore.As[lockstore.Inspector](w.Store)
		require.True(t, ok)
		status, err := inspector.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.True(t, status.Held)
	}
	functest.Events(t, "step", key, func(w functest.World) any {
		return steplock.Handler(w.Guard)
	}, map[string]func(*testing.T, functest.World){
		"step":            held,
		"step-aborted":    free,
		"step-bad-input":  free,
		"step-busy":       held,
		"step-renew-lost": free,
		"step-running":    free,
	})
}
