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

// An arrival has taken a place, and then the write that grants the key is throttled. Nothing says that nothing was applied.
func TestAFailedSecondWriteIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		held(t, s)
		pass(time.Minute + takeoverDelay)
		first := service.Requests() + 1
		service.Fault = on(throttled, first+1, first+2, first+3) // of each attempt of the second one
		_, err := s.Acquire(t.Context(), queued(1))
		require.True(t, isUnknown(err), "%v", err)
		require.ErrorIs(t, err, lockstore.ErrContended)
	})
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
