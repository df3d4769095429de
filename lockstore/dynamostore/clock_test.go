package dynamostore_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// requireTrustIsOver waits until a new process is granted the key. Then the trust in the old lease, until end, must be over.
func requireTrustIsOver(t *testing.T, service *fakedynamo.Service, end time.Time) {
	t.Helper()
	pass(time.Until(end) - time.Second)
	client := dynamostore.ClientOver(service, fakeEndpoint)
	for {
		_, err := newStoreOver(t, client, 0, dynamostore.Options{}).Acquire(t.Context(), request(time.Minute))
		if err == nil {
			require.True(t, end.Before(time.Now()), "trusted for %v more when another owner was granted the key", time.Until(end))
			return
		}
		require.ErrorIs(t, err, lockstore.ErrRefused)
		pass(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // the service's Date changes: only then can a takeover begin to succeed
	}
}

// The first request of a process whose clock is wrong reads, so its lease has the right end and the right fence. So it is after the clock was
// set, also while a request was under way. DynamoDB may refuse the first signature, which the SDK corrects. With the right time one request is enough.
func TestWrongClock(t *testing.T) {
	const ttl = 30 * time.Second
	for _, offset := range []time.Duration{10 * time.Minute, 2 * time.Second, -2 * time.Second, -10 * time.Minute} {
		for _, of := range []string{"the process", "the process, later", "the process, during a request", "DynamoDB"} {
			bubble(t, fmt.Sprint("F15 F16 ", of, " ", offset), func(t *testing.T) {
				service, s := newFake(t)
				takes := func(most int) {
					t.Helper()
					before := service.Requests()
					lease := acquired(t, s, request(ttl))
					require.LessOrEqual(t, service.Requests()-before, most)
					row := rowsOf(service).get(t, key)
					require.InDelta(t, service.Now().Add(ttl+dynamostore.DefaultSkew).UnixMilli(), number(t, row, "expires"), 1101)
					require.InDelta(t, service.Now().UnixMicro(), int64(lease.Fence), 1.1e6)
					require.Greater(t, lease.TTL, ttl-time.Second)
					require.NoError(t, s.Release(t.Context(), lease))
					pass(2 * time.Second)
				}
				wrong := func() time.Time { return time.Now().Add(offset) }
				switch of {
				case "DynamoDB":
					service.Now = wrong
				case "the process, during a request":
					lease := held(t, s)
					service.Fault = func(fakedynamo.Request) fakedynamo.Fault {
						s.SetNow(wrong)
						return fakedynamo.Fault{}
					}
					require.NoError(t, s.Release(t.Context(), lease))
					service.Fault = nil
				case "the process, later":
					takes(2)
					fallthrough
				default:
					s.SetNow(wrong)
				}
				takes(3)
				takes(1)
			})
		}
	}
}

// The store never corrects a clock that is right, however slow the replies are.
func TestSlowRepliesDoNotMoveARightClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service, s := newFake(t)
		service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
			return fakedynamo.Fault{In: time.Duration(r.N%7) * 300 * time.Millisecond, Out: time.Duration(r.N%5) * 450 * time.Millisecond}
		}
		for range 50 {
			require.NoError(t, s.Release(t.Context(), held(t, s)))
			require.Zero(t, s.Correction())
		}
	})
}

// A process whose clock is ahead abandons an acquire: its own, one of another process, or none. The next fences are of the right time, and cost one
// request each.
func TestAbandonByAClockAhead(t *testing.T) {
	for _, what := range []string{"of another process", "of nobody", "its own"} {
		bubble(t, "F15 "+what, func(t *testing.T) {
			service, right := newFake(t)
			ahead, req := newStore(t, service, 4*time.Minute, dynamostore.Options{}), request(10*time.Minute)
			switch what {
			case "of another process":
				acquired(t, right, req)
			case "its own":
				acquired(t, ahead, req)
			}
			require.NoError(t, ahead.Abandon(t.Context(), key, req.Owner))
			pass(3 * time.Second)
			_, err := right.Acquire(t.Context(), req)
			require.ErrorIs(t, err, lockstore.ErrLost, "a late duplicate of the abandoned acquire takes no lock")
			costs(t, service, 1, 0, "the next", func() {
				require.InDelta(t, time.Now().UnixMicro(), int64(held(t, right).Fence), 1)
			})
		})
	}
}

// A renewal is the first request of a new process, so no reply has corrected its clock.
func TestRenewByANewProcess(t *testing.T) {
	const ttl = time.Minute
	for _, offset := range []time.Duration{0, time.Second, -3 * time.Second, 10 * time.Minute, -10 * time.Minute} {
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
					requireTrustIsOver(t, service, time.Now().Add(trusted.TTL))
				})
			}
		}
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

// A lease can be taken over, and is lost, at the first whole second >= expires + 1 s, where
// expires = time of the request + TTL + the holder's skew.
func TestEdgeOfTheTakeover(t *testing.T) {
	const ttl = 10 * time.Second
	for _, skew := range []time.Duration{dynamostore.DefaultSkew, 5 * time.Second} {
		for _, phase := range []time.Duration{0, time.Millisecond, 500 * time.Millisecond, 999 * time.Millisecond} { // of a second
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

// The attribute ttl is in seconds, at least a day after the last use. A row whose fence a clock far ahead has made stays until the time of this
// fence, whatever is written since: otherwise the next fence would be smaller. The row of work that goes on stays for as long as that of work that
// has just started, and this takes no more requests but once a day.
func TestSweepTime(t *testing.T) {
	for _, ahead := range []time.Duration{0, 10 * 24 * time.Hour} {
		bubble(t, fmt.Sprint("F15 F20 F26 a fence that is ahead by ", ahead), func(t *testing.T) {
			service, s := newFake(t)
			rows, least := rowsOf(service), time.Now().Add(ahead)
			if ahead > 0 {
				rows.put(t, key, item{"lastFence": n(strconv.FormatInt(least.UnixMicro(), 10)), "ttl": n(strconv.FormatInt(least.Unix(), 10))})
			}
			check := func(what string, err error, used time.Duration) {
				t.Helper()
				require.NoError(t, err, what)
				row := rows.get(t, key)
				swept, until, fence := time.Unix(number(t, row, "ttl"), 0), time.Now().Add(used), time.UnixMicro(number(t, row, fenceOf(row)))
				require.False(t, fence.Before(least), "the fence never falls")
				if until.Before(fence) {
					until = fence
				}
				require.False(t, swept.Before(until.Add(24*time.Hour)), "M37 M38 %s: %v", what, swept)
				require.True(t, swept.Before(until.Add(24*time.Hour+5*time.Second)), "%s: %v", what, swept)
			}
			lease := acquired(t, s, request(time.Hour))
			check("Acquire", nil, time.Hour)
			_, err := s.Renew(t.Context(), lease, 2*time.Hour)
			check("Renew", err, 2*time.Hour)
			waiter := join(t, s)
			check("a place", nil, 2*time.Hour)
			check("Release, which hands over", s.Release(t.Context(), lease), lockstore.TurnTime)
			lease, err = s.Acquire(t.Context(), waiter)
			check("Acquire of a hand-over", err, time.Minute)
			_, err = s.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: lease.Fence, OpenAtOnce: true})
			check("Revoke", err, 0)
			lease = acquired(t, s, request(time.Hour))
			check("MarkStarted", s.MarkStarted(t.Context(), lease), lockstore.StartMarkTime)
			before := service.Requests()
			for range 3 * 24 {
				pass(time.Hour)
				_, err := s.Renew(t.Context(), lease, 2*time.Hour)
				require.NoError(t, err)
				row := rows.get(t, key)
				end := time.UnixMilli(number(t, row, "expires"))
				require.False(t, time.Unix(number(t, row, "ttl"), 0).Before(end.Add(lockstore.StartMarkTime)), "%v", end)
				require.Equal(t, row["ttl"], row["started"])
			}
			require.LessOrEqual(t, service.Requests()-before, 3*(24+3))
			check("Complete", s.Complete(t.Context(), lease, nil, 3*time.Hour), 27*time.Hour)
			pass(4 * time.Hour)
			check("Release", s.Release(t.Context(), held(t, s)), 0)
			check("Abandon", s.Abandon(t.Context(), key, lockstore.NewOwner()), 0)
			require.NoError(t, s.Abandon(t.Context(), "account/8", lockstore.NewOwner()))
			require.NotNil(t, service.Row("account/8")["ttl"], "the row of an abandon is deleted too")
		})
	}
}
