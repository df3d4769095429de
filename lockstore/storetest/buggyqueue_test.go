package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// queue is the queue of a row. A damaged one is empty.
type queue []fullOwner

func (q *queue) UnmarshalJSON(text []byte) error {
	var owners []fullOwner
	if json.Unmarshal(text, &owners) != nil {
		owners = nil
	}
	*q = owners
	return nil
}

// places is how many owners a queue has room for.
const places = 20

// join gives the refused owner a place, if it asks for one, and returns its place.
func (m *buggyStore) join(r *row, req lockstore.Request) int {
	me := fullOwner(req.Owner)
	switch {
	case slices.Contains(r.Queue, me) && !m.has("queue: an owner joins again"):
		if m.has("queue: not asking again gives the place up") && !req.Queue {
			m.leave(r, me, m.now())
		}
	case !req.Queue && !m.has("queue: everybody joins"):
	case len(r.Queue) >= places && !m.has("queue: no end"):
	case m.has("queue: last in, first out"):
		r.Queue = slices.Insert(r.Queue, 0, me)
	default:
		r.Queue = append(r.Queue, me)
	}
	return slices.Index(r.Queue, me) + 1
}

// before is how many places are before the owner's, or all if it has none.
func (m *buggyStore) before(r *row, me fullOwner) int {
	if i := slices.Index(r.Queue, me); i >= 0 {
		return i
	}
	if m.has("M32 callers without a place overtake the queue") {
		return 0
	}
	return len(r.Queue)
}

// untilTurn is how long a key that is not taken is kept for owners that wait.
func (m *buggyStore) untilTurn(r *row, me fullOwner, now time.Time) time.Duration {
	freed := r.Freed
	if r.Owner != "" {
		freed = r.Expires
	}
	n, free := m.before(r, me), time.Duration(now.UnixNano()-freed)
	switch {
	case m.has("queue: a takeover ignores it") && r.Owner != "", m.has("queue: only for show"):
		return 0
	case m.has("M31 a dead waiter blocks the queue") && n > 0:
		return lockstore.Turn
	case m.has("queue: every place is a turn"):
		return time.Duration(n)*lockstore.Turn - free
	case m.has("queue: turns of a second"):
		return lockstore.UntilTurn(n, 2*free)
	case m.has("queue: served from the end") && n < len(r.Queue):
		n = len(r.Queue) - 1 - n
	}
	return lockstore.UntilTurn(n, free)
}

// leaveByGrant ends the places that a grant to the owner ends.
func (m *buggyStore) leaveByGrant(r *row, me fullOwner) {
	i := slices.Index(r.Queue, me)
	switch {
	case m.has("queue: a grant keeps the place"):
	case i < 0 && m.has("queue: a grant without a place keeps the queue"):
	case i < 0:
		r.Queue = nil
	case m.has("queue: a grant keeps the places before it"):
		r.Queue = slices.Delete(r.Queue, i, i+1)
	default:
		r.Queue = r.Queue[i+1:]
	}
}

// leave takes the owner's place out.
func (m *buggyStore) leave(r *row, me fullOwner, now time.Time) {
	i := slices.Index(r.Queue, me)
	if i < 0 {
		return
	}
	if r.Owner == "" && (i == 0 && !m.has("queue: the next gets what is left of the turn") || i > 0 && !m.has("queue: a leave moves the turns of others")) {
		free := time.Duration(now.UnixNano() - r.Freed)
		r.Freed = now.Add(-lockstore.FreeAfterLeave(i, free)).UnixNano()
	}
	r.Queue = slices.Delete(r.Queue, i, i+1)
}

// Leave implements lockstore.Queuer.
func (m *buggyStore) Leave(ctx context.Context, key string, owner lockstore.Owner) error {
	if err := m.checked((lockstore.Lease{Key: key, Owner: owner}).Validate()); err != nil {
		return err
	}
	me := fullOwner(owner)
	return m.request(ctx, key, func(r *row, now time.Time) error {
		switch waits := slices.Contains(r.Queue, me); {
		case r.Owner == me && r.taken(now) && !m.has("queue: the holder leaves"):
			return fmt.Errorf("key %q: %w", key, lockstore.ErrGranted)
		case m.has("queue: leave does nothing"):
			return nil
		case m.has("queue: leave ends all places"):
			r.Queue = nil
		case m.has("queue: leave is an abandon"):
			r.Ended = append(r.Ended, me)
		case m.has("queue: leave again is lost") && !waits:
			return lockstore.ErrLost
		}
		m.leave(r, me, now)
		return nil
	})
}

// AwaitTurn implements lockstore.Queuer.
func (m *buggyStore) AwaitTurn(ctx context.Context, key string, owner lockstore.Owner) error {
	if err := (lockstore.Lease{Key: key, Owner: owner}).Validate(); err != nil {
		return err
	}
	for first := true; ; first = false {
		var left time.Duration
		m.locked(func() {
			r, _ := m.decode(m.rows[m.place(key)])
			left = r.left(m.now())
			switch {
			case !slices.Contains(r.Queue, fullOwner(owner)) && !m.has("queue: AwaitTurn goes on without a place"):
				left = 0
			case r.Begun && !r.taken(m.now()):
				if left = 0; m.has("begin: AwaitTurn goes on") {
					left = time.Second
				}
			case !r.taken(m.now()):
				left = m.untilTurn(&r, fullOwner(owner), m.now())
			}
		})
		if left <= 0 {
			return nil
		}
		if first && m.has("M30 a release before the wait is not seen") {
			<-ctx.Done()
		}
		if !m.has("queue: AwaitTurn sleeps through a release") {
			left = min(left, 10*time.Millisecond)
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-m.ended(ctx):
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (m *buggyStore) ended(ctx context.Context) <-chan struct{} {
	if m.has("queue: AwaitTurn outlives its context") {
		return nil
	}
	return ctx.Done()
}
