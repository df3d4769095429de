package tell

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stderrTo is a file in place of standard error. It returns what is in the file.
func stderrTo(t *testing.T) func() string {
	t.Helper()
	name, before := filepath.Join(t.TempDir(), "stderr"), os.Stderr
	f, err := os.Create(name)
	require.NoError(t, err)
	os.Stderr = f
	t.Cleanup(func() {
		os.Stderr = before
		require.NoError(t, f.Close())
	})
	return func() string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
}

func TestCall(t *testing.T) {
	for name, c := range map[string]struct {
		call   func(free chan struct{})
		in     bool // it ends in time
		stderr string
	}{
		"returns":  {func(chan struct{}) {}, true, "^$"},
		"is slow":  {func(chan struct{}) { <-time.After(Most - time.Millisecond) }, true, "^$"},
		"hangs":    {func(free chan struct{}) { <-free }, false, `^lambdalock: the hook has not returned within 1s; the program goes on without it\n$`},
		"panics":   {func(chan struct{}) { panic("boom") }, true, `^lambdalock: the hook panicked: boom\n(?s:.*)tell_test.go`},
		"Goexit":   {func(chan struct{}) { runtime.Goexit() }, true, `^lambdalock: the hook called runtime.Goexit\n$`},
		"is a nil": {nil, true, `^lambdalock: the hook panicked: runtime error: invalid memory address`},
	} {
		t.Run(name, func(t *testing.T) {
			said := stderrTo(t)
			synctest.Test(t, func(t *testing.T) {
				free := make(chan struct{})
				hook := func() { c.call(free) }
				require.Equal(t, c.in, Start("the hook", hook).Wait(Most, nil))
				close(free)
				synctest.Wait()
			})
			require.Regexp(t, c.stderr, said())
			require.Zero(t, hung.Load())
		})
	}
}

// A hurry may come while the call is waited for, or before.
func TestHurry(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{0: Least, Most / 2: Most/2 + Least, Most - Least/2: Most} {
		said := stderrTo(t)
		synctest.Test(t, func(t *testing.T) {
			free, hurry := make(chan struct{}), make(chan struct{})
			time.AfterFunc(after, func() { close(hurry) })
			began := time.Now()
			require.False(t, Start("the hook", func() { <-free }).Wait(Most, hurry))
			require.Equal(t, want, time.Since(began))
			close(free)
			synctest.Wait()
		})
		require.Contains(t, said(), want.String())
	}
}

// Otherwise a log that nobody reads would take the memory of a server that goes on.
func TestMostHung(t *testing.T) {
	said := stderrTo(t)
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		var made atomic.Int64
		for range mostHung {
			require.False(t, Start("the hook", func() { made.Add(1); <-free }).Wait(0, nil))
		}
		synctest.Wait()
		require.EqualValues(t, mostHung, made.Load())
		for range 8 {
			require.True(t, Start("the hook", func() { made.Add(1) }).Wait(Most, nil), "what is left out costs no time")
		}
		close(free)
		synctest.Wait()
		require.True(t, Start("the hook", func() { made.Add(1) }).Wait(Most, nil))
		require.EqualValues(t, mostHung+1, made.Load())
		require.Zero(t, hung.Load())
	})
	require.Contains(t, said(), "lambdalock: 8 calls of hooks and loggers were left out, because 1000 had not returned\n")
}

// A burst of calls that return is no reason to leave one out.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int64
		var waits sync.WaitGroup
		for range 5 * mostHung {
			waits.Go(func() {
				assert.True(t, Start("the hook", func() { <-time.After(Most / 2); made.Add(1) }).Wait(Most, nil))
			})
		}
		waits.Wait()
		require.EqualValues(t, 5*mostHung, made.Load())
	})
}

// A handler of slog that fails costs its caller at most a second, and the line.
func TestLog(t *testing.T) {
	said := stderrTo(t)
	synctest.Test(t, func(t *testing.T) {
		free, began := make(chan struct{}), time.Now()
		Log(t.Context(), slog.New(handler{free: free}), slog.LevelWarn, "hangs", slog.String("key", "k"))
		require.Equal(t, Most, time.Since(began))
		synctest.Wait()
		Log(t.Context(), slog.New(handler{free: free}), slog.LevelWarn, "hangs, too")
		require.Equal(t, Most, time.Since(began), "nobody waits for the lines behind the one that hangs")
		Log(t.Context(), slog.New(handler{}), slog.LevelWarn, "panics")
		close(free)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		free, began = make(chan struct{}), time.Now()
		Log(ctx, slog.New(handler{free: free}), slog.LevelWarn, "hangs")
		require.Equal(t, time.Second/4, time.Since(began), "a quarter of the time that is left")
		close(free)
		synctest.Wait()
		<-time.After(time.Second/4*3 - 4*Least + 1) // less than four times Least is left
		free, began = make(chan struct{}), time.Now()
		time.AfterFunc(Least-1, func() { close(free) })
		for range 1000 {
			Log(ctx, slog.New(handler{free: free}), slog.LevelWarn, "is in time")
		}
		require.Zero(t, time.Since(began), "a batch with many lines is answered in time")
		<-ctx.Done()
		Log(ctx, slog.New(handler{free: free}), slog.LevelWarn, "is in time, too")
	})
	require.NotContains(t, said(), "within 0s")
	require.Regexp(t, `^lambdalock: the logger has not returned within 1s(?s:.*)lambdalock: the logger panicked: boom`, said())
}

// Calls that nobody waits for count, too.
func TestMostLogsHang(t *testing.T) {
	said := stderrTo(t)
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		var made atomic.Int64
		hang := slog.New(handler{free: free, made: &made})
		for range 30 {
			for range 100 {
				Log(t.Context(), hang, slog.LevelWarn, "hangs")
			}
			<-time.After(2 * Most)
		}
		require.EqualValues(t, mostHung, made.Load())
		require.EqualValues(t, mostHung, hung.Load())
		close(free)
		synctest.Wait()
		require.Zero(t, hung.Load())
	})
	require.Contains(t, said(), "lambdalock: the logger has not returned within 1s")
}

// handler waits until it is free; without a channel it panics.
type handler struct {
	slog.Handler
	free chan struct{}
	made *atomic.Int64 // calls; may be nil
}

func (handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(context.Context, slog.Record) error {
	if h.made != nil {
		h.made.Add(1)
	}
	if h.free == nil {
		panic("boom")
	}
	<-h.free
	return nil
}
