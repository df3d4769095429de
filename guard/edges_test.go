package guard

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

func TestNumbers(t *testing.T) {
	ctx := context.Background()
	const ms = time.Millisecond
	for took, want := range map[time.Duration]error{750*ms - 1: lockstore.ErrLost, 750 * ms: nil} {
		on("a release that says lost after "+took.String(), t, newBench, Options{TTL: time.Second}, func(t *testing.T, b *bench) {
			b.store.release = func(context.Context, int, request) (driver.Answer, error) {
				pass(took)
				return driver.Answer{Outcome: driver.Lost}, nil
			}
			require.ErrorIs(t, b.Do(ctx, "k", nothing), want, "it says something about the work while the lease is trusted")
		})
	}
	on("release after Shutdown", t, newBench, Options{}, func(t *testing.T, b *bench) {
		b.store.release = silent
		began := time.Now()
		time.AfterFunc(time.Second, b.Shutdown)
		_ = b.Do(ctx, "k", func(ctx context.Context, _ Lock) error { <-ctx.Done(); return nil })
		require.Equal(t, 1300*ms, time.Since(began), "a release has until 300 ms after Shutdown")

		b = newBench(t, Options{})
		b.store.release = silent
		began = time.Now()
		time.AfterFunc(10*ms, b.Shutdown)
		require.NoError(t, b.Do(ctx, "k", nothing))
		require.Equal(t, 310*ms, time.Since(began), "a release that is under way has until 300 ms after Shutdown")
	})
}

// A run whose deadline is at most TTL less a second away is not renewed, when the
// store lets all but the last second of the lease be trusted.
func TestWhoNeverRenews(t *testing.T) {
	for name, c := range map[string]struct {
		left  time.Duration
		less  time.Duration // than the lease is what the store lets be trusted
		renew bool
	}{
		"59 s":                            {59 * time.Second, 0, false},
		"59 s on DynamoDB":                {59 * time.Second, 250 * time.Millisecond, false},
		"59 s, the last second untrusted": {59 * time.Second, time.Second, false},
		"59 s, before the edge":           {59 * time.Second, 1050*time.Millisecond - 1, false},
		"59 s, the exact edge":            {59 * time.Second, 1050 * time.Millisecond, true},
		"60 s":                            {60 * time.Second, 0, false},
		"60.05 s, before the edge":        {60*time.Second + 50*time.Millisecond - 1, 0, false},
		"60.05 s, the exact edge":         {60*time.Second + 50*time.Millisecond, 0, true},
		"60 s on DynamoDB":                {60 * time.Second, 250 * time.Millisecond, true},
		"59.8 s on DynamoDB, before it":   {59800*time.Millisecond - 1, 250 * time.Millisecond, false},
		"59.8 s on DynamoDB":              {59800 * time.Millisecond, 250 * time.Millisecond, true},
		"a short one":                     {450 * time.Millisecond, time.Second, false},
	} {
		on(name, t, newBench, Options{}, func(t *testing.T, b *bench) {
			b.store.acquire = func(ctx context.Context, _ int, r request) (driver.Answer, error) {
				a, err := b.store.pass(ctx, r)
				a.TTL -= c.less
				return a, err
			}
			err := b.Do(within(t, c.left), "k", func(ctx context.Context, _ Lock) error {
				<-ctx.Done()
				assert.Equal(t, ErrDeadline, context.Cause(ctx), "the lease outlasts the work's time")
				return errors.New("own")
			})
			require.EqualError(t, err, "own")
			require.Equal(t, c.renew, len(b.store.renewals) > 0)
		})
	}
}
