package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Package rules decides. What it needs is a row and DynamoDB's time, which each reply has. The new
// row is written if the old one has not changed. Only an arrival and the release that nobody is known to wait for
// begin with a write whose condition is the rule: see arrivalWrite and releaseWrite.

// book has the settings of the rules. A row has room for two marks, see encode.
var book = rules.Book{Places: maxPlaces, Marks: 16}

const (
	// maxWrites is how many writes one request may take here: the one that follows a read or a refused first write, and
	// more if other owners change the row meanwhile.
	maxWrites = 16
	// slot is about how long a read and a write take.
	slot = 10 * time.Millisecond
	// lastWrite is what a write needs. One that its context cuts off leaves its outcome unknown.
	lastWrite = 5 * slot

	// anyTime is for a reply without a Date: it may be any time.
	anyTime = 100 * 365 * 24 * time.Hour
)

// clockOf is the time of a reply as the rules need it. The end of a lease in the row has the skew of its writer. It is over when Date is dateStep later.
// Fences are of the local clock, as those of the first writes are: who waits takes them for the times of the hand-overs. It changes nothing. decide
// calls it, also with the reply that remembered makes up, and so do Await, raiseFence, changeQueue and revokedSince.
func (t *table) clockOf(r reply) rules.Clock {
	now := t.clock.read()
	c := rules.Clock{Early: r.date.Add(-dateStep), Late: now.Add(t.skew), Fences: now}
	if r.date.IsZero() {
		c.Early, c.Fences = now.Add(-anyTime), time.Time{}
	}
	return c
}

// decide asks the rule book. It sends and changes nothing. change, answerWrite and withoutPlace call it for a request, and so do
// remembered and List.
func (t *table) decide(seen row, r reply, q driver.Request) (next rules.State, changed bool, a driver.Answer) {
	q.Hint, q.Join = "", q.Join && !seen.damaged
	clock := t.clockOf(r)
	if i := seen.holder(q.Owner); q.Kind == driver.Renew && i >= 0 {
		q.TTL = max(q.TTL, seen.Holders[i].End().Sub(clock.Late)) // the row does not have the TTL, and a renewal shortens nothing
	}
	next, changed, a, _ = book.Decide(seen.State, clock, q)
	a.Status.Remaining = t.untilDate(a.Status.Remaining, r)
	for i := range a.Status.Holders {
		a.Status.Holders[i].Remaining = t.untilDate(a.Status.Holders[i].Remaining, r)
	}
	if len(a.Status.Result) == 0 {
		a.Status.Result = nil
	}
	return next, changed, a
}

// untilDate is the longest time until a Date ends what has d left. decide calls it.
func (t *table) untilDate(d time.Duration, r reply) time.Duration {
	switch {
	case d <= 0:
		return 0
	case r.date.IsZero():
		return max(0, d-anyTime)
	}
	return (d + dateStep - 1).Truncate(dateStep) // Date has whole seconds
}

// request is one that change answers.
type request struct {
	key string
	driver.Request
	ambiguous bool // an earlier write of it was applied, or may have been

	answer driver.Answer // if the last write was applied
	marking
}

// readAndChange sends one read, unless the row is remembered, and then what change sends. Do calls it for each request that does not begin with a
// blind write. acquire calls it if the request extends a hand-over, parks, has a place, or has MaxHolders above 1; release calls it if somebody is known to
// wait, or if the key is shared. An Inspect sends the read alone.
func (t *table) readAndChange(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	seen, r, ok := t.remembered(key, q)
	if !ok {
		var err error
		if seen, r, err = t.read(ctx, key, true); err != nil {
			return driver.Answer{}, err
		}
	}
	return t.change(ctx, key, q, seen, r, false)
}

// change answers a request for a row as a reply has brought it. acquire calls it after each arrival, applied or refused; release after its first write, if
// that was refused; readAndChange after its read. ambiguous says that an earlier write of the request was applied, or may have been. If the rules change
// nothing, answerUnchanged answers, which seldom sends a write. Otherwise it sends a write that makes their next state of the row, on condition that the row
// has not changed, and again for the changed row (seeAgain), maxWrites times at most. answerWrite answers after the one that is applied, and may send one
// more; giveUp answers if none is applied. The memory of rows changes only in answerWrite and answerUnchanged.
func (t *table) change(ctx context.Context, key string, asked driver.Request, seen row, r reply, ambiguous bool) (driver.Answer, error) {
	q := request{key: key, Request: asked, ambiguous: ambiguous}
	for n := 0; ; n++ {
		next, changed, a := t.decide(seen, r, asked)
		if !changed {
			return t.answerUnchanged(ctx, q, seen, r, a)
		}
		if n == maxWrites {
			return q.giveUp(seen, a, q.contended(ctx, n))
		}
		w := t.becoming(q.Request, seen, r, next)
		w.returns, w.yields = q.returns(next), q.Kind == driver.Acquire && len(seen.Holders) > 0 && seen.holder(q.Owner) < 0
		if q.Kind == driver.MarkStarted {
			q.note(seen, w, q.ambiguous)
		}
		u, err := t.update(ctx, key, w)
		if err != nil {
			return q.giveUp(seen, a, err)
		}
		if u.applied {
			return t.answerWrite(ctx, q, seen, next, a, u)
		}
		q.ambiguous, q.answer = q.ambiguous || u.ambiguous, a
		if seen, r, err = t.seeAgain(ctx, q, n, u); err != nil {
			return q.giveUp(seen, a, err)
		}
	}
}

// returns is which row the reply to an applied write has to bring: who is parked when the key closes is in the row before it; a place, and
// what is remembered, is in the row after it. change calls it.
func (q *request) returns(next rules.State) types.ReturnValue {
	after := row{State: next}
	switch {
	case next.Closed.For > 0:
		return types.ReturnValueAllOld
	case after.holder(q.Owner) >= 0, after.place(q.Owner) >= 0:
		return types.ReturnValueAllNew
	}
	return types.ReturnValueNone
}

// giveUp answers a request that was throttled, met too many conflicts or failed; a would have been the answer of its last write. The requests of
// holders go first: an Acquire is refused without a place if too many ask for a key that is held, and if its owner surely has neither a
// lease nor a place. It sends nothing; change calls it.
func (q *request) giveUp(seen row, a driver.Answer, err error) (driver.Answer, error) {
	err = outcome(err, q.ambiguous)
	contended := errors.Is(err, lockstore.ErrContended) && errors.Is(err, lockstore.ErrUnavailable) && len(seen.Holders) > 0
	if q.Kind != driver.Acquire || q.Fence != 0 || !contended || seen.holder(q.Owner) >= 0 || seen.place(q.Owner) >= 0 {
		return driver.Answer{}, err
	}
	if a.Outcome != driver.Refused {
		a = driver.Answer{Outcome: driver.Refused, Status: driver.Status{State: driver.Reserved}}
	}
	a.Position, a.Status.Waiting, a.Hint = 0, len(seen.Queue), noteFull
	return a, nil
}

// contended is the error of a request that has met n conflicts. change and seeAgain call it.
func (q *request) contended(ctx context.Context, n int) error {
	return &failure{fmt.Sprintf("dynamostore: key %q: the request %q was not applied, the row changed meanwhile: conflicts: %d", q.key, q.Kind, n), errors.Join(lockstore.ErrUnavailable, lockstore.ErrContended), ctx.Err()}
}

// seeAgain returns the row after the conflict number n of change, counted from 0. The first time the refusal has brought it, unless several share the
// key. Otherwise many write at the same time, so it pauses, longer each time, and sends a read. If too little time is left for the pause and a write, it sends
// nothing and returns contended. change calls it.
func (t *table) seeAgain(ctx context.Context, q request, n int, refusal reply) (row, reply, error) {
	seen, err := t.names.decode(q.key, refusal.item)
	if err != nil || n == 0 && seen.item[attrHolders] == nil {
		return seen, refusal, err
	}
	wait := t.afterConflict(n, q.Request, seen)
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= wait+lastWrite || pause.For(ctx, wait) != nil {
		return seen, refusal, q.contended(ctx, n+1)
	}
	return t.read(ctx, q.key, true)
}

// afterConflict is the pause before the next write after n+1 conflicts. A refused write costs as much as another one, so as
// many as ask at the same time spread their writes. Requests of holders go first: they begin with a short pause. seeAgain calls it.
func (t *table) afterConflict(n int, q driver.Request, seen row) time.Duration {
	slots := min(1<<min(n/2, 5), max(1, len(seen.Holders)))
	if seen.holder(q.Owner) < 0 {
		slots = max(4<<min(n, 5), len(seen.Holders)+len(seen.Queue))
	}
	return t.random(time.Duration(slots) * slot)
}

// answerWrite answers a request after change's write was applied to the row seen. It remembers the row if the owner has a lease in it, and otherwise forgets
// the key if the owner had it alone. After a write that closes the key it only forgets. The place and the state of a refusal are those after the write. It
// sends one more write in two cases: a mark came after the end of its lease (unmark), or a hand-over was slow (correctTurn). change calls it.
func (t *table) answerWrite(ctx context.Context, q request, seen row, next rules.State, a driver.Answer, u reply) (driver.Answer, error) {
	stored, err := t.names.decode(q.key, u.item) // the row before or after the write, see returns
	if err != nil {
		return driver.Answer{}, outcome(err, true)
	}
	if next.Closed.For > 0 {
		t.memory.forget(q.key, q.Owner)
	} else {
		t.memory.remember(q.key, stored, q.Owner)
	}
	switch {
	case a.Outcome == driver.Granted:
		a.TTL, err = t.trust(q.key, stored.leaseEnd(q.Owner), u)
		return a, err
	case a.Outcome == driver.Refused:
		if _, _, now := t.decide(stored, u, q.Request); now.Outcome == driver.Refused {
			a.Position, a.Status = now.Position, now.Status // others have come or gone meanwhile
		}
		if a.Position > 0 {
			a.Hint = placeNote(a.Position, t.clock.local(), stored)
		}
		return a, nil
	case q.Kind == driver.MarkStarted:
		if _, _, now := t.decide(seen, u, q.Request); now.Outcome != driver.Done {
			a, err = t.unmark(ctx, q.key, q.Request, q.marking, stored, now)
		}
	case next.Closed.For > 0:
		a.Wake = parkedIn(stored) // some may have joined after the row was read
	}
	t.correctTurn(ctx, q.key, seen, next, u)
	return a, err
}

// correctTurn sends a write that moves the end of a hand-over later, if it is too early because the request was slow, and if this lease is there still and
// not extended; answerWrite calls it last, for what is neither granted nor refused: a hand-over by a Release, Leave, Abandon, Resolve or Revoke. The request
// is done, whatever becomes of this. It makes no end earlier: whoever was handed the key may have seen the first end, trusts the lease, and is not told of
// another one.
func (t *table) correctTurn(ctx context.Context, key string, seen row, next rules.State, r reply) {
	h := (row{State: next}).alone()
	if h == nil || !h.HandedOver || h.Fence == seen.LastFence || r.date.IsZero() {
		return
	}
	end, right := t.end(seen, *h).Truncate(time.Millisecond), t.clock.read().Add(h.TTL).Truncate(time.Millisecond)
	if right.Sub(end) > dateStep+margin {
		_, _ = t.update(ctx, key, write{
			becomes: values{attrExpires: millis(right), attrTTL: sweepTime(right, h.Fence)},
			expects: values{attrOwner: text(h.Owner), attrFence: integer(h.Fence), attrExpires: millis(end), attrStarted: nil},
		})
	}
}

// parkedIn are the parked owners of the row before a write that has closed the key. answerWrite calls it.
func parkedIn(before row) []driver.Owner {
	return slices.DeleteFunc(rules.Parked(before.Queue), func(o driver.Owner) bool { return before.holder(o) >= 0 })
}

// answerUnchanged answers when the rules change nothing in change's row, also after a write whose reply was lost. It sends
// a write only if that one was a mark that came after the end of its lease (unmark). It remembers the row of a lease that is granted.
// change calls it.
func (t *table) answerUnchanged(ctx context.Context, q request, seen row, r reply, a driver.Answer) (driver.Answer, error) {
	if q.ambiguous && (a.Outcome == driver.Done || a.Outcome == driver.Lost) { // Lost: of a revoked lease
		a.Wake = q.wakes(seen)
	}
	marked := slices.ContainsFunc(seen.Ended, func(e rules.Ended) bool { return e.Owner == q.Owner || e.Fence == q.Fence })
	switch {
	case a.Outcome == driver.Granted: // the lease is there already, by an arrival or by an earlier call
		var err error
		t.memory.remember(q.key, seen, q.Owner)
		a.Wake = q.wakes(seen)
		a.TTL, err = t.trust(q.key, seen.leaseEnd(q.Owner), r)
		return a, err
	case a.Outcome == driver.Refused && a.Position > 0:
		a.Hint = placeNote(a.Position, t.clock.local(), seen)
	case a.Outcome == driver.Refused && q.Join && len(seen.Queue) >= maxPlaces:
		a.Hint = noteFull
	case q.Kind == driver.Revoke && q.ambiguous:
		return revokedBefore(q.key, q.Request, seen, a, q.answer)
	case a.Outcome == driver.Lost && q.ambiguous && q.mark != 0 && markOf(seen.item) == q.mark:
		if t.revokedSince(seen, r, q.Request) {
			return done, nil
		}
		return t.unmark(ctx, q.key, q.Request, q.marking, seen, a)
	case !q.ambiguous || marked:
	case a.Outcome == driver.Lost && (q.Kind == driver.Release || q.Kind == driver.Complete),
		q.Kind == driver.Resolve && (a.Outcome == driver.Lost || a.Outcome == driver.Refused):
		// The other attempt may have been applied, and others may have had the key since. Lost would
		// say that the lease was lost before the request.
		return driver.Answer{}, replyLost(q.key)
	}
	return a, nil
}

// wakes are the parked owners of an attempt whose reply was lost. If it was applied, they have been handed the key, or it has closed the
// key. answerUnchanged calls it.
func (q *request) wakes(seen row) []driver.Owner {
	if q.Kind == driver.Complete || q.Kind == driver.Resolve && q.Effect {
		return q.answer.Wake
	}
	return slices.DeleteFunc(slices.Clone(q.answer.Wake), func(o driver.Owner) bool { return seen.holder(o) < 0 })
}

// revokedBefore is the answer to a Revoke whose earlier attempt may have been applied. first is the
// answer if it was: it says what was revoked, and a is of the row as it is now. answerUnchanged calls it.
func revokedBefore(key string, q driver.Request, seen row, a, first driver.Answer) (driver.Answer, error) {
	i := slices.IndexFunc(seen.Holders, func(h rules.Holder) bool { return h.Fence == q.Fence })
	m := slices.IndexFunc(seen.Ended, func(e rules.Ended) bool { return e.Fence == q.Fence })
	switch {
	case i >= 0 && (q.AtOnce || a.Outcome == driver.Done || !seen.Holders[i].Revoked):
		return a, nil
	case i >= 0, m >= 0 && seen.Ended[m].How == rules.Revoked:
		return first, nil
	case m >= 0 && (q.AtOnce || seen.Ended[m].How == rules.Completed):
		return a, nil // a lease that is revoked does not complete, but its owner may abandon it, and an operator resolve it
	}
	return driver.Answer{}, replyLost(key)
}
