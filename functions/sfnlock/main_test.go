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
	functest.Events(t, "sfnlock", func(w functest.World) any {
		return handler(w.Guard, nil)
	}, map[string]func(*testing.T, functest.World){
		"sfnlock":            held,
		"sfnlock-aborted":    free,
		"sfnlock-bad-input":  free,
		"sfnlock-busy":       held,
		"sfnlock-renew-lost": free,
		"sfnlock-running":    free,
	})
}
