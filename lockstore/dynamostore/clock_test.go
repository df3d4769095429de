package dynamostore_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
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
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
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

// A grant with a wrong end costs one more write, which corrects the fence, too, and a line in the
// log.
func TestGrantIsCorrected(t *testing.T) {
	const ttl = 30 * time.Second
	for name, offset := range map[string]time.Duration{"F15 ahead": 10 * time.Minute, "F16 behind": -10 * time.Minute} {
		for _, earlier := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s, earlier grant %v", name, earlier), func(t *testing.T) {
				service := fakedynamo.New(table)
				r := fakeRows{service}
				before := int64(0)
				if earlier {
					// A fence far below the local time. Otherwise a refusal would correct a slow
					// clock first.
					before = time.Now().Add(-time.Hour).UnixMicro()
					r.put(t, key, item{"lastFence": n(strconv.FormatInt(before, 10)), "ttl": n("1")})
				}
				var log bytes.Buffer
				s := newStore(t, service, offset, dynamostore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				req := request(ttl)
				lease := acquired(t, s, req)

				require.Equal(t, 2, service.Requests(), "a grant and its correction")
				row := r.get(t, key)
				require.InDelta(t, time.Now().Add(ttl+dynamostore.DefaultSkew).UnixMilli(), number(t, row, "expires"), 1001)
				require.InDelta(t, time.Now().UnixMicro(), number(t, row, "fence"), 1.001e6)
				require.Equal(t, number(t, row, "fence"), int64(lease.Fence))
				require.Equal(t, ttl-dynamostore.Margin, lease.TTL)
				require.InDelta(t, -offset, s.Correction(), 1.001e9)
				require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("level=WARN")), log.String())
				require.NotContains(t, log.String(), string(req.Owner))

				require.NoError(t, s.Release(t.Context(), lease))
				pass(2 * time.Second)
				acquired(t, s, request(ttl))
				require.Equal(t, 4, service.Requests(), "with the corrected clock one request is enough")
			})
		}
	}
}

// brokenLog is a handler of slog that hangs.
type brokenLog struct {
	slog.Handler
	free chan struct{}
}

func (brokenLog) Enabled(context.Context, slog.Level) bool { return true }

func (b brokenLog) Handle(context.Context, slog.Record) error {
	<-b.free
	return nil
}

// The warning comes after the correction, and a logger that fails takes a second at most.
func TestABrokenLogCostsNoLease(t *testing.T) {
	bubble(t, "F81 it hangs", func(t *testing.T) {
		b := brokenLog{free: make(chan struct{})}
		defer close(b.free)
		service, began := fakedynamo.New(table), time.Now()
		s := newStore(t, service, time.Minute, dynamostore.Options{Logger: slog.New(b)})
		lease := acquired(t, s, request(30*time.Second))
		require.LessOrEqual(t, time.Since(began), time.Second)
		require.Equal(t, 2, service.Requests(), "a grant and its correction")
		require.NoError(t, s.Release(t.Context(), lease))
	})
}

// A call with a wrong clock corrects its grant. The request that does it is late, and the caller
// acquires again meanwhile. The late request must not end the lease of the second call.
func TestLateCorrectionLeavesTheNextLease(t *testing.T) {
	const ttl = 30 * time.Second
	for name, offset := range map[string]time.Duration{"F15 F26 ahead": time.Minute, "F16 F26 behind": -20 * time.Second} {
		bubble(t, name, func(t *testing.T) {
			service := fakedynamo.New(table)
			service.Fault = on(fakedynamo.Fault{In: 5 * time.Second}, 2)
			s := newStore(t, service, offset, dynamostore.Options{})
			req := request(ttl)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := s.Acquire(ctx, req)
			require.True(t, isUnknown(err), err)
			lease := acquired(t, s, req)
			require.Greater(t, lease.TTL, 6*time.Second)

			service.Wait()
			isRefused(t, newStore(t, service, 0, dynamostore.Options{}), request(ttl))
			require.NoError(t, s.Release(t.Context(), lease))
		})
	}
}

// If the local clock is wrong by 10 minutes, DynamoDB refuses the first signature. The SDK
// and the store each correct their clock.
func TestRefusedSignature(t *testing.T) {
	for name, offset := range map[string]time.Duration{"F15": -10 * time.Minute, "F16": 10 * time.Minute} {
		bubble(t, name, func(t *testing.T) {
			service := fakedynamo.New(table)
			service.Now = func() time.Time { return time.Now().Add(offset) }
			s := newStore(t, service, 0, dynamostore.Options{})
			lease := acquired(t, s, request(30*time.Second))
			require.Equal(t, 30*time.Second-dynamostore.Margin, lease.TTL)
			expires := number(t, fakeRows{service}.get(t, key), "expires")
			require.InDelta(t, service.Now().Add(30*time.Second+dynamostore.DefaultSkew).UnixMilli(), expires, 1101)
			require.NoError(t, s.Release(t.Context(), lease))
		})
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

// A process whose clock was ahead for once abandons a key whose acquire it has not sent. The next fence is of the
// right time.
func TestAbandonAfterAClockFarAhead(t *testing.T) {
	bubble(t, "F15", func(t *testing.T) {
		service, right := newFake(t)
		ahead := newStore(t, service, 10*24*time.Hour, dynamostore.Options{})
		other := request(time.Minute)
		other.Key = "another"
		require.NoError(t, ahead.Release(t.Context(), acquired(t, ahead, other)))
		require.NoError(t, right.Release(t.Context(), held(t, right)))
		pass(time.Hour)
		require.NoError(t, ahead.Abandon(t.Context(), key, lockstore.NewOwner()))
		pass(2 * time.Second)
		sent := service.Requests()
		require.InDelta(t, time.Now().UnixMicro(), int64(held(t, right).Fence), 1)
		require.Equal(t, sent+1, service.Requests())
	})
}

// A clock that is far ahead writes a fence, and its reply is lost. DynamoDB does not delete the row before the
// time of its fence, whatever is written since: otherwise the next fence would be smaller.
func TestRowStaysUntilTheTimeOfItsFence(t *testing.T) {
	const days = 10 * 24 * time.Hour
	check := func(t *testing.T, service *fakedynamo.Service) {
		t.Helper()
		row := fakeRows{service}.get(t, key)
		fence := time.UnixMicro(number(t, row, fenceOf(row)))
		require.Greater(t, fence, time.Now().Add(days-time.Hour), "the fence never falls")
		require.Greater(t, time.Unix(number(t, row, "ttl"), 0), fence.Add(23*time.Hour), dump(row))
	}
	bubble(t, "F15 F26 an abandon of its own acquire", func(t *testing.T) {
		service := fakedynamo.New(table)
		s := newStore(t, service, days, dynamostore.Options{})
		service.Fault = on(fakedynamo.Fault{In: 20 * time.Second}, 1)
		defer service.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req := request(time.Minute)
		_, err := s.Acquire(ctx, req)
		require.True(t, isUnknown(err), "%v", err)
		require.NoError(t, s.Abandon(t.Context(), key, req.Owner))
		check(t, service)
		service.Wait()
		status, err := s.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, lockstore.Free, status.State)
		require.NoError(t, s.Release(t.Context(), held(t, s)))
		check(t, service)
	})
	bubble(t, "F15 F20 each request", func(t *testing.T) {
		service, s := newFake(t)
		fakeRows{service}.put(t, key, item{"lastFence": n(strconv.FormatInt(time.Now().Add(days).UnixMicro(), 10)), "ttl": n(strconv.FormatInt(time.Now().Add(2*days).Unix(), 10))})
		step := func(err error) {
			t.Helper()
			require.NoError(t, err)
			check(t, service)
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
