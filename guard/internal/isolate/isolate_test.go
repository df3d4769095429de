package isolate

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	own := errors.New("own")
	require.NoError(t, Run(func() error { return nil }))
	require.Equal(t, own, Run(func() error { return own }))
	require.EqualError(t, Run(func() error { panic("boom") }), "panic: boom", "F04")
	require.ErrorContains(t, Run(func() error { panic(nil) }), "nil", "F04")
	require.ErrorContains(t, Run(func() error { runtime.Goexit(); return nil }), "Goexit", "F05")
}

// wrapper is an error whose methods panic on a nil pointer.
type wrapper struct{ err error }

func (w *wrapper) Error() string { return w.err.Error() }
func (w *wrapper) Unwrap() error { return w.err }

func TestAttrs(t *testing.T) {
	require.Equal(t, []slog.Attr{slog.String("error", "own")}, Attrs(errors.New("own")))

	panicked := Attrs(fmt.Errorf("wrapped: %w", Run(func() error { panic("boom") })))
	require.Len(t, panicked, 2)
	require.Equal(t, slog.String("error", "wrapped: panic: boom"), panicked[0])
	require.Equal(t, "stack", panicked[1].Key)
	require.Contains(t, panicked[1].Value.String(), "isolate_test.go")

	for _, err := range []error{nil, (*wrapper)(nil), fmt.Errorf("wrapped: %w", (*wrapper)(nil))} {
		require.Len(t, Attrs(err), 1)
	}
}
