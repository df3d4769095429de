package redisstore

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// lanes shares few connections between the requests of many runs in one process. It has room for a number of
// requests at once. The others wait, and a holder's go first: while a run asks for a lock, others must not lose theirs.
// Requests of one lane go in the order of their arrival. A request of a client that this package has not made may keep
// its connection after its context has ended; then more are sent than there are connections, and these wait in the client.
type lanes struct {
	mu      sync.Mutex
	room    int
	waiting [countOfLanes][]chan struct{}
}

// newLanes is for the connections to one server. A cluster has none: a node that hangs must not
// keep requests from the others.
func newLanes(set settings) *lanes {
	if set.cluster {
		return nil
	}
	return &lanes{room: max(1, set.connections)}
}

// The lanes of requests.
const (
	laneHolds = iota // of a holder: without them work ends, or a key stays closed
	laneEnds         // what ends a wait: without them others wait for a turn
	laneAsks         // all others
	laneLooks        // what only reads
	countOfLanes
)

func laneOf(r driver.Request) int {
	switch r.Kind {
	case driver.Renew, driver.Release, driver.MarkStarted, driver.Complete:
		return laneHolds
	case driver.Acquire:
		if r.Fence != 0 { // extends a lease
			return laneHolds
		}
	case driver.Abandon, driver.Leave:
		return laneEnds
	case driver.Inspect:
		return laneLooks
	}
	return laneAsks
}

// enter waits for room. The caller calls leave when its request has its answer. If ctx ends first,
// the request must not be sent: the error matches lockstore.ErrUnavailable and that of ctx. Nil lanes
// have room for all.
func (l *lanes) enter(ctx context.Context, r driver.Request) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if l.room > 0 {
		l.room--
		l.mu.Unlock()
		return nil
	}
	n, turn := laneOf(r), make(chan struct{})
	l.waiting[n] = append(l.waiting[n], turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting[n], turn)
	if i < 0 {
		return nil // its turn came at the same time
	}
	l.waiting[n] = slices.Delete(l.waiting[n], i, i+1)
	return fmt.Errorf("not applied: %w: all connections are in use: %w", lockstore.ErrUnavailable, ctx.Err())
}

// leave makes room for the next request.
func (l *lanes) leave() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.waiting {
		if len(l.waiting[n]) > 0 {
			close(l.waiting[n][0])
			l.waiting[n] = l.waiting[n][1:]
			return
		}
	}
	l.room++
}
