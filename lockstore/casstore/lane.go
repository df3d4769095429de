package casstore

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/lanes"
)

// lane is what the calls of this process for one key share, while there are some. Of those who do not hold the key few are under way
// at once, as all would write the same entry, and many would keep the service, and the connection to it, from the requests of holders.
// Those who have waited share what others have read or written meanwhile.
type lane struct {
	room  [2]chan struct{} // for those that end a wait, and for the others: those would wait for their turn
	calls int
	loses int      // calls of holders that have had a conflict: meanwhile nobody of the process takes a place
	seen  sighting // the one that began last
}

// laneRoom is how many requests are under way at once. With one, a request whose reply is lost would stop the others.
const laneRoom = 2

// sighting is an entry as a request has read or written it.
type sighting struct {
	view
	began time.Time // of the request, on the local clock
	trip  time.Duration
	now   time.Time // the service's time at a moment of the request; zero if it was not told
}

// laneOf is the room that a request needs: -1 for one of a holder, which needs none.
func laneOf(r driver.Request) int {
	switch {
	case r.Kind == driver.Leave || r.Kind == driver.Abandon:
		return 0
	case r.Kind == driver.Inspect || r.Kind == driver.Acquire && r.Fence == 0:
		return 1
	}
	return -1
}

// call begins a call. The caller calls end when it has its answer.
func (s *store) call(ctx context.Context, key string, r driver.Request) (c *call, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[key]
	if l == nil {
		l = &lane{room: [2]chan struct{}{make(chan struct{}, laneRoom), make(chan struct{}, laneRoom)}}
		s.lanes[key] = l
	}
	l.calls++
	c = &call{store: s, lane: l, ctx: lanes.With(ctx, r), key: key, Request: r, since: time.Now()}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.conflicts > 0 && laneOf(r) < 0 {
			l.loses--
		}
		if l.calls--; l.calls == 0 {
			delete(s.lanes, key)
		}
	}
}

// enter waits for room. If the context ends first, the request must not be sent.
func (c *call) enter() (leave func(), err error) {
	n := laneOf(c.Request)
	if n < 0 {
		return func() {}, nil
	}
	room := c.lane.room[n]
	select {
	case room <- struct{}{}:
		return func() { <-room }, nil
	case <-c.ctx.Done():
		return nil, c.failed(fmt.Errorf("%w: other requests for this key are under way: %w", lockstore.ErrUnavailable, c.ctx.Err()))
	}
}

// share lets the others use what a request has seen.
func (c *call) share(seen sighting) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	if seen.began.After(c.lane.seen.began) {
		c.lane.seen = seen
	}
}

// shared is what another request has seen that has begun after since: it is as good as a read of its own.
func (c *call) shared(fresh bool) (seen sighting, ok bool) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	seen = c.lane.seen
	return seen, seen.began.After(c.since) && (seen.fresh || !fresh)
}
