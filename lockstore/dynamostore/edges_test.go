package dynamostore_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// phases of the whole second in which a case begins. The service's Date cuts
// its time down to whole seconds.
var phases = []time.Duration{0, time.Millisecond, 499 * time.Millisecond, 500 * time.Millisecond, 999 * time.Millisecond}

// A lease can be taken over from the first whole second on that is a second
// past its end, and the end is the TTL and the holder's skew after its stamp.
func TestEdgeOfTheTakeover(t *testing.T) {
	const ttl = 10 * time.Second
	for _, skew := range []time.Duration{dynamostore.DefaultSkew, 5 * time.Second} {
		for _, phase := range phases {
			t.Run(fmt.Sprintf("M42 M43 skew %v, phase %v", skew, phase), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					service := fakedynamo.New(table)
					pass(phase)
					_, err := newStore(t, service, 0, dynamostore.Options{Skew: skew}).Acquire(t.Context(), request(ttl))
					require.NoError(t, err)
					over := time.Now().Add(ttl + skew + time.Second)
					if whole := over.Truncate(time.Second); whole.Before(over) {
						over = whole.Add(time.Second)
					}
					pass(time.Until(over) - time.Millisecond)
					other := newStore(t, service, 0, dynamostore.Options{})
					_, err = other.Acquire(t.Context(), request(ttl))
					require.ErrorIs(t, err, lockstore.ErrHeld, "taken over before its time")
					pass(time.Millisecond)
					_, err = other.Acquire(t.Context(), request(ttl))
					require.NoError(t, err)
				})
			})
		}
	}
}

// The trust in a grant ends the margin before its TTL, and earlier by as much as
// the local clock is behind by more than the skew. A grant that could be trusted
// for less than half of its TTL, or whose end is more than the skew and a second
// ahead of a clock that is right, is made again.
func TestEdgesOfTheStamp(t *testing.T) {
	const (
		ttl  = time.Minute
		skew = dynamostore.DefaultSkew
		ms   = time.Millisecond
	)
	for _, c := range []struct {
		offset   time.Duration // of the local clock, as it seems from a Date at the case's phase
		trusted  time.Duration
		requests int
	}{
		{0, ttl, 1},
		{-skew, ttl, 1},
		{-skew - ms, ttl - ms, 1},
		{-skew - 10*time.Second, ttl - 10*time.Second, 1},
		{-skew - ttl/2, ttl / 2, 1},
		{-skew - ttl/2 - ms, ttl, 3},
		{skew + time.Second, ttl, 1},
		{skew + time.Second + ms, ttl, 3},
	} {
		for _, phase := range phases {
			t.Run(fmt.Sprintf("F15 F16 M44 M45 M46 offset %v, phase %v", c.offset, phase), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					service := fakedynamo.New(table)
					pass(phase)
					s := newStore(t, service, c.offset-phase, dynamostore.Options{})
					lease, err := s.Acquire(t.Context(), request(ttl))
					require.NoError(t, err)
					require.Equal(t, c.requests, service.Requests(), "requests of a grant")
					require.Equal(t, c.trusted-250*ms, lease.TTL, "the trust in a grant")
				})
			})
		}
	}
}

// A renewal is stamped once more when it ends earlier, by the clock that its reply
// has corrected, than a right clock would have stamped it: by more than the skew,
// or by more than a quarter of a TTL that is shorter than four skews.
func TestEdgeOfTheRenewalsStamp(t *testing.T) {
	const skew = dynamostore.DefaultSkew
	for _, c := range []struct {
		ttl, behind time.Duration
		requests    int
	}{
		{time.Minute, skew, 1},
		{time.Minute, skew + time.Millisecond, 2},
		{2 * time.Second, 500 * time.Millisecond, 1},
		{2 * time.Second, 501 * time.Millisecond, 2},
	} {
		t.Run(fmt.Sprintf("F16 M49 TTL %v, behind by %v", c.ttl, c.behind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				lease, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(c.ttl))
				require.NoError(t, err)
				pass(c.ttl)
				sent := service.Requests()
				_, err = newStore(t, service, -c.behind, dynamostore.Options{}).Renew(t.Context(), lease, c.ttl)
				require.NoError(t, err)
				require.Equal(t, sent+c.requests, service.Requests(), "requests of a renewal")
			})
		})
	}
}
