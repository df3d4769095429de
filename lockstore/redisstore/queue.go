package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/lanes"
)

// Each owner that waits has a list of its own on the server. It waits for an element there.
// Whoever hands the key over puts one into the list of the new holder. A script may touch only keys that
// the client names. So a grant says who is the first in the queue, and the release names that
// owner's list. If another owner is the first by then, the release says so, and a second request wakes that
// owner. An owner that pauses in the same process, because waiters have all their connections, gets the element there, and the
// wait of another one at the server is for its list, too. An element that gets lost costs the time until the waiter asks for itself.

// wakeUps is how the waiters of one store wait, and how its holders wake others.
type wakeUps struct {
	block time.Duration // of one wait at the server
	slots chan struct{} // for waits, each of which occupies a connection

	mu      sync.Mutex
	pausing map[string]*pauser // by their lists: owners that pause in this process
}

// pauser is an owner that pauses.
type pauser struct {
	key     string
	element chan string
	covered int // by so many waits at the server
}

// A wait at the server lasts minBlock at least, because 0 would be for ever, and maxBlock at most, because a lost element
// must cost less than a second, and Redis ends a wait up to 0.1 s late. It ends blockSlack before the deadline of its
// context. A server that hangs gets silence more time, and the client of a cluster does not ask it again. A second
// request to wake others takes wakeTime at most: it may go to another node of a cluster, and the release is done.
const (
	minBlock   = 10 * time.Millisecond
	blockSlack = 20 * time.Millisecond
	silence    = 150 * time.Millisecond
	maxBlock   = 800 * time.Millisecond
	wakeTime   = 250 * time.Millisecond
)

// pollTime is how long a waiter pauses where it cannot wait at the server, and nobody waits there for it: half of
// it to one and a half of it.
const pollTime = 100 * time.Millisecond

// newWakeUps leaves half of the client's connections to those who do not wait: a
// holder must not wait for a waiter to renew its lease.
func newWakeUps(readTimeout time.Duration, connections int) *wakeUps {
	return &wakeUps{block: min(maxBlock, readTimeout*3/4), slots: make(chan struct{}, connections/2), pausing: map[string]*pauser{}}
}

// Await implements driver.Driver. It waits at the server for an element, and returns after less than a second without one. Where it cannot
// wait there, because waiters have half of the client's connections already, or because the server refuses BLPOP, it pauses. Without an
// element its outcome is Ask: a holder that has died hands nothing over.
func (s *server) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	element, err := s.await(ctx, key, r.Owner)
	switch {
	case errors.Is(err, errOthers):
		return driver.Answer{Outcome: driver.NotYet, Hint: r.Hint}, nil
	case err != nil:
		return driver.Answer{}, err
	}
	return granting(element, r), nil
}

// errOthers ends a wait at the server that has brought another owner its element.
var errOthers = errors.New("the element was another owner's")

// trustMargin is what is not trusted of the turn of a new holder, as the guard does not trust it of a lease.
const trustMargin = 250 * time.Millisecond

// granting is the answer that an element is. The element is older than this Await, and younger than
// the owner's last Acquire that was refused, if its fence is larger than the one that was the last then. An
// older element is of a turn that is over.
func granting(element string, r driver.Request) driver.Answer {
	ask := driver.Answer{Outcome: driver.Ask, Hint: r.Hint}
	p := parser{rest: element}
	fence, ttl, seat := p.fence(), p.micros(), p.number()
	refusedAt, err := strconv.ParseInt(string(r.Hint), 10, 64)
	ttl = min(ttl, driver.TurnTime) - r.Elapsed - trustMargin
	if p.err != nil || err != nil || int64(fence) <= refusedAt || ttl < driver.LeastTrust {
		return ask
	}
	return driver.Answer{Outcome: driver.Granted, Fence: fence, Seat: seat, TTL: ttl, Hint: driver.Hint(p.rest)}
}

// await returns the owner's element, or "".
func (s *server) await(ctx context.Context, key string, owner driver.Owner) (string, error) {
	select {
	case s.wakeUps.slots <- struct{}{}:
	default:
		return s.pause(ctx, key, owner)
	}
	if err := s.lanes.Enter(ctx, lanes.Asks); err != nil {
		<-s.wakeUps.slots
		return "", err
	}
	block := s.wakeUps.block
	if deadline, ok := ctx.Deadline(); ok {
		block = min(block, time.Until(deadline)-blockSlack) // a wait that its context ends costs the connection
	}
	if block < minBlock {
		s.endWait()
		return s.pause(ctx, key, owner)
	}
	element, err := s.pop(ctx, key, owner, block)
	switch {
	case err == nil, errors.Is(err, errOthers): // the element has gone from the list, also if the context has ended meanwhile
		return element, err
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.Is(err, redis.Nil):
		return "", nil
	}
	return s.pause(ctx, key, owner)
}

// timeLimit is the last word of a wait at the server.
type timeLimit struct {
	seconds  string
	returned atomic.Bool // the caller, so the command must not be written
}

// MarshalBinary is called when the client writes the command, see that of call. A wait that begins late takes an element that nobody
// reads.
func (l *timeLimit) MarshalBinary() ([]byte, error) {
	if l.returned.Load() {
		return nil, context.Canceled
	}
	return []byte(l.seconds), nil
}

// String is what hooks print.
func (l *timeLimit) String() string { return l.seconds }

// pop waits for an element of the owner's list, and of those of owners that pause. It frees the slot and the lane of the wait when the
// connection is free again, which can be after the end of the context.
func (s *server) pop(ctx context.Context, key string, owner lockstore.Owner, block time.Duration) (string, error) {
	list := s.list(key, owner)
	words := []any{"blpop", list}
	if s.together(key) {
		others, uncover := s.wakeUps.cover(key)
		defer uncover()
		words = append(words, others...)
	}
	limit := &timeLimit{seconds: strconv.FormatFloat(block.Seconds(), 'f', -1, 64)}
	defer limit.returned.Store(true)
	ctx, cancel := context.WithTimeout(ctx, block+silence)
	defer cancel()
	var popped []string
	var popErr error
	err := s.within(ctx, &callContext{}, maxBlock+silence, func(ctx context.Context) {
		defer s.endWait()
		cmd := redis.NewStringSliceCmd(ctx, append(words, limit)...)
		_ = s.client.Process(ctx, cmd) // the command has the same error
		popped, popErr = cmd.Result()
	})
	switch {
	case err != nil:
		return "", err // and the command is not over
	case popErr != nil || len(popped) != 2:
		return "", popErr
	case popped[0] == list:
		return popped[1], nil
	case !s.wakeUps.tell(popped[0], popped[1]): // its owner pauses no more, and may wait at the server itself
		s.push(ctx, key, popped[0], owner, popped[1])
	}
	return "", errOthers
}

// cover returns the lists of the owners that pause for a key. They go on pausing until uncover.
func (w *wakeUps) cover(key string) (lists []any, uncover func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*pauser
	for list, p := range w.pausing {
		if p.key == key {
			p.covered++
			lists, all = append(lists, list), append(all, p)
		}
	}
	return lists, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, p := range all {
			p.covered--
		}
	}
}

// endWait frees the slot and the lane of a wait.
func (s *server) endWait() {
	s.lanes.Leave()
	<-s.wakeUps.slots
}

// list is the name of an owner's list. No key of a lock has a newline. The owner is a secret, and
// names of keys are in traces, so the name has a hash. It is of the key, too: the lists of the keys a and {a}
// begin with the same name if {a} stands for the entry a. In a cluster the list has to be on the node of
// the key, so that a script may use both: the part of a name in its first braces, if there is one, says where it is.
func (s *server) list(key string, owner lockstore.Owner) string {
	name := s.prefix + key
	sum := sha1.Sum([]byte(name + "\n" + string(owner)))
	if !strings.ContainsAny(name, "{}") {
		name = s.prefix + "{" + name + "}"
	}
	return name + "\n" + hex.EncodeToString(sum[:])
}

// together reports whether the list of an owner is on the node of the key, in a cluster too.
func (s *server) together(key string) bool {
	_, behind, open := strings.Cut(s.prefix+key, "{")
	inside, _, closed := strings.Cut(behind, "}")
	return open && closed && inside != "" || !strings.ContainsAny(s.prefix+key, "{}")
}

// release ends a lease, and wakes the first in the queue with the same request if the lease's note names it. What the
// server refuses only because of that owner's list is no reason to keep the key.
func (s *server) release(ctx context.Context, key string, r driver.Request) (*call, error) {
	if r.Hint != "" && s.together(key) {
		if list := s.list(key, lockstore.Owner(r.Hint)); !s.wakeUps.pauses(list) {
			c := &call{Owner: r.Owner, key: key}
			err := s.send(ctx, c, s.prefix+key, list, "release", digits(r.Fence), secret{[]byte(r.Hint)})
			// While a slot moves, the entry and the list may be on two nodes: TRYAGAIN.
			if !errors.Is(err, lockstore.ErrUnavailable) || !slices.Contains([]string{"NOPERM", "CROSSSLOT", "TRYAGAIN"}, c.refusal) {
				return c, err
			}
		}
	}
	return s.run(ctx, key, r.Owner, "release", digits(r.Fence))
}

// wake tells owners that they were handed the key. The hand-over is done: an error changes nothing about it,
// and a waiter asks for itself within a second.
func (s *server) wake(ctx context.Context, key string, by lockstore.Owner, all []news) {
	ctx, cancel := context.WithTimeout(ctx, wakeTime)
	defer cancel()
	for _, n := range all {
		if list := s.list(key, n.owner); !s.wakeUps.tell(list, n.element) {
			s.push(ctx, key, list, by, n.element)
		}
	}
}

// push puts an element into a list.
func (s *server) push(ctx context.Context, key, list string, by lockstore.Owner, element string) {
	_ = s.send(ctx, &call{Owner: by, key: key}, list, "", "wake", secret{[]byte(element)})
}

// pause lets a random time pass, or less if the owner's element comes. While a wait at the server is for its element, too, it
// takes as long as such a wait. It returns the element, or "".
func (s *server) pause(ctx context.Context, key string, owner lockstore.Owner) (string, error) {
	w, list, p := s.wakeUps, s.list(key, owner), &pauser{key: key, element: make(chan string, 1)}
	w.mu.Lock()
	w.pausing[list] = p
	w.mu.Unlock()
	for end, over := time.Now().Add(w.block), false; !over; {
		select {
		case element := <-p.element:
			return element, nil
		case <-time.After(pollTime/2 + rand.N(pollTime)):
		case <-ctx.Done():
		}
		w.mu.Lock()
		if over = p.covered == 0 || ctx.Err() != nil || !time.Now().Before(end); over {
			delete(w.pausing, list)
		}
		w.mu.Unlock()
	}
	select {
	case element := <-p.element: // both at the same time
		return element, nil
	default:
		return "", ctx.Err()
	}
}

// pauses reports whether the owner of a list pauses in this process.
func (w *wakeUps) pauses(list string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pausing[list] != nil
}

// tell gives an element to the owner of a list, if it pauses in this process.
func (w *wakeUps) tell(list, element string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pausing[list]
	if p != nil {
		p.element <- element
		delete(w.pausing, list)
	}
	return p != nil
}
