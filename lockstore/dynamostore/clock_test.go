package dynamostore_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

const (
	key = "account/7"
	// takeoverDelay is how long other owners may have to wait after a dead holder's TTL.
	takeoverDelay = 2*dynamostore.DefaultSkew + 2*time.Second
)

// newStore opens a store on the fake. Its local clock is wrong by offset.
func newStore(t testing.TB, service *fakedynamo.Service, offset time.Duration, opt dynamostore.Options) *dynamostore.Store {
	return newStoreOver(t, dynamostore.ClientOver(service, fakeEndpoint, 0), offset, opt)
}

// newStoreOver opens a store on a client. A test that opens thousands of stores shares the
// client: to make one takes longer than a request.
func newStoreOver(t testing.TB, client dynamostore.API, offset time.Duration, opt dynamostore.Options) *dynamostore.Store {
	s, err := dynamostore.New(client, table, opt)
	require.NoError(t, err)
	s.SetNow(func() time.Time { return time.Now().Add(offset) })
	return s
}

// newFake opens a store on a new fake.
func newFake(t testing.TB) (*fakedynamo.Service, *dynamostore.Store) {
	service := fakedynamo.New(table)
	return service, newStore(t, service, 0, dynamostore.Options{})
}

func request(ttl time.Duration) lockstore.Request {
	return lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl}
}

// held is a lease of a minute.
func held(t testing.TB, s *dynamostore.Store) lockstore.Lease {
	t.Helper()
	return acquired(t, s, request(time.Minute))
}

func acquired(t testing.TB, s *dynamostore.Store, req lockstore.Request) lockstore.Lease {
	t.Helper()
	lease, err := s.Acquire(t.Context(), req)
	require.NoError(t, err)
	return lease
}

// sharing returns the leases of n owners who hold the key at once.
func sharing(t testing.TB, s *dynamostore.Store, n int) (leases []lockstore.Lease) {
	t.Helper()
	for range n {
		req := request(time.Minute)
		req.MaxHolders = n
		leases = append(leases, acquired(t, s, req))
	}
	return leases
}

func isRefused(t testing.TB, s *dynamostore.Store, req lockstore.Request) {
	t.Helper()
	_, err := s.Acquire(t.Context(), req)
	require.ErrorIs(t, err, lockstore.ErrRefused)
}

// pass lets d of virtual time pass.
var pass = leasesim.Pass

// requireTrustIsOver waits until a new process with opt is granted the key. Then the trust in
// the old lease, until end, must be over.
func requireTrustIsOver(t *testing.T, service *fakedynamo.Service, end time.Time, opt dynamostore.Options) lockstore.Lease {
	t.Helper()
	pass(time.Until(end) - time.Second)
	client := dynamostore.ClientOver(service, fakeEndpoint, 0)
	for {
		next, err := newStoreOver(t, client, 0, opt).Acquire(t.Context(), request(time.Minute))
		if err == nil {
			require.True(t, end.Before(time.Now()), "trusted for %v more when another owner was granted the key", time.Until(end))
			return next
		}
		require.ErrorIs(t, err, lockstore.ErrRefused)
		passToDate()
	}
}

// passToDate lets time pass until the service's Date changes: only then can a takeover begin
// to succeed.
func passToDate() { pass(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) }

func number(t testing.TB, row item, name string) int64 {
	t.Helper()
	v, ok := row[name].(*types.AttributeValueMemberN)
	require.True(t, ok, "%s in %s", name, dump(row))
	i, err := strconv.ParseInt(v.Value, 10, 64)
	require.NoError(t, err)
	return i
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
					row := fakeRows{service}.get(t, key)
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

// bubble is t.Run in virtual time.
func bubble(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
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
			sent := service.Requests()
			require.InDelta(t, time.Now().UnixMicro(), int64(held(t, right).Fence), 1)
			require.Equal(t, sent+1, service.Requests())
		})
	}
}

// The row has a fence that a clock far ahead has made. DynamoDB does not delete it before the time of this
// fence, whatever is written since: otherwise the next fence would be smaller.
func TestRowStaysUntilTheTimeOfItsFence(t *testing.T) {
	const days = 10 * 24 * time.Hour
	bubble(t, "F15 F20 F26", func(t *testing.T) {
		service, s := newFake(t)
		fakeRows{service}.put(t, key, item{"lastFence": n(strconv.FormatInt(time.Now().Add(days).UnixMicro(), 10)), "ttl": n(strconv.FormatInt(time.Now().Add(2*days).Unix(), 10))})
		step := func(err error) {
			t.Helper()
			require.NoError(t, err)
			row := fakeRows{service}.get(t, key)
			fence := time.UnixMicro(number(t, row, fenceOf(row)))
			require.Greater(t, fence, time.Now().Add(days-time.Hour), "the fence never falls")
			require.Greater(t, time.Unix(number(t, row, "ttl"), 0), fence.Add(23*time.Hour), dump(row))
			pass(time.Second)
		}
		lease := held(t, s)
		step(nil)
		_, err := s.Renew(t.Context(), lease, 2*time.Minute)
		step(err)
		waiter := join(t, s)
		step(nil)
		step(s.Release(t.Context(), lease)) // hands over
		lease, err = s.Acquire(t.Context(), waiter)
		step(err)
		_, err = s.Revoke(t.Context(), lockstore.RevokeRequest{Key: key, Fence: lease.Fence, OpenAtOnce: true})
		step(err)
		step(s.Complete(t.Context(), held(t, s), []byte("result"), time.Minute))
		pass(2 * time.Minute)
		step(s.Release(t.Context(), held(t, s)))
		step(s.Abandon(t.Context(), key, lockstore.NewOwner()))
	})
}
