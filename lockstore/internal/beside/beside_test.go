package beside

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A panic in a library, for example of a hook, panics in the caller, where it can be recovered.
func TestAPanicReachesTheCaller(t *testing.T) {
	for name, ctx := range map[string]context.Context{"in another goroutine": t.Context(), "in the same goroutine": context.Background()} {
		require.PanicsWithValue(t, "a hook", func() { _, _ = Do(ctx, func() (int, error) { panic("a hook") }) }, name)
	}
}
