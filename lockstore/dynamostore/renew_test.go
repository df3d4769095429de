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

// A renewal is the first request of a new process, so no reply has corrected its clock.
func TestRenewByANewProcess(t *testing.T) {
	const ttl = time.Minute
	for _, offset := range []time.Duration{
		0, time.Second, -time.Second, 3 * time.Second, -3 * time.Second, 30 * time.Second, -30 * time.Second, 10 * time.Minute, -10 * time.Minute,
	} {
		for _, phase := range []time.Duration{0, 700 * time.Millisecond} {
			for _, left := range []time.Duration{40 * time.Second, dynamostore.Margin, time.Millisecond - time.Second - dynamostore.DefaultSkew} {
				bubble(t, fmt.Sprintf("F15 F16 F74 M41 clock off by %v, phase %v, %v left", offset, phase, left), func(t *testing.T) {
					service := fakedynamo.New(table)
					pass(phase)
					lease := acquired(t, newStore(t, service, 0, dynamostore.Options{}), request(ttl))
					pass(ttl - left)
					sent := service.Requests()
					trusted, err := newStore(t, service, offset, dynamostore.Options{}).Renew(t.Context(), lease, ttl)
					require.NoError(t, err)
					require.Greater(t, trusted.TTL, ttl-2*time.Second)
					require.LessOrEqual(t, trusted.TTL, ttl-dynamostore.Margin)
					if offset == 0 && left > 0 {
						require.Equal(t, sent+2, service.Requests(), "a read and a write")
					}
					requireTrustIsOver(t, service, time.Now().Add(trusted.TTL), dynamostore.Options{})
				})
			}
		}
	}
}

// A call whose first write was applied, or whose acquire was granted before, never says that nothing was applied.
func TestAFailedSecondWriteIsUnknown(t *testing.T) {
	for name, offset := range map[string]time.Duration{"F15 ahead": 2 * time.Minute, "F16 behind": -2 * time.Minute, "sent again": 0} {
		bubble(t, name, func(t *testing.T) {
			service, s := newFake(t)
			req := request(time.Minute)
			if offset == 0 {
				acquired(t, s, req)
				pass(time.Second)
			}
			service.Fault = from(service.Requests()+2, throttled)
			_, err := newStore(t, service, offset, dynamostore.Options{}).Acquire(t.Context(), req)
			require.NotNil(t, fakeRows{service}.get(t, key)["owner"])
			require.True(t, isUnknown(err), err)
		})
	}
}

// An acquire that is sent again through a process with another skew gets what is left.
func TestRepeatThroughAnotherSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		req := request(time.Minute)
		first := acquired(t, newStore(t, service, 0, dynamostore.Options{}), req)
		pass(2 * time.Second)
		again := acquired(t, newStore(t, service, 0, dynamostore.Options{Skew: time.Minute}), req)
		require.Equal(t, first.Fence, again.Fence)
		require.Equal(t, 57*time.Second-dynamostore.Margin, again.TTL, "exact up to the whole seconds of Date")
	})
}

// A new process whose clock is ahead abandons an acquire. The next acquires still take one
// request each.
func TestAbandonWithAClockAhead(t *testing.T) {
	for _, applied := range []bool{false, true} {
		bubble(t, fmt.Sprintf("F15 M48 the acquire was applied %v", applied), func(t *testing.T) {
			service, s := newFake(t)
			req := request(10 * time.Minute) // live by the wrong clock, too
			before := lockstore.Lease{}
			if applied {
				before = acquired(t, s, req)
			}
			pass(time.Second)
			require.NoError(t, newStore(t, service, 4*time.Minute, dynamostore.Options{}).Abandon(t.Context(), key, req.Owner))
			pass(2 * time.Second)
			sent := service.Requests()
			_, err := s.Acquire(t.Context(), req)
			require.ErrorIs(t, err, lockstore.ErrLost, "a late duplicate of the abandoned acquire takes no lock")
			next := held(t, s)
			require.Equal(t, sent+2, service.Requests(), "one request each")
			require.Greater(t, next.Fence, before.Fence)
			require.InDelta(t, time.Now().UnixMicro(), int64(next.Fence), 1)
		})
	}
}

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
				lease := acquired(t, newStore(t, service, 0, dynamostore.Options{Skew: skew}), request(ttl))
				over := time.Now().Add(ttl + skew + time.Second)
				if whole := over.Truncate(time.Second); whole.Before(over) {
					over = whole.Add(time.Second)
				}
				pass(time.Until(over) - time.Millisecond)
				other := newStore(t, service, 0, dynamostore.Options{})
				isRefused(t, other, request(ttl))
				require.Equal(t, lockstore.Held, inspected(t, other).State)
				pass(time.Millisecond)
				for _, offset := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
					s := newStore(t, service, offset, dynamostore.Options{})
					_, err := s.Renew(t.Context(), lease, ttl)
					require.ErrorIs(t, err, lockstore.ErrLost)
					require.Equal(t, lockstore.Free, inspected(t, s).State)
				}
				acquired(t, other, request(ttl))
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
				lease := acquired(t, s, request(ttl))
				require.Equal(t, c.requests, service.Requests(), "requests of a grant")
				require.Equal(t, c.trusted-250*ms, lease.TTL, "the trust in a grant")
			})
		}
	}
}
