package guard

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/verifyrecord"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func TestWithMaxHolders(t *testing.T) {
	ctx := context.Background()
	on("as many as it says hold the key at once, each with a seat of its own", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		g := b.WithMaxHolders(3)
		var mu sync.Mutex
		seats, most, order := map[int]bool{}, 0, []int(nil)
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				pass(time.Duration(i) * time.Millisecond)
				assert.NoError(t, g.Do(ctx, "k", func(_ context.Context, lock Lock) error {
					mu.Lock()
					assert.False(t, seats[lock.Seat], "seat %d twice", lock.Seat)
					seats[lock.Seat] = true
					most, order = max(most, len(seats)), append(order, i)
					mu.Unlock()
					pass(time.Second + time.Duration(i%3)*100*time.Millisecond)
					mu.Lock()
					delete(seats, lock.Seat)
					mu.Unlock()
					return nil
				}))
			})
		}
		all.Wait()
		require.Equal(t, 3, most)
		require.True(t, slices.IsSorted(order), "served in the order %v", order)
		for _, r := range b.reports {
			require.Equal(t, 3, r.MaxHolders)
			require.Less(t, r.Seat, 3)
		}
		b.free(t, "k")
	})
	on("F57 one writer or many readers, in the order of their arrival", t, newBench, Options{Wait: time.Minute}, func(t *testing.T, b *bench) {
		readers := b.WithMaxHolders(lockstore.MaxHolders)
		var mu sync.Mutex
		var order []string
		reading, writing := 0, false
		read := func(name string) {
			assert.NoError(t, readers.Do(ctx, "k", func(context.Context, Lock) error {
				mu.Lock()
				order, reading = append(order, name), reading+1
				assert.False(t, writing)
				mu.Unlock()
				pass(time.Second)
				mu.Lock()
				reading--
				mu.Unlock()
				return nil
			}))
		}
		write := func(name string) {
			assert.NoError(t, b.Do(ctx, "k", func(context.Context, Lock) error {
				mu.Lock()
				order, writing = append(order, name), true
				assert.Zero(t, reading)
				mu.Unlock()
				pass(time.Second)
				mu.Lock()
				writing = false
				mu.Unlock()
				return nil
			}))
		}
		began := time.Now()
		var all sync.WaitGroup
		for _, one := range []func(){
			func() { read("r1") }, func() { read("r2") }, func() { write("w1") }, func() { read("r3") }, func() { read("r4") }, func() { write("w2") },
		} {
			all.Go(one)
			pass(time.Millisecond)
		}
		all.Wait()
		require.Equal(t, []string{"r1", "r2", "w1"}, order[:3])
		require.ElementsMatch(t, []string{"r3", "r4"}, order[3:5], "a release that makes room for two hands over to both")
		require.Equal(t, "w2", order[5])
		require.Less(t, time.Since(began), 4*time.Second+100*time.Millisecond)
		b.free(t, "k")
	})
	on("what it shares with the guard that it was made of", t, newBench, Options{}, func(t *testing.T, b *bench) {
		g := b.WithMaxHolders(2)
		require.NoError(t, g.Do(ctx, "k", func(ctx context.Context, _ Lock) error {
			require.IsType(t, &LockInvalid{}, b.Do(ctx, "k", neverRuns(t)), "F51: a run that would wait for itself")
			b.Shutdown()
			require.ErrorIs(t, context.Cause(ctx), ErrShutdown)
			return nil
		}))
		require.IsType(t, &LockDeadline{}, g.Do(ctx, "k", neverRuns(t)))
		require.Equal(t, 1, b.MaxHolders())
		require.Equal(t, 2, g.MaxHolders())
		require.Zero(t, (*Guard)(nil).MaxHolders())
	})
	t.Run("F48 F51 out of its bounds, and where the work has to be alone", func(t *testing.T) {
		b := newBench(t, Options{})
		for n, says := range map[int]string{0: "MaxHolders is 0; want 1 to 64", -1: "MaxHolders is -1", 65: "MaxHolders is 65; want 1 to 64"} {
			g := b.WithMaxHolders(n)
			require.ErrorContains(t, g.Do(ctx, "k", neverRuns(t)), says)
			_, err := g.Acquire(ctx, LeaseRequest{Key: "k", TTL: time.Minute})
			require.ErrorContains(t, err, says)
			_, err = Wrap(g, func(context.Context, int) (string, error) { return "k", nil }, Handler[int, int](nil)).Handle(ctx, 1)
			require.ErrorContains(t, err, says)
		}
		require.ErrorIs(t, (*Guard)(nil).WithMaxHolders(2).Validate(), errNoGuard)
		g := b.WithMaxHolders(2)
		require.ErrorContains(t, g.DoAll(ctx, []string{"k"}, nil2), "MaxHolders (boot: LOCK_MAX_HOLDERS) is 2; DoAll wants 1")
		require.ErrorContains(t, g.DoOnce(ctx, "k", OnceOptions{}, func(context.Context, Lock) (Completion, error) { return Completion{}, nil }), "MaxHolders (boot: LOCK_MAX_HOLDERS) is 2; DoOnce wants 1")
		_, err := g.WithCooldown(time.Minute)
		require.ErrorContains(t, err, "MaxHolders (boot: LOCK_MAX_HOLDERS) is 2; a cooldown wants 1")
		require.Empty(t, b.store.requests)
	})
	bubble("the number and the seat are in the log", t, func(t *testing.T) {
		var out bytes.Buffer
		g, err := New(memstore.New(nil), Options{Observe: LogReports(slog.New(slog.NewJSONHandler(&out, nil)))})
		require.NoError(t, err)
		require.NoError(t, g.Do(ctx, "k", nothing))
		require.NotContains(t, out.String(), "max_holders")
		require.NoError(t, g.WithMaxHolders(2).Do(ctx, "k", func(ctx context.Context, _ Lock) error {
			out.Reset()
			return g.WithMaxHolders(2).Do(context.Background(), "k", nothing)
		}))
		require.Contains(t, out.String(), `"max_holders":2,"seat":1`)
	})
}

func nil2(context.Context, []Lock) error { return nil }

// semaphore is a world of processes that freeze and die, and share one key.
type semaphore struct {
	t      *testing.T
	store  *lockstore.Store
	mu     sync.Mutex
	counts map[string]int
}

// semaphoreProcess is one process: its guard, and its way to the store, which stands still while
// it is frozen, and ends when it dies.
type semaphoreProcess struct {
	driver.Driver
	*semaphore
	*Guard
	rng    *rand.Rand
	end    context.Context // of the process
	frozen time.Time       // until then
}

func (p *semaphoreProcess) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	for {
		p.mu.Lock()
		still := time.Until(p.frozen)
		p.mu.Unlock()
		if p.end.Err() != nil {
			return driver.Answer{}, fmt.Errorf("%w: dead", lockstore.ErrUnavailable)
		}
		if still <= 0 {
			break
		}
		pass(still)
	}
	return p.Driver.Do(ctx, key, r)
}

func (p *semaphoreProcess) freeze(d time.Duration) {
	p.mu.Lock()
	p.counts["freezes"]++
	p.frozen = time.Now().Add(d)
	p.mu.Unlock()
	pass(d)
}

// lives takes the key again and again until the process dies.
func (p *semaphoreProcess) lives(n int) {
	for p.end.Err() == nil {
		_ = p.Guard.WithMaxHolders(n).Do(p.end, "k", func(ctx context.Context, lock Lock) error {
			for range p.rng.IntN(5) {
				pass(time.Duration(p.rng.Int64N(int64(time.Second))))
				if p.rng.IntN(20) == 0 {
					p.freeze(time.Duration(p.rng.Int64N(int64(8 * time.Second))))
				}
				if ctx.Err() != nil {
					p.count("stopped")
					return nil
				}
				p.mustHold(lock, n)
			}
			return nil
		})
		pass(time.Duration(p.rng.Int64N(int64(500 * time.Millisecond))))
	}
}

func (s *semaphore) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// mustHold requires that the store counts a run whose context is open, and no more runs than it may.
func (s *semaphore) mustHold(lock Lock, n int) {
	a, err := s.store.Driver().Do(context.Background(), "k", driver.Request{Kind: driver.Inspect})
	require.NoError(s.t, err)
	held, least, seats := 0, n, map[int]bool{}
	for _, h := range a.Status.Holders {
		least = min(least, h.MaxHolders)
		if seats[h.Seat] = true; h.Fence == lock.Fence && h.Seat == lock.Seat {
			held++
		}
	}
	if held != 1 || len(a.Status.Holders) > least || len(seats) != len(a.Status.Holders) {
		s.t.Errorf("P1 P2: %+v works, and the store has %+v", lock, a.Status.Holders)
	}
	s.count(fmt.Sprint(len(a.Status.Holders), " at once"))
}

// TestSemaphore lets processes that freeze and die share a key, and a new one take the place of each
// that dies. When work finds its context open, its lease is one of those that the store counts, and the
// store never counts more than the smallest number.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./guard -run TestSemaphore replays one seed.
func TestSemaphore(t *testing.T) {
	const full = 100
	first, seeds := verifyrecord.Seed(t, 3, full)
	for name, numbers := range map[string][]int{"3": {3}, "2": {2}, "a deployment from 2 to 4": {2, 4}, "readers and writers": {1, lockstore.MaxHolders, lockstore.MaxHolders}} {
		t.Run(name, func(t *testing.T) {
			total := map[string]int{}
			for seed := first; seed < first+uint64(seeds); seed++ {
				synctest.Test(t, func(t *testing.T) {
					s := &semaphore{t: t, store: memstore.New(nil), counts: total}
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
					defer cancel()
					var all sync.WaitGroup
					for id := range uint64(8) {
						all.Go(func() {
							for life := uint64(0); ctx.Err() == nil; life++ {
								p := &semaphoreProcess{semaphore: s, rng: rand.New(rand.NewPCG(seed, id<<32|life))}
								end, dies := context.WithTimeout(ctx, time.Duration(p.rng.Int64N(int64(time.Minute))))
								p.end = end
								var err error
								p.Guard, err = New(s.store.WrapDriver(func(d driver.Driver) driver.Driver { p.Driver = d; return p }), Options{TTL: 4 * time.Second, Wait: 10 * time.Second})
								require.NoError(t, err)
								p.lives(numbers[int(id+life)%len(numbers)])
								dies()
								s.count("deaths")
							}
						})
					}
					all.Wait()
					pass(4*time.Second + (lockstore.MaxTurns+1)*lockstore.Turn)
					lease, err := s.store.Acquire(context.Background(), lockstore.Request{Key: "k", Owner: "last", TTL: time.Second})
					require.NoError(t, err, "the key is not free in the end")
					require.Zero(t, lease.Seat)
				})
			}
			t.Log(total)
			if seeds >= full { // a few seeds may miss one of these
				for _, what := range []string{"freezes", "deaths", "stopped", "2 at once"} {
					require.Positive(t, total[what], what)
				}
			}
		})
	}
}
