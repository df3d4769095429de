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

// A lease that one process holds for a client is renewed through another, whose
// first request this is: no reply has corrected its clock.
func TestRenewByAFreshProcess(t *testing.T) {
	const ttl = time.Minute
	for _, offset := range []time.Duration{
		0, time.Second, -time.Second, 3 * time.Second, -3 * time.Second, 30 * time.Second, -30 * time.Second,
		2 * time.Minute, -2 * time.Minute, 5 * time.Minute, -5 * time.Minute, 10 * time.Minute, -10 * time.Minute,
	} {
		for _, phase := range []time.Duration{0, 700 * time.Millisecond} {
			for _, left := range []time.Duration{40 * time.Second, 2 * time.Second, dynamostore.Margin} {
				t.Run(fmt.Sprintf("F15 F16 M41 clock off by %v, phase %v, %v left", offset, phase, left), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						service := fakedynamo.New(table)
						pass(phase)
						lease, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(ttl))
						require.NoError(t, err)
						pass(ttl - left)
						sent := service.Requests()
						trusted, err := newStore(t, service, offset, dynamostore.Options{}).Renew(t.Context(), lease, ttl)
						require.NoError(t, err)
						require.Greater(t, trusted, ttl-2*time.Second)
						require.LessOrEqual(t, trusted, ttl-dynamostore.Margin)
						if offset == 0 {
							require.Equal(t, sent+1, service.Requests())
						}
						end := time.Now().Add(trusted)
						for {
							if _, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(ttl)); err == nil {
								break
							}
							pass(100 * time.Millisecond)
						}
						require.True(t, end.Before(time.Now()), "still trusted when another was granted")
					})
				})
			}
		}
	}
}

// Renew, Inspect and another's Acquire agree on the moment in which a lease is over.
func TestALeaseIsLostWhenItMayBeTakenOver(t *testing.T) {
	const ttl = 10 * time.Second
	for _, offset := range []time.Duration{0, 5 * time.Minute} {
		for _, over := range []bool{false, true} {
			t.Run(fmt.Sprintf("F09 clock off by %v, over %v", offset, over), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					service := fakedynamo.New(table)
					lease, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(ttl))
					require.NoError(t, err)
					end := ttl + dynamostore.DefaultSkew + time.Second
					if !over {
						end -= time.Millisecond
					}
					pass(end)
					s := newStore(t, service, offset, dynamostore.Options{})
					status, err := newStore(t, service, offset, dynamostore.Options{}).Inspect(t.Context(), key)
					require.NoError(t, err)
					require.Equal(t, !over, status.Held)
					_, err = s.Renew(t.Context(), lease, ttl)
					if over {
						require.ErrorIs(t, err, lockstore.ErrLost)
					} else {
						require.NoError(t, err)
					}
				})
			})
		}
	}
}

// F27: a renewal for less than what is left shortens neither the lease nor the trust in it.
func TestShortRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		s := newStore(t, service, 0, dynamostore.Options{})
		lease, err := s.Acquire(t.Context(), request(time.Minute))
		require.NoError(t, err)
		pass(5 * time.Second)
		left, err := s.Renew(t.Context(), lease, 10*time.Second)
		require.NoError(t, err)
		require.Equal(t, 55*time.Second-dynamostore.Margin, left)
		require.Equal(t, 2, service.Requests())
	})
}

// The writer's clock tolerance is in the row: others with another one wait for it.
func TestUsersWithDifferentSkews(t *testing.T) {
	const ttl = time.Minute
	for _, skews := range [][2]time.Duration{{time.Minute, time.Second}, {time.Second, time.Minute}} {
		for _, offset := range []time.Duration{0, -20 * time.Second} {
			for _, renewed := range []bool{false, true} {
				t.Run(fmt.Sprintf("F16 M42 skew %v clock off by %v, then skew %v, renewed by the second %v", skews[0], offset, skews[1], renewed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						service := fakedynamo.New(table)
						first := newStore(t, service, offset, dynamostore.Options{Skew: skews[0]})
						second := newStore(t, service, 0, dynamostore.Options{Skew: skews[1]})
						lease, err := first.Acquire(t.Context(), request(ttl))
						require.NoError(t, err)
						end := time.Now().Add(lease.TTL)
						if renewed {
							pass(time.Second)
							trusted, err := second.Renew(t.Context(), lease, ttl)
							require.NoError(t, err)
							end = time.Now().Add(trusted)
						}
						for {
							if _, err := second.Acquire(t.Context(), request(ttl)); err == nil {
								break
							}
							pass(100 * time.Millisecond)
						}
						require.True(t, end.Before(time.Now()), "trusted for %v more when another was granted", time.Until(end))
					})
				})
			}
		}
	}
}

// A withdrawal by a fresh process whose clock is ahead leaves a fence that costs
// the next ones nothing.
func TestWithdrawalWithAClockAhead(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("F15 M48 the acquire was applied %v", held), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				s := newStore(t, service, 0, dynamostore.Options{})
				req := request(time.Minute)
				before := lockstore.Lease{}
				if held {
					var err error
					before, err = s.Acquire(t.Context(), req)
					require.NoError(t, err)
				}
				pass(time.Second)
				withdrawal := lockstore.Lease{Key: key, Owner: req.Owner}
				require.NoError(t, newStore(t, service, 4*time.Minute, dynamostore.Options{}).Release(t.Context(), withdrawal))
				pass(2 * time.Second)
				sent := service.Requests()
				_, err := s.Acquire(t.Context(), req)
				require.ErrorIs(t, err, lockstore.ErrLost, "its own late request takes nothing")
				next, err := s.Acquire(t.Context(), request(time.Minute))
				require.NoError(t, err)
				require.Equal(t, sent+2, service.Requests(), "one request each")
				require.Greater(t, next.Fence, before.Fence)
				require.InDelta(t, time.Now().UnixMicro(), int64(next.Fence), 1)
			})
		})
	}
}
