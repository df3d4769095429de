package main

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/lockhttp"
)

const key = "shared/report"

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	free := func(t *testing.T, w functest.World) { w.Free(t, key) }
	held := func(t *testing.T, w functest.World) { w.Held(t, key) }
	functest.Events(t, "locks", func(w functest.World) any {
		service, err := lockhttp.Open(w.Guard, &url.URL{Scheme: "text", Path: "/any secret that has at least 32 bytes"},
			func(string) string { return `{"*": ["shared/"]}` })
		require.NoError(t, err)
		return service.Handle
	}, map[string]func(*testing.T, functest.World){
		"locks":           held,
		"locks-busy":      held,
		"locks-get":       free,
		"locks-get-busy":  held,
		"locks-bad-input": free,
		"locks-forbidden": func(t *testing.T, w functest.World) { w.Free(t, "payroll/october") },
		"locks-no-lease":  free,
		"locks-openapi":   free,
	})
}
