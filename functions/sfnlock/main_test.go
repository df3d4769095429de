package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/functest"
)

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	const key = "account/7"
	free := func(t *testing.T, w functest.World) { w.Free(t, key) }
	held := func(t *testing.T, w functest.World) { w.Held(t, key) }
	functest.Events(t, "sfnlock", func(w functest.World) any {
		return handler(w.Guard, nil)
	}, map[string]func(*testing.T, functest.World){
		"sfnlock":            held,
		"sfnlock-aborted":    free,
		"sfnlock-bad-input":  free,
		"sfnlock-busy":       held,
		"sfnlock-renew-lost": free,
		"sfnlock-running":    free,
		"sfnlock-waits": func(t *testing.T, w functest.World) {
			held(t, w)
			status, err := w.Store.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, 1, status.Parked)
		},
	})
}
