// Package memstore keeps locks in the memory of one process. It is package rules, the
// rules of the lock, under a mutex.
//
// It is for tests: other processes do not see its locks, and all locks are gone when
// the process ends.
//
//   - Clock. The clock that New gets decides everything: which lease is live, which
//     lease has expired, and the time part of a fence.
//   - Trust. A lease may be trusted for its whole TTL. Another owner may get the key
//     at the instant at which the lease expires.
//   - Queue. A release hands the key over to the first in the queue, see lockstore.TurnTime.
//   - Memory. The store remembers the last 16 acquisitions of each key that have
//     ended. So a late duplicate of such an acquire gets ErrLost and takes no lock, and
//     the second release of a lease returns nil.
package memstore

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/lib/storeurl"
	"github.com/lambdalock/lambdalock/lockstore"
)

// memory is the driver: it keeps the state of each key in memory.
type memory struct {
	book   rules.Book
	now    func() time.Time
	timers bool // now goes as fast as timers

	mu      sync.Mutex
	states  map[string]rules.State
	changed map[string]chan struct{} // closed at the next write of the key; who waits has made it
	parked  map[parked]address
}

// parked is an owner with an address.
type parked struct {
	key   string
	owner driver.Owner
}

type address struct {
	text driver.HiddenBytes
	end  time.Time
}

// lookAgain is how often a waiter looks at a clock that is not time.Now.
const lookAgain = 5 * time.Millisecond

// Opener opens memory URLs: each is a new empty store.
var Opener = lockstore.SchemeOpener{
	Schemes: []string{"memory"},
	Open: func(_ context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
		if _, err := storeurl.Params(cfg.URL, storeurl.Parts{Want: "memory://"}); err != nil {
			return nil, err
		}
		return New(nil), nil
	},
}

// New returns an empty store. now is its clock; nil means time.Now.
func New(now func() time.Time) *lockstore.Store {
	m := &memory{book: rules.Book{Places: 128, Marks: 16}, now: now, states: map[string]rules.State{}, changed: map[string]chan struct{}{}, parked: map[parked]address{}}
	if now == nil {
		m.now, m.timers = time.Now, true
	}
	return lockstore.New("memstore", m)
}

func (m *memory) Do(_ context.Context, key string, r driver.Request) (driver.Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, changed, answer, _ := m.book.Decide(m.states[key], rules.At(m.now()), r)
	if changed {
		m.write(key, next)
	}
	return answer, nil
}

func (m *memory) write(key string, next rules.State) {
	m.states[key] = next
	if c := m.changed[key]; c != nil {
		close(c)
		delete(m.changed, key)
	}
}

func (m *memory) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	lease, left, changed := m.turn(key, r.Owner)
	if lease.Outcome == driver.Granted {
		return lease, nil
	}
	if left <= 0 {
		return driver.Answer{Outcome: driver.Ask}, nil
	}
	if !m.timers {
		left = min(left, lookAgain) // the caller's clock may go faster than timers
	}
	select {
	case <-time.After(left):
	case <-changed:
	case <-ctx.Done():
		return driver.Answer{}, ctx.Err()
	}
	return driver.Answer{Outcome: driver.NotYet}, nil
}

// turn is the lease that was handed over to the owner, if there is one; how long it may take until
// a request of the owner has another answer; and a channel that is closed when the key's state changes.
func (m *memory) turn(key string, owner driver.Owner) (driver.Answer, time.Duration, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed[key] == nil {
		m.changed[key] = make(chan struct{})
	}
	now := m.now()
	for _, h := range m.states[key].Holders {
		if left := min(h.TTL, h.End().Sub(now)); h.Owner == owner && h.HandedOver && left >= driver.LeastTrust {
			return driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: left}, 0, nil
		}
	}
	return driver.Answer{}, m.book.Wait(m.states[key], rules.At(now), owner), m.changed[key]
}

func (m *memory) PutAddress(_ context.Context, key string, owner driver.Owner, text driver.HiddenBytes, d time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parked[parked{key, owner}] = address{slices.Clone(text), m.now().Add(d)}
	return nil
}

func (m *memory) TakeAddress(_ context.Context, key string, owner driver.Owner) (driver.HiddenBytes, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.parked[parked{key, owner}]
	delete(m.parked, parked{key, owner})
	if !m.now().Before(a.end) {
		return nil, nil
	}
	return a.text, nil
}

// List implements driver.Lister: one page, in the order of the keys.
func (m *memory) List(_ context.Context, prefix string, page func(driver.Page) error) error {
	m.mu.Lock()
	p, now := driver.Page{}, rules.At(m.now())
	for _, key := range slices.Sorted(maps.Keys(m.states)) {
		if strings.HasPrefix(key, prefix) {
			_, _, answer, _ := m.book.Decide(m.states[key], now, driver.Request{Kind: driver.Inspect})
			p.Keys = append(p.Keys, driver.Listed{Key: key, Status: answer.Status})
		}
	}
	m.mu.Unlock()
	return page(p)
}

func (m *memory) Extent(context.Context) (driver.Extent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return driver.Extent{Entries: int64(len(m.states))}, nil
}
