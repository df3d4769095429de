package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Each owner that waits has a list of its own on the server. It waits for an element there.
// Whoever releases the key puts one into the list of the first in the queue. A script may
// touch only keys that the client names. So a grant says who is the first in the queue, and
// the release names that owner's list. If another owner is the first by then, the release
// says so, and a second request wakes that owner. A wake-up that gets lost costs the time
// until the waiter asks for itself.

// wakeUps is how the waiters of one store wait, and how its holders wake others.
type wakeUps struct {
	block   time.Duration             // of one wait at the server
	slots   chan struct{}             // for waits, each of which occupies a connection
	refused atomic.Pointer[time.Time] // when the server did not let this user wait for an element

	oneKey atomic.Bool // the server takes a script with one key only: a cluster, or by its rules
	mu     sync.Mutex
	first  map[lockstore.Owner]lockstore.Owner // of a holder: the first in the queue at its grant
}

// maxFirst bounds wakeUps.first: not every grant of a process is released by it.
const maxFirst = 1024

// expect keeps who is the first in the queue behind a new holder.
func (w *wakeUps) expect(holder, first lockstore.Owner) {
	if first == "" || w.oneKey.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.first) >= maxFirst {
		clear(w.first) // their releases take a second request
	}
	w.first[holder] = first
}

// expected returns who was the first in the queue at the holder's grant, once.
func (w *wakeUps) expected(holder lockstore.Owner) lockstore.Owner {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.first[holder]
	delete(w.first, holder)
	return first
}

// A wait at the server lasts minBlock at least: 0 would be for ever. It ends blockSlack
// before the deadline of its context.
const (
	minBlock   = 10 * time.Millisecond
	blockSlack = 20 * time.Millisecond
)

// pollTime is how long a waiter pauses where it cannot wait at the server: half of
// it to one and a half of it.
const pollTime = 100 * time.Millisecond

// refusedTime is how long a refusal of BLPOP counts. An administrator may mend the
// permissions while a process lives.
const refusedTime = time.Minute

// mayBlock reports whether the server may let this user wait.
func (w *wakeUps) mayBlock() bool {
	at := w.refused.Load()
	return at == nil || time.Since(*at) >= refusedTime
}

// newWakeUps leaves half of the client's connections to those who do not wait: a
// holder must not wait for a waiter to renew its lease.
func newWakeUps(client redis.UniversalClient) *wakeUps {
	size, timeout := 0, time.Duration(0)
	w := &wakeUps{first: map[lockstore.Owner]lockstore.Owner{}}
	switch c := client.(type) {
	case *redis.Client:
		size, timeout = connections(c.Options().PoolSize, c.Options().MaxActiveConns), c.Options().ReadTimeout
	case *redis.ClusterClient:
		size, timeout = connections(c.Options().PoolSize, c.Options().MaxActiveConns), c.Options().ReadTimeout
		w.oneKey.Store(true) // the keys are on different nodes
	}
	w.block, w.slots = min(time.Second, timeout)*3/4, make(chan struct{}, size/2)
	return w
}

// connections is how many connections a client may have at once.
func connections(pool, most int) int {
	if most > 0 {
		return min(pool, most)
	}
	return pool
}

// Await implements driver.Driver. It waits at the server for a wake-up, and returns after
// less than a second without one. Where it cannot wait there, because the server refuses
// BLPOP or because waiters have half of the client's connections already, it returns after a
// short random pause. Its outcome is Ask: no wake-up comes from a holder that has died.
func (s *server) Await(ctx context.Context, _ string, r driver.Request) (driver.Answer, error) {
	return driver.Answer{Outcome: driver.Ask}, s.await(ctx, r.Owner)
}

func (s *server) await(ctx context.Context, owner driver.Owner) error {
	block := s.wakeUps.block
	if deadline, ok := ctx.Deadline(); ok {
		// A wait that its context ends costs the connection.
		block = min(block, time.Until(deadline)-blockSlack)
	}
	if !s.wakeUps.mayBlock() || block < minBlock {
		return pause(ctx)
	}
	select {
	case s.wakeUps.slots <- struct{}{}:
	default:
		return pause(ctx)
	}
	err := s.pop(ctx, owner, block)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil, errors.Is(err, redis.Nil):
		return nil
	case !transient(err):
		now := time.Now()
		s.wakeUps.refused.Store(&now)
	}
	return pause(ctx)
}

// pop waits for an element of the owner's list. It frees its slot when the connection is
// free again, which can be after the end of the context.
func (s *server) pop(ctx context.Context, owner lockstore.Owner, block time.Duration) error {
	words := []any{"blpop", s.prefix + list(owner), block.Seconds()}
	free := func() { <-s.wakeUps.slots }
	if s.ends {
		defer free()
		var c callContext
		stop := c.begin(ctx)
		defer c.forget()
		defer stop()
		return s.client.Process(&c, redis.NewStringSliceCmd(&c, words...))
	}
	var failed error
	var d detached
	err := d.run(ctx, func() {
		defer free()
		failed = s.client.Process(ctx, redis.NewStringSliceCmd(ctx, words...))
	})
	if err != nil {
		return err // and failed is written later
	}
	return failed
}

// list is the name of an owner's list, without the prefix. No key of a lock has a newline.
// The owner is a secret, and names of keys are in traces, so the name has its hash, which a
// script can compute, too.
func list(owner lockstore.Owner) string {
	sum := sha1.Sum([]byte(owner))
	return "\n" + hex.EncodeToString(sum[:])
}

// release ends a lease and wakes the first in the queue if that has been known since the grant.
func (s *server) release(ctx context.Context, key string, owner driver.Owner, fence int64) (reply, error) {
	if first := s.wakeUps.expected(owner); first != "" {
		r, err := s.runWith(ctx, releaseScript, key, list(first), owner, fence)
		if !errors.Is(err, lockstore.ErrUnavailable) || !slices.Contains([]string{"NOPERM", "CROSSSLOT"}, word(serverText(err))) {
			return r, err
		}
		s.wakeUps.oneKey.Store(true)
	}
	return s.run(ctx, releaseScript, key, owner, fence)
}

// wake tells the first in line that it is its turn. The release is done: an error
// changes nothing about it, and the waiter asks for itself within a second.
func (s *server) wake(ctx context.Context, by, next lockstore.Owner) {
	if next != "" {
		_, _ = s.run(ctx, wakeScript, list(next), by)
	}
}

// pause lets a random time pass.
func pause(ctx context.Context) error {
	timer := time.NewTimer(pollTime/2 + rand.N(pollTime))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// transient reports whether an error says nothing about the next wait at the server.
func transient(err error) bool {
	switch word(serverText(err)) {
	case "NOPERM", "WRONGTYPE", "unknown", "timeout", "value", "wrong":
		return false
	}
	return true
}
