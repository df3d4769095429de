package dynamostore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

const (
	key = "account/7"
	// patience is how long after a dead holder's TTL others may have to wait.
	patience = 2*dynamostore.DefaultSkew + 2*time.Second
)

// newStore opens a store on the fake whose local clock is off by offset.
func newStore(t testing.TB, service *fakedynamo.Service, offset time.Duration, opt dynamostore.Options) *dynamostore.Store {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := dynamostore.New(dynamostore.ClientOver(service, fakeEndpoint, 0), table, opt)
	require.NoError(t, err)
	s.SetNow(func() time.Time { return time.Now().Add(offset) })
	return s
}

func request(ttl time.Duration) lockstore.Request {
	return lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: ttl}
}

// pass lets d of virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

func number(t testing.TB, row item, name string) int64 {
	t.Helper()
	v, ok := row[name].(*types.AttributeValueMemberN)
	require.True(t, ok, "%s in %s", name, dump(row))
	i, err := strconv.ParseInt(v.Value, 10, 64)
	require.NoError(t, err)
	return i
}

// A stamp that is off costs one release, which restores the fence that the
// grant replaced, and one acquire more, and a line in the log.
func TestStampIsCorrected(t *testing.T) {
	const ttl = 30 * time.Second
	for name, offset := range map[string]time.Duration{"F15 ahead": 10 * time.Minute, "F16 behind": -10 * time.Minute} {
		for _, earlier := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, earlier grant %v", name, earlier), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					service := fakedynamo.New(table)
					r := fakeRows{service}
					before := int64(0)
					if earlier {
						// A fence far below the local time, so that a slow clock does not learn
						// from a refusal first.
						before = time.Now().Add(-time.Hour).UnixMicro()
						r.put(t, key, item{"fence": n(strconv.FormatInt(before, 10))})
					}
					var restored int64
					service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
						if r.N == 3 {
							row := fakeRows{service}.get(t, key)
							restored = number(t, row, "fence")
							require.Nil(t, row["owner"])
						}
						return fakedynamo.Fault{}
					}
					var log bytes.Buffer
					s := newStore(t, service, offset, dynamostore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
					req := request(ttl)
					lease, err := s.Acquire(t.Context(), req)
					require.NoError(t, err)

					require.Equal(t, 3, service.Requests(), "a grant, a release and a grant")
					require.Equal(t, before, restored)
					row := r.get(t, key)
					require.InDelta(t, time.Now().Add(ttl).UnixMilli(), number(t, row, "expires"), 1001)
					require.InDelta(t, time.Now().UnixMicro(), number(t, row, "fence"), 1.001e6)
					require.Equal(t, number(t, row, "fence"), int64(lease.Fence))
					require.Equal(t, ttl-dynamostore.Margin, lease.TTL)
					require.InDelta(t, -offset, s.Correction(), 1.001e9)
					require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("level=WARN")), log.String())
					require.NotContains(t, log.String(), string(req.Owner))

					require.NoError(t, s.Release(t.Context(), lease))
					pass(2 * time.Second)
					_, err = s.Acquire(t.Context(), request(ttl))
					require.NoError(t, err)
					require.Equal(t, 5, service.Requests(), "the corrected clock stamps right at once")
				})
			})
		}
	}
}

// A service that is 10 minutes off the whole client refuses its signatures at
// first: the SDK and the store correct themselves independently.
func TestRefusedSignature(t *testing.T) {
	for name, offset := range map[string]time.Duration{"F15": -10 * time.Minute, "F16": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				service.Now = func() time.Time { return time.Now().Add(offset) }
				s := newStore(t, service, 0, dynamostore.Options{})
				lease, err := s.Acquire(t.Context(), request(30*time.Second))
				require.NoError(t, err)
				require.Equal(t, 30*time.Second-dynamostore.Margin, lease.TTL)
				expires := number(t, fakeRows{service}.get(t, key), "expires")
				require.InDelta(t, service.Now().Add(30*time.Second).UnixMilli(), expires, 1101)
				require.NoError(t, s.Release(t.Context(), lease))
			})
		})
	}
}

// A clock that is right is never corrected, however slow the replies are.
func TestSlowRepliesDoNotMoveARightClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := fakedynamo.New(table)
		service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
			return fakedynamo.Fault{In: time.Duration(r.N%7) * 300 * time.Millisecond, Out: time.Duration(r.N%5) * 450 * time.Millisecond}
		}
		s := newStore(t, service, 0, dynamostore.Options{})
		for range 50 {
			lease, err := s.Acquire(t.Context(), request(time.Minute))
			require.NoError(t, err)
			require.NoError(t, s.Release(t.Context(), lease))
			require.Zero(t, s.Correction())
		}
	})
}

// Another's clock that is far ahead must not make a live lease look expired,
// and a dead holder blocks others for TTL + 2 skew + 2 s at most.
func TestOtherClocksDoNotTakeEarly(t *testing.T) {
	const ttl = 30 * time.Second
	for _, holder := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute, 1500 * time.Millisecond, -1500 * time.Millisecond, -2900 * time.Millisecond} {
		for _, taker := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
			t.Run(fmt.Sprintf("F15 F16 M02 M03 holder %v taker %v", holder, taker), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					service := fakedynamo.New(table)
					pass(700 * time.Millisecond) // Date is behind by as much
					start := time.Now()
					lease, err := newStore(t, service, holder, dynamostore.Options{}).Acquire(t.Context(), request(ttl))
					require.NoError(t, err)
					require.Greater(t, lease.TTL, ttl/2)
					for {
						// A fresh process each time: it has learned nothing.
						waiter := newStore(t, service, taker, dynamostore.Options{})
						status, err := waiter.Inspect(t.Context(), key)
						require.NoError(t, err)
						next, err := newStore(t, service, taker, dynamostore.Options{}).Acquire(t.Context(), request(ttl))
						waited := time.Since(start)
						require.Equal(t, status.Held, err != nil, "Inspect agrees with Acquire")
						if err == nil {
							require.Greater(t, next.Fence, lease.Fence)
							require.GreaterOrEqual(t, waited, lease.TTL)
							require.LessOrEqual(t, waited, ttl+patience+50*time.Millisecond)
							return
						}
						var held *lockstore.HeldError
						require.ErrorAs(t, err, &held)
						require.LessOrEqual(t, waited, ttl+patience)
						require.LessOrEqual(t, waited+held.Remaining, ttl+patience+time.Second)
						pass(50 * time.Millisecond)
					}
				})
			})
		}
	}
}

// F29: the trusted time is counted from before the request, however long the
// request or its reply took.
func TestSlowRequestsAndReplies(t *testing.T) {
	const ttl = 10 * time.Second
	for _, part := range []float64{0.5, 0.9, 1.1} {
		latency := time.Duration(part * float64(ttl))
		for name, fault := range map[string]fakedynamo.Fault{"in": {In: latency}, "out": {Out: latency}} {
			t.Run(fmt.Sprintf("F29 M20 %.1f TTL on the way %s", part, name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					service := fakedynamo.New(table)
					service.Fault = func(fakedynamo.Request) fakedynamo.Fault { return fault }
					s := newStore(t, service, 0, dynamostore.Options{})
					start := time.Now()
					lease, err := s.Acquire(t.Context(), request(ttl))
					require.NoError(t, err)
					end := start.Add(lease.TTL)

					service.Fault = nil
					for {
						next, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(ttl))
						if err == nil {
							require.Greater(t, next.Fence, lease.Fence)
							break
						}
						require.ErrorIs(t, err, lockstore.ErrHeld)
						pass(50 * time.Millisecond)
					}
					require.True(t, end.Before(time.Now()), "trusted for %v more when another was granted", time.Until(end))
					require.Zero(t, s.Correction())
				})
			})
		}
	}
}

// F17: the wall clock steps while the lease is held. A renewal confirms the
// lease for no longer than the service does, or says that it is lost.
func TestWallClockSteps(t *testing.T) {
	const ttl = 30 * time.Second
	for _, step := range []time.Duration{-time.Hour, -20 * time.Second, -3 * time.Second, 3 * time.Second, time.Hour} {
		t.Run(fmt.Sprintf("F17 %v", step), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := fakedynamo.New(table)
				s := newStore(t, service, 0, dynamostore.Options{})
				lease, err := s.Acquire(t.Context(), request(ttl))
				require.NoError(t, err)
				trusted := time.Now().Add(lease.TTL)

				s.SetNow(func() time.Time { return time.Now().Add(step) })
				lost := false
				for range 6 {
					pass(ttl / 3)
					asked := time.Now()
					left, err := s.Renew(t.Context(), lease, ttl)
					if errors.Is(err, lockstore.ErrLost) {
						lost = true
						break
					}
					require.NoError(t, err)
					require.LessOrEqual(t, left, ttl-dynamostore.Margin)
					trusted = asked.Add(left)
				}
				require.Equal(t, step >= ttl, lost, "only a step over the end of the lease loses it")
				for {
					_, err := newStore(t, service, 0, dynamostore.Options{}).Acquire(t.Context(), request(ttl))
					if err == nil {
						break
					}
					require.ErrorIs(t, err, lockstore.ErrHeld)
					pass(50 * time.Millisecond)
				}
				if !lost {
					require.True(t, trusted.Before(time.Now()), "still trusted when another was granted")
				}
			})
		})
	}
}

// Holders with clocks that are off, drift and step, over a network that is
// slow, loses replies and delivers late duplicates: no two of them may trust
// their lease at the same time, and fences grow in the order of trust.
func TestTrustNeverOverlaps(t *testing.T) {
	seeds := 100
	if testing.Short() {
		seeds = 30
	}
	var total struct{ grants, deaths, renewals, unknown int }
	for seed := range seeds {
		w := &world{rand: rand.New(rand.NewPCG(uint64(seed), 1))}
		synctest.Test(t, func(t *testing.T) { w.run(t, seed) })
		total.grants += w.grants
		total.deaths += w.deaths
		total.renewals += w.renewals
		total.unknown += w.unknown
		if t.Failed() {
			return
		}
	}
	t.Logf("%d seeds: %+v", seeds, total)
	// A run without these shows nothing.
	require.Greater(t, total.grants, 15*seeds)
	require.Greater(t, total.deaths, seeds)
	require.Greater(t, total.renewals, seeds)
	require.Greater(t, total.unknown, seeds)
}

type world struct {
	mu   sync.Mutex
	rand *rand.Rand
	cut  int // replies still to lose

	trusted                           []span
	grants, deaths, renewals, unknown int
}

// span is a time in which a client trusts its lease.
type span struct {
	client   int
	fence    lockstore.Fence
	from, to time.Time
}

func (w *world) float() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rand.Float64()
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.float() * float64(d)) }

func (w *world) run(t *testing.T, seed int) {
	const ttl = 6 * time.Second
	service := fakedynamo.New(table)
	service.Fault = func(fakedynamo.Request) fakedynamo.Fault {
		f := fakedynamo.Fault{In: w.upTo(100 * time.Millisecond), Out: w.upTo(100 * time.Millisecond)}
		p := w.float()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cut-- // replies are lost in rows, or the SDK's own attempts hide it
		switch {
		case w.cut >= 0:
			f.LoseReply = errors.New("connection reset by peer")
		case p < 0.05:
			f.In = time.Duration(w.rand.Float64() * 2 * float64(ttl))
		case p < 0.10:
			f.Out = time.Duration(w.rand.Float64() * 2 * float64(ttl))
		case p < 0.17:
			w.cut = w.rand.IntN(9)
		case p < 0.27:
			f.Repeat = time.Duration(w.rand.Float64() * 2 * float64(ttl))
		}
		return f
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 20*ttl)
	defer cancel()
	var clients sync.WaitGroup
	for id := range 3 {
		clients.Go(func() {
			offset := time.Duration((w.float() - 0.5) * 3 * float64(ttl))
			rate := 0.9 + 0.2*w.float() // F18
			clock := func() time.Time {
				return start.Add(offset + time.Duration(rate*float64(time.Since(start))))
			}
			for ctx.Err() == nil {
				// A process: it has learned nothing yet.
				s := newStore(t, service, 0, dynamostore.Options{})
				s.SetNow(clock)
				for range 1 + int(w.float()*4) {
					w.hold(ctx, s, id, rate, ttl)
					pass(w.upTo(ttl / 2))
				}
			}
		})
	}
	clients.Wait()
	service.Wait()

	for i, a := range w.trusted {
		for _, b := range w.trusted[i+1:] {
			if a.client != b.client && a.from.Before(b.to) && b.from.Before(a.to) {
				t.Errorf("seed %d: two trust their lease at once: %s and %s", seed, a.in(start), b.in(start))
			}
			if a.to.Before(b.from) && a.fence > b.fence || b.to.Before(a.from) && b.fence > a.fence {
				t.Errorf("seed %d: the fence fell: %s and %s", seed, a.in(start), b.in(start))
			}
		}
	}
}

func (s span) in(start time.Time) string {
	return fmt.Sprintf("client %d, fence %d, %v to %v", s.client, s.fence, s.from.Sub(start), s.to.Sub(start))
}

// hold is one acquisition as a guard makes it, or one that dies while holding.
func (w *world) hold(ctx context.Context, s *dynamostore.Store, id int, rate float64, ttl time.Duration) {
	var held *lockstore.HeldError
	req := request(ttl)
	asked := time.Now() // the guard counts from the owner's first request
	lease, err := s.Acquire(ctx, req)
	for i := 0; i < 3 && isUnknown(err); i++ {
		w.count(&w.unknown)
		lease, err = s.Acquire(ctx, req)
	}
	switch {
	case errors.As(err, &held):
		pass(w.upTo(time.Second))
		return
	case isUnknown(err):
		_ = s.Release(ctx, lockstore.Lease{Key: key, Owner: req.Owner}) // best effort, as the guard's
		return
	case err != nil:
		return
	}
	w.count(&w.grants)
	// The local clock that counts down runs at its own rate.
	w.trust(id, lease.Fence, asked.Add(time.Duration(float64(lease.TTL)/rate)))
	for w.float() < 0.5 {
		pass(w.upTo(ttl / 2))
		asked := time.Now()
		left, err := s.Renew(ctx, lease, ttl)
		if err != nil {
			return
		}
		w.count(&w.renewals)
		w.trust(id, lease.Fence, asked.Add(time.Duration(float64(left)/rate)))
	}
	if w.float() < 0.4 {
		w.count(&w.deaths)
		return // dies: only a takeover frees the key
	}
	pass(w.upTo(ttl / 2))
	released := time.Now()
	w.endTrust(id, lease.Fence, released)
	_ = s.Release(ctx, lease) // a lost reply is a dead holder
}

func isUnknown(err error) bool {
	for _, known := range []error{lockstore.ErrHeld, lockstore.ErrLost, lockstore.ErrInvalid, lockstore.ErrCorrupt, lockstore.ErrUnavailable} {
		if errors.Is(err, known) {
			return false
		}
	}
	return err != nil
}

func (w *world) count(n *int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*n++
}

// trust notes that the client trusts its lease, from when it knew to the end.
func (w *world) trust(id int, f lockstore.Fence, to time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); now.Before(to) {
		w.trusted = append(w.trusted, span{client: id, fence: f, from: now, to: to})
	}
}

// endTrust notes that the client stopped on its own.
func (w *world) endTrust(id int, f lockstore.Fence, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, s := range w.trusted {
		if s.client == id && s.fence == f && at.Before(s.to) {
			w.trusted[i].to = at
		}
	}
}
