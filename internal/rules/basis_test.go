package rules_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// An answer by a guess of the time that needs no stamp is the answer by the right time, or a refusal. A guess
// that is behind may also take a lease for live whose end nobody has used yet.
func TestGuess(t *testing.T) {
	compared := map[driver.Outcome]int{}
	for seed := range uint64(1500) {
		random := rand.New(rand.NewPCG(seed, 2))
		k, at := newKey(t), 0.0
		for range 30 {
			at += random.Float64() * []float64{0, 0.2, 3, 6}[random.IntN(4)]
			r := randomRequest(random, k.State)
			next, _, want, _ := k.Decide(k.State, rules.At(sec(at)), r)
			for _, off := range []float64{-100, -4, -0.1, 0, 0.1, 4, 100} {
				_, _, got, basis := k.Decide(k.State, guess(at+off), r)
				if basis >= rules.OnStamp || got.Outcome == driver.Refused || r.Kind == driver.Inspect {
					continue
				}
				if off < 0 && want.Outcome == driver.Lost {
					switch r.Kind {
					case driver.Acquire, driver.Renew, driver.Revoke, driver.MarkStarted:
						continue // the lease has ended, and nobody was granted the key since
					}
				}
				if off < 0 && got.Outcome == driver.Holding {
					continue // it leaves no place
				}
				compared[got.Outcome]++
				require.Equal(t, want.Outcome, got.Outcome, "seed %d: %v by a guess that is off by %v s: %+v", seed, r, off, k.State)
			}
			k.State = next
		}
	}
	t.Log(compared)
	for _, o := range []driver.Outcome{driver.Granted, driver.Done, driver.Lost, driver.Holding, driver.Exclusive} {
		require.Greater(t, compared[o], 50, "outcome %d", o)
	}
}

// randomRequest is one of any kind, often by somebody who is in the state.
func randomRequest(random *rand.Rand, s rules.State) driver.Request {
	one := func(n int) bool { return random.IntN(n) == 0 }
	r := driver.Request{
		Kind: driver.Kind(random.IntN(int(driver.AwaitTurn))), Owner: driver.Owner(fmt.Sprint(random.IntN(4))), Fence: s.LastFence,
		TTL: time.Duration(1+random.IntN(5)) * time.Second, MaxHolders: 1, Join: !one(3), AtOnce: one(2), Effect: one(2),
	}
	if one(4) {
		r.MaxHolders = 2
	}
	switch holders, ended := len(s.Holders), len(s.Ended); {
	case holders > 0:
		h := s.Holders[random.IntN(holders)]
		if r.Fence = h.Fence; one(2) {
			r.Owner = h.Owner
		}
	case ended > 0 && one(2):
		r.Fence = s.Ended[random.IntN(ended)].Fence
	}
	r.Fence = max(1, r.Fence)
	if r.Kind == driver.Acquire && !one(8) {
		r.Fence = 0
	}
	return r
}

// Until the time that Wait says, an Acquire of a waiter is refused. The first in the queue is granted the key
// then, and the others if it is now.
func TestWaitIsTheTurn(t *testing.T) {
	waits, grants := 0, 0
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 3))
		k, at := newKey(t), 0.0
		for range 40 {
			at += random.Float64() * []float64{0, 0.2, 3}[random.IntN(3)]
			r := randomRequest(random, k.State)
			if random.IntN(3) > 0 {
				r.Kind, r.Fence = driver.Acquire, 0
			}
			k.do(rules.At(sec(at)), r)
			for i, w := range k.Queue {
				asks := driver.Request{Kind: driver.Acquire, Owner: w.Owner, TTL: time.Second, MaxHolders: w.MaxHolders}
				outcome := func(at time.Time) (driver.Outcome, driver.State) {
					_, _, a, _ := k.Decide(k.State, rules.At(at), asks)
					return a.Outcome, a.Status.State
				}
				left := k.Wait(k.State, rules.At(sec(at)), w.Owner)
				then, state := outcome(sec(at).Add(max(0, left)))
				if state == driver.InDoubt {
					continue
				}
				if left > 0 {
					waits++
					before, _ := outcome(sec(at).Add(left - 1))
					require.Equal(t, driver.Refused, before, "seed %d: %v before its turn: %+v", seed, w, k.State)
				}
				if left <= 0 || i == 0 {
					grants++
					require.Equal(t, driver.Granted, then, "seed %d: %v at its turn, after %v: %+v", seed, w, left, k.State)
				}
			}
		}
	}
	t.Logf("%d waits, %d grants", waits, grants)
	require.Greater(t, min(waits, grants), 500)
}
