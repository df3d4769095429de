package dynamostore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// phases are how far into a second a case begins. The Date header has whole seconds,
// rounded down.
var phases = []time.Duration{0, time.Millisecond, 499 * time.Millisecond, 500 * time.Millisecond, 999 * time.Millisecond}

// A lease can be taken over, and is lost, at the first whole second >= expires + 1 s, where
// expires = time of the request + TTL + the holder's skew.
func TestEdgeOfTheTakeover(t *testing.T) {
	const ttl = 10 * time.Second
	for _, skew := range []time.Duration{dynamostore.DefaultSkew, 5 * time.Second} {
		for _, phase := range phases {
			bubble(t, fmt.Sprintf("F09 M42 M43 skew %v, phase %v", skew, phase), func(t *testing.T) {
				service := fakedynamo.New(table)
				pass(phase)
				lease, err := newStore(t, service, 0, dynamostore.Options{Skew: skew}).Acquire(t.Context(), request(ttl))
				require.NoError(t, err)
				over := time.Now().Add(ttl + skew + time.Second)
				if whole := over.Truncate(time.Second); whole.Before(over) {
					over = whole.Add(time.Second)
				}
				pass(time.Until(over) - time.Millisecond)
				other := newStore(t, service, 0, dynamostore.Options{})
				_, err = other.Acquire(t.Context(), request(ttl))
				require.ErrorIs(t, err, lockstore.ErrRefused, "taken over before its time")
				status, err := other.Inspect(t.Context(), key)
				require.NoError(t, err)
				require.Equal(t, lockstore.Held, status.State)
				pass(time.Millisecond)
				for _, offset := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
					s := newStore(t, service, offset, dynamostore.Options{})
					_, err = s.Renew(t.Context(), lease, ttl)
					require.ErrorIs(t, err, lockstore.ErrLost)
					status, err := s.Inspect(t.Context(), key)
					require.NoError(t, err)
					require.Equal(t, lockstore.Free, status.State)
				}
				_, err = other.Acquire(t.Context(), request(ttl))
				require.NoError(t, err)
			})
		}
	}
}

// trust = min(TTL, expires - Date) - 250 ms. A grant is made again if that would be less
// than TTL / 2 - 250 ms, or if the local clock is ahead by more than skew + 1 s.
func TestEdgesOfAGrant(t *testing.T) {
	const (
		ttl  = time.Minute
		skew = dynamostore.DefaultSkew
		ms   = time.Millisecond
	)
	for _, c := range []struct {
		offset   time.Duration // of the local clock from the Date
		trusted  time.Duration
		requests int
	}{
		{0, ttl, 1},
		{-skew, ttl, 1},
		{-skew - ms, ttl - ms, 1},
		{-skew - 10*time.Second, ttl - 10*time.Second, 1},
		{-skew - ttl/2, ttl / 2, 1},
		{-skew - ttl/2 - ms, ttl, 2},
		{skew + time.Second, ttl, 1},
		{skew + time.Second + ms, ttl, 2},
	} {
		for _, phase := range phases {
			bubble(t, fmt.Sprintf("F15 F16 M44 M45 M46 offset %v, phase %v", c.offset, phase), func(t *testing.T) {
				service := fakedynamo.New(table)
				pass(phase)
				s := newStore(t, service, c.offset-phase, dynamostore.Options{})
				lease, err := s.Acquire(t.Context(), request(ttl))
				require.NoError(t, err)
				require.Equal(t, c.requests, service.Requests(), "requests of a grant")
				require.Equal(t, c.trusted-250*ms, lease.TTL, "the trust in a grant")
			})
		}
	}
}

// A renewal is sent once more if its end is too early, by the clock that its reply has
// corrected: by more than min(skew, TTL / 4).
func TestEdgeOfARenewal(t *testing.T) {
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
		bubble(t, fmt.Sprintf("F16 M49 TTL %v, behind by %v", c.ttl, c.behind), func(t *testing.T) {
			service := fakedynamo.New(table)
			lease, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(c.ttl))
			require.NoError(t, err)
			pass(c.ttl)
			sent := service.Requests()
			_, err = newStore(t, service, -c.behind, dynamostore.Options{}).Renew(t.Context(), lease, c.ttl)
			require.NoError(t, err)
			require.Equal(t, sent+c.requests, service.Requests(), "requests of a renewal")
		})
	}
}
