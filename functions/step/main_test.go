package main

import (
	"testing"

	"github.com/lambdalock/lambdalock/functions/internal/functest"
)

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	const key = "account/7"
	free := func(t *testing.T, w functest.World) { w.Free(t, key) }
	held := func(t *testing.T, w functest.World) { w.Held(t, key) }
	functest.Events(t, "step", func(w functest.World) any {
		return handler(w.Guard)
	}, map[string]func(*testing.T, functest.World){
		"step":            held,
		"step-aborted":    free,
		"step-bad-input":  free,
		"step-busy":       held,
		"step-renew-lost": free,
		"step-running":    free,
	})
}
