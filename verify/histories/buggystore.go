package histories

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/internal/wrongrules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// buggyServer has the rules of the lock with one mistake, or with none. The sweep has to
// find each. Three mistakes are none of a rule.
type buggyServer struct {
	bug    string
	decide func(rules.Book, rules.State, rules.Clock, driver.Request) (rules.State, bool, driver.Answer, rules.Basis)

	mu     sync.Mutex
	states map[string]rules.State
}

const (
	localFence    = "M13 a fence from a local counter"
	looksThenSets = "M19 looks, then sets"
	failureIsBusy = "M36 a failure reads as busy"
)

func newBuggyServer(bug string) *buggyServer {
	s := &buggyServer{bug: bug, decide: rules.Book.Decide, states: map[string]rules.State{}}
	switch bug {
	case "none", localFence, looksThenSets, failureIsBusy:
	default:
		s.decide = wrongrules.Find(bug).Decide
	}
	return s
}

// buggyBook remembers every owner, so nothing that is late is excused.
var buggyBook = rules.Book{Places: 64, Marks: 1 << 20}

// buggyClient is the server as one process sees it.
type buggyClient struct {
	*buggyServer
	fence driver.Fence // the local counter
	calls int
}

var errServer = errors.New("the server failed")

// Do implements driver.Driver.
func (b *buggyClient) Do(_ context.Context, key string, r driver.Request) (driver.Answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	acquires := r.Kind == driver.Acquire
	if b.calls++; acquires && b.calls%8 == 0 {
		if b.bug == failureIsBusy {
			return driver.Answer{Outcome: driver.Refused, Status: driver.Status{State: driver.Held}}, nil
		}
		return driver.Answer{}, errServer
	}
	s := b.states[key]
	if acquires && b.bug == looksThenSets {
		b.mu.Unlock()
		time.Sleep(time.Millisecond)
		b.mu.Lock()
	}
	next, changed, a, _ := b.decide(buggyBook, s, rules.At(time.Now()), r)
	if n := len(next.Holders); b.bug == localFence && a.Outcome == driver.Granted && next.LastFence != s.LastFence {
		b.fence++
		next.LastFence, next.Holders[n-1].Fence, a.Fence = b.fence, b.fence, b.fence
	}
	if changed {
		b.states[key] = next
	}
	return a, nil
}

// Await implements driver.Driver: its caller asks after a moment.
func (b *buggyClient) Await(ctx context.Context, _ string, _ driver.Request) (driver.Answer, error) {
	_ = pause.For(ctx, 20*time.Millisecond)
	return driver.Answer{Outcome: driver.Ask}, ctx.Err()
}
