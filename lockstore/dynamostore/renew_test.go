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
						require.Equal(t, sent+1, service.Requests())
					}
					requireTrustIsOver(t, service, time.Now().Add(trusted.TTL), dynamostore.Options{})
				})
			}
		}
	}
}

// Neither a clock that is set back between the two writes of a renewal, nor a failed
// second write, shortens the lease or the trust of the first write.
func TestSecondWriteOfARenewal(t *testing.T) {
	lost := fakedynamo.Fault{LoseReply: errReset}
	for name, c := range map[string]struct {
		back  time.Duration
		fault fakedynamo.Fault
	}{
		"F17 the clock is set back":                           {time.Hour, fakedynamo.Fault{}},
		"F17 F24 the clock is set back, and replies are lost": {time.Hour, lost},
		"F31 the second write is throttled":                   {0, throttled},
		"F24 the replies to the second write are lost":        {0, lost},
	} {
		bubble(t, name, func(t *testing.T) {
			service, first := newFake(t)
			lease := held(t, first)
			pass(30 * time.Second)
			s := newStore(t, service, 0, dynamostore.Options{})
			readings := 0
			s.SetNow(func() time.Time {
				now := time.Now().Add(-15 * time.Second)
				if readings++; readings > 3 { // one for the end, one before and one after the first request
					now = now.Add(-c.back)
				}
				return now
			})
			service.Fault = from(3, c.fault)
			trusted, err := s.Renew(t.Context(), lease, time.Minute)
			require.NoError(t, err)
			require.Greater(t, trusted.TTL, 40*time.Second)
			service.Fault = nil
			pass(trusted.TTL)
			isRefused(t, newStore(t, service, 0, dynamostore.Options{}), request(time.Minute))
		})
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
			abandon := lockstore.Lease{Key: key, Owner: req.Owner}
			require.NoError(t, newStore(t, service, 4*time.Minute, dynamostore.Options{}).Release(t.Context(), abandon))
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
				_, err := other.Acquire(t.Context(), request(ttl))
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
			lease := acquired(t, newStore(t, service, 0, dynamostore.Options{}), request(c.ttl))
			pass(c.ttl)
			sent := service.Requests()
			_, err := newStore(t, service, -c.behind, dynamostore.Options{}).Renew(t.Context(), lease, c.ttl)
			require.NoError(t, err)
			require.Equal(t, sent+c.requests, service.Requests(), "requests of a renewal")
		})
	}
}

// The clock of the holder is ahead, so a renewal takes two requests. What others are granted in between is not renewed.
func TestTakeoverInsideARenewal(t *testing.T) {
	for _, most := range []int{1, 2} {
		bubble(t, fmt.Sprintf("F15 MaxHolders %d", most), func(t *testing.T) {
			service, s := newFake(t)
			lease := acquired(t, s, request(time.Minute))
			pass(59 * time.Second)
			taker := request(time.Minute)
			taker.MaxHolders = most
			writes := 0
			service.Fault = func(fakedynamo.Request) (f fakedynamo.Fault) {
				if writes++; writes == 2 {
					service.Fault = nil
					pass(10 * time.Second)
					acquired(t, s, taker)
				}
				return f
			}
			_, err := newStore(t, service, 10*time.Second, dynamostore.Options{}).Renew(t.Context(), lease, time.Minute)
			require.ErrorIs(t, err, lockstore.ErrLost)
			require.GreaterOrEqual(t, writes, 2)
		})
	}
}
