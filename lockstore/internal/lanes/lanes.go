// Package lanes shares few connections between the requests of many runs in one process.
package lanes

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Lanes have room for a number of requests at once. The others wait, and a holder's go first: while a run asks for a lock, others
// must not lose theirs. Requests of one lane go in the order of their arrival. A request of a client that this repository has not
// made may keep its connection after its context has ended; then more are sent than there are connections, and these wait in the
// client. Nil Lanes have room for all.
type Lanes struct {
	mu      sync.Mutex
	room    int
	waiting [countOfLanes][]chan struct{}
}

// New returns Lanes with room for at least one request.
func New(room int) *Lanes { return &Lanes{room: max(1, room)} }

// Lane is of requests that are as urgent as each other. A lower one goes first.
type Lane int

// The lanes of requests.
const (
	Holds        Lane = iota // of a holder: without them work ends, or a key stays closed
	Ends                     // what ends a wait: without them others wait for a turn
	Asks                     // all others
	Looks                    // what only reads
	countOfLanes = iota
)

// Of is the lane of a request.
func Of(r driver.Request) Lane {
	switch r.Kind {
	case driver.Renew, driver.Release, driver.MarkStarted, driver.Complete:
		return Holds
	case driver.Acquire:
		if r.Fence != 0 { // extends a lease
			return Holds
		}
	case driver.Abandon, driver.Leave:
		return Ends
	case driver.Inspect:
		return Looks
	}
	return Asks
}

type key struct{} // of a context's value

// With is a context for what a request sends, see From.
func With(ctx context.Context, r driver.Request) context.Context {
	return context.WithValue(ctx, key{}, Of(r))
}

// From is the lane of With's request, and Looks for another context.
func From(ctx context.Context) Lane {
	if n, ok := ctx.Value(key{}).(Lane); ok {
		return n
	}
	return Looks
}

// Enter waits for room. The caller calls Leave when its request has its answer. If ctx ends first,
// the request must not be sent: the error matches lockstore.ErrUnavailable and that of ctx.
func (l *Lanes) Enter(ctx context.Context, n Lane) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if l.room > 0 {
		l.room--
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
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

// Leave makes room for the next request.
func (l *Lanes) Leave() {
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
