package casstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// laneRoom is how many requests of one lane are under way at once. With one, a request whose reply is lost would stop the others.
const laneRoom = 2

// lane is for the requests of this process for one key by those who do not hold it. Few of them are under way at once, as all would write the
// same entry, and many would keep the service, and the connection to it, from the requests of holders. Those who have waited share
// what others have read or written meanwhile. A lane lasts while somebody is in it.
type lane struct {
	room    int
	waiting [2][]chan struct{} // first those that end a wait: until then others wait for their turn
	seen    sighting           // the one that began last
}

// sighting is an entry as a request has read or written it.
type sighting struct {
	view
	began time.Time // of the request, on the local clock
	trip  time.Duration
	now   time.Time // the service's time at a moment of the request; zero if it was not told
}

// laneOf is the place of a request in its lane: -1 for one that goes past it.
func laneOf(r driver.Request) int {
	switch r.Kind {
	case driver.Leave, driver.Abandon:
		return 0
	case driver.Inspect:
		return 1
	case driver.Acquire:
		if r.Fence == 0 {
			return 1
		}
	}
	return -1
}

// enter waits for room in the lane of the key. The caller calls leave when its request has its answer. If ctx ends first, the request
// must not be sent.
func (s *store) enter(ctx context.Context, key string, n int) error {
	s.mu.Lock()
	l := s.lanes[key]
	if l == nil {
		l = &lane{room: laneRoom}
		s.lanes[key] = l
	}
	if l.room > 0 {
		l.room--
		s.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.waiting[n] = append(l.waiting[n], turn)
	s.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(l.waiting[n], turn)
	if i < 0 {
		return nil // its turn came at the same time
	}
	l.waiting[n] = slices.Delete(l.waiting[n], i, i+1)
	return fmt.Errorf("%w: other requests for this key are under way: %w", lockstore.ErrUnavailable, ctx.Err())
}

// leave makes room for the next request.
func (s *store) leave(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[key]
	for n := range l.waiting {
		if len(l.waiting[n]) > 0 {
			close(l.waiting[n][0])
			l.waiting[n] = l.waiting[n][1:]
			return
		}
	}
	if l.room++; l.room == laneRoom {
		delete(s.lanes, key)
	}
}

// contend counts the requests of this process, by holders of the key, that have had a conflict and are under way. Meanwhile nobody of the
// process takes a place.
func (s *store) contend(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loses[key] += n; s.loses[key] == 0 {
		delete(s.loses, key)
	}
}

func (s *store) contended(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loses[key] > 0
}

// share lets those in the lane use what a request has seen.
func (s *store) share(key string, seen sighting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lanes[key]; l != nil && seen.began.After(l.seen.began) {
		l.seen = seen
	}
}

// shared is what another request has seen that has begun after since: for a call that has begun by then, it is as
// good as a read of its own.
func (s *store) shared(key string, fresh bool, since time.Time) (seen sighting, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lanes[key]; l != nil {
		seen = l.seen
	}
	return seen, seen.began.After(since) && (seen.fresh || !fresh)
}
