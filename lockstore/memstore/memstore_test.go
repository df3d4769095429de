package memstore

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/leasesim"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return harness()
	}, synctest.Test)
}

func TestURLs(t *testing.T) {
	storetest.URLs(t, Opener, func(string) string { return "" }, "memory://")
}

// The clock that New gets decides. A waiter looks at it again and again, as no timer says how fast it goes.
func TestInjectedClock(t *testing.T) {
	var passed atomic.Int64
	s := New(func() time.Time { return time.Unix(1_800_000_000, passed.Load()) })
	lease, err := s.Acquire(t.Context(), request("holder"))
	require.NoError(t, err)
	assert.Equal(t, lockstore.Fence(1_800_000_000_000_000), lease.Fence)
	waits := request("waiter")
	waits.JoinQueue = true
	_, err = s.Acquire(t.Context(), waits)
	require.ErrorIs(t, err, lockstore.ErrRefused)
	go passed.Store(int64(waits.TTL))
	require.NoError(t, storetest.AwaitTurn(t.Context(), s, "k", "waiter"))
	lease, err = s.Acquire(t.Context(), waits)
	require.NoError(t, err)
	assert.Equal(t, lockstore.Fence(1_800_000_060_000_000), lease.Fence)
}

// TestRuleBook compares the store with the rule book by random requests, also with so few places and
// marks that they do not suffice.
//
// VERIFY_SEED=17 VERIFY_SEEDS=1 go test ./lockstore/memstore -run TestRuleBook
// replays one seed.
func TestRuleBook(t *testing.T) {
	leasesim.RuleBook(t, "random requests to the store in memory and to the rule book", 30, 500_000, map[string]func(*testing.T) storetest.Harness{
		"128 places": func(*testing.T) storetest.Harness { return harness() },
		"2 places": func(*testing.T) storetest.Harness {
			h := harness()
			h.Places, h.Marks = 2, 3
			inside(h.Store).book = rules.Book{Places: h.Places, Marks: h.Marks}
			return h
		},
	})
}

// Each request with another one, from many states of a key.
func TestPairs(t *testing.T) {
	leasesim.Pairs(t, "pairs of requests to memstore and to the rule book", func(*testing.T) storetest.Harness { return harness() })
}

func harness() storetest.Harness {
	var shift atomic.Int64
	s := New(func() time.Time { return time.Now().Add(time.Duration(shift.Load())) })
	m := inside(s)
	set := func(key string, e rules.State) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.write(key, e)
	}
	get := func(key string) rules.State {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.states[key]
	}
	return storetest.Harness{
		Parks:  true,
		Marks:  16,
		Store:  s,
		Delete: func(_ *testing.T, key string) { set(key, rules.State{}) },
		Snapshot: func(_ *testing.T, key string) func() {
			e := get(key)
			return func() { set(key, e) }
		},
		Dump:       func(_ *testing.T, key string) string { return fmt.Sprintf("%#v", get(key)) },
		ShiftClock: func(_ *testing.T, d time.Duration) { shift.Store(int64(d)) },
	}
}

// inside is the driver of the store.
func inside(s *lockstore.Store) *memory { return s.Driver().(*memory) }

func request(owner lockstore.Owner) lockstore.Request {
	return lockstore.Request{Key: "k", Owner: owner, TTL: time.Minute}
}
