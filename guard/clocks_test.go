package guard

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/clocktest"
)

// endsAt is a context with a deadline that only its reader keeps.
type endsAt struct {
	context.Context
	end time.Time
}

func (e endsAt) Deadline() (time.Time, bool) { return e.end, true }

// A deadline that was made before a freeze, or before the wall clock was set, comes at another time on each clock. The
// earlier one counts: for the start of the work, for its context and for the lease.
func TestDeadlineOnTwoClocks(t *testing.T) {
	const short, long = 10 * time.Second, time.Hour
	for name, left := range map[string]struct{ mono, wall time.Duration }{
		"F08 the monotonic clock stood still": {long, short},
		"F17 the wall clock was set back":     {short, long},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			began := time.Now()
			require.NoError(t, b.Do(endsAt{t.Context(), clocktest.Ago(-left.mono, -left.wall)}, "k", func(ctx context.Context, _ Lock) error {
				end, ok := ctx.Deadline()
				require.True(t, ok)
				require.LessOrEqual(t, end.Sub(began), short-200*time.Millisecond, "the reserve is 300 ms")
				return nil
			}))
			require.LessOrEqual(t, b.store.requests[0].TTL, short+time.Second)
			over := func(d time.Duration) time.Duration { return d - short }
			err := b.Do(endsAt{t.Context(), clocktest.Ago(-over(left.mono), -over(left.wall))}, "k", neverRuns(t))
			require.IsType(t, &LockDeadline{}, err)
		})
	}
}
