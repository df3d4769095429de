package rules_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
)

func TestBroken(t *testing.T) {
	lease := func(o driver.Owner, fence driver.Fence, seat, most int) rules.Holder {
		return rules.Holder{Owner: o, Fence: fence, Seat: seat, MaxHolders: most, Since: sec(0), TTL: time.Minute}
	}
	changed := func(h rules.Holder, change func(*rules.Holder)) rules.Holder {
		change(&h)
		return h
	}
	a, b, w := lease("a", 8, 0, 2), lease("b", 9, 1, 2), rules.Waiter{Owner: "w", MaxHolders: 1}
	closed := rules.Closed{Since: sec(0), For: time.Minute}
	for what, s := range map[string]rules.State{
		"": {LastFence: 9, Holders: []rules.Holder{a, b}, Queue: []rules.Waiter{w}, Ended: []rules.Ended{{Owner: "e", Fence: 9}, {Owner: "f"}}},
		"the fences of the holders do not grow up to the last fence": {LastFence: 9, Holders: []rules.Holder{b, a}},
		"the last fence is negative, or none is left":                {LastFence: -1},
		"the key is closed for a negative time":                      {LastFence: 9, Closed: rules.Closed{For: -1}},
		"a place has a number or a turn that no request has":         {LastFence: 9, Holders: []rules.Holder{a, b}, Queue: []rules.Waiter{{Owner: "w"}}},
		"an owner has two leases":                                    {LastFence: 9, Holders: []rules.Holder{a, lease("a", 9, 1, 2)}},
		"two holders have one seat":                                  {LastFence: 9, Holders: []rules.Holder{a, lease("b", 9, 0, 2)}},
		"more hold the key than one of them allows":                  {LastFence: 9, Holders: []rules.Holder{a, lease("b", 9, 1, 1)}},
		"the work of a lease with others has started":                {LastFence: 9, Holders: []rules.Holder{changed(b, func(h *rules.Holder) { h.Started = true })}},
		"a closed key has a holder":                                  {LastFence: 9, Holders: []rules.Holder{a}, Closed: closed},
		"somebody waits for a closed key":                            {LastFence: 9, Queue: []rules.Waiter{w}, Closed: closed},
		"an owner has two places":                                    {LastFence: 9, Holders: []rules.Holder{a, b}, Queue: []rules.Waiter{w, w}},
		"an owner waits that has a lease, and not by a hand-over":    {LastFence: 9, Holders: []rules.Holder{a, b}, Queue: []rules.Waiter{{Owner: "a", MaxHolders: 2}}},
		"the fence of a mark is above the last fence":                {LastFence: 9, Ended: []rules.Ended{{Owner: "e", Fence: 10}}},
		"an owner has two marks":                                     {LastFence: 9, Ended: []rules.Ended{{Owner: "e", Fence: 8}, {Owner: "e", Fence: 9}}},
		"an owner has a mark, and holds or waits":                    {LastFence: 9, Holders: []rules.Holder{a, b}, Queue: []rules.Waiter{w}, Ended: []rules.Ended{{Owner: "w"}}},
		"an owner waits with another number than it holds with": {
			LastFence: 9, Holders: []rules.Holder{changed(b, func(h *rules.Holder) { h.HandedOver = true })}, Queue: []rules.Waiter{{Owner: "b", MaxHolders: 3}},
		},
		"there is room for the first in the queue, and nothing says since when": {LastFence: 9, Queue: []rules.Waiter{w}},
	} {
		assert.Equal(t, what, s.Broken())
		if err := s.Corrupt(); err != nil {
			assert.EqualError(t, err, what)
		}
	}
	assert.NoError(t, rules.State{LastFence: 9, Holders: []rules.Holder{a, b}, Queue: []rules.Waiter{w, w}}.Corrupt(), "a queue can only refuse")
	assert.Error(t, rules.State{LastFence: 7, Holders: []rules.Holder{a}}.Corrupt())
}

// Strict finds a step that leaves the invariant, also from a state whose queue is damaged.
func TestStrict(t *testing.T) {
	one := rules.Holder{Owner: "a", Fence: 8, MaxHolders: 1}
	held := rules.State{LastFence: 9, Holders: []rules.Holder{one}}
	two := rules.State{LastFence: 9, Holders: []rules.Holder{one, {Owner: "b", Fence: 9, Seat: 1, MaxHolders: 1}}}
	damaged := rules.State{LastFence: 9, Holders: held.Holders, Queue: []rules.Waiter{{Owner: "w"}}}
	asks := driver.Request{Kind: driver.Acquire, Owner: "b", MaxHolders: 1}
	assert.Panics(t, func() { rules.MustHold(held, two, asks) })
	assert.Panics(t, func() { rules.MustHold(damaged, two, asks) })
	assert.Panics(t, func() { rules.MustHold(held, damaged, asks) })
	assert.NotPanics(t, func() { rules.MustHold(held, held, asks) })
	assert.NotPanics(t, func() { rules.MustHold(damaged, damaged, asks) })
	assert.NotPanics(t, func() { rules.MustHold(two, two, asks) })
}

// A state that no store writes, such as one that somebody has damaged, crashes nothing.
func TestDamagedStates(t *testing.T) {
	rules.Strict = true
	defer func() { rules.Strict = false }()
	c := &chance{Rand: rand.New(rand.NewPCG(1, 8)), now: sec(0), owners: people, holders: 9, places: 40, long: time.Hour}
	odd := func(n int64) int64 { return []int64{0, -1, 1, n, math.MaxInt64, math.MinInt64}[c.IntN(6)] }
	owner := func() driver.Owner { return append([]driver.Owner{""}, people[:4]...)[c.IntN(5)] }
	for range 50_000 {
		s := c.state()
		s.LastFence = driver.Fence(odd(int64(s.LastFence)))
		for i := range s.Holders {
			h := &s.Holders[i]
			h.Owner, h.Fence, h.Seat, h.MaxHolders = owner(), driver.Fence(odd(int64(h.Fence))), int(odd(3)), int(odd(2))
			h.TTL, h.Started, h.Revoked, h.HandedOver = time.Duration(odd(int64(h.TTL))), c.one(2), c.one(2), c.one(2)
		}
		for i := range s.Queue {
			s.Queue[i] = rules.Waiter{Owner: owner(), MaxHolders: int(odd(2)), Parked: time.Duration(odd(int64(time.Second)))}
		}
		for i := range s.Ended {
			s.Ended[i] = rules.Ended{Owner: owner(), Fence: driver.Fence(odd(9)), How: rules.How(odd(2))}
		}
		if c.one(4) {
			s.Closed = rules.Closed{Since: sec(1), For: time.Duration(odd(int64(time.Minute)))}
		}
		r := c.request(s)
		r.Owner, r.MaxHolders = owner(), max(1, r.MaxHolders) // a Store checks it
		book := rules.Book{Places: c.IntN(9), Marks: 1 + c.IntN(3)}
		book.Decide(s, rules.Clock{Early: sec(0), Late: sec(1), Sure: c.one(2)}, r)
		book.Wait(s, rules.At(sec(0)), r.Owner)
		_ = s.Corrupt()
	}
}
