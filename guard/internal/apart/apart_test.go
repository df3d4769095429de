package apart

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	own := errors.New("own")
	require.NoError(t, Run(func() error { return nil }))
	require.Equal(t, own, Run(func() error { return own }))
	require.Empty(t, Stack(own))
	require.Empty(t, Stack(nil))

	err := Run(func() error { panic("boom") })
	require.EqualError(t, err, "panic: boom", "F04")
	require.Contains(t, Stack(fmt.Errorf("wrapped: %w", err)), "apart_test.go")

	require.ErrorContains(t, Run(func() error { panic(nil) }), "nil", "F04")
	require.ErrorContains(t, Run(func() error { runtime.Goexit(); return nil }), "Goexit", "F05")
}
