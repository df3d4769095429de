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
	// changeWrites is how many writes one request may take here: the one that follows a read or a
	// refused first write, and more if other owners change the row meanwhile.
	changeWrites = 4
	// endWrites is more, for requests that an owner has to get through. Many may leave a queue at
	// the same time, and those who share a key acquire, release and renew at the same time.
	endWrites = 16
	// slot is about how long a read and a write take.
	slot = 10 * time.Millisecond
	// lastWrite is what a write needs. One that its context cuts off leaves its outcome unknown.
	lastWrite = 5 * slot

	// anyTime is for a reply without a Date: it may be any time.
	anyTime = 100 * 365 * 24 * time.Hour
)

// clockOf is the time of a reply as the rules need it. The end of a lease in the row has the skew
// of its writer. It is over when Date is dateStep later. Fences are of the local clock, as those of the first writes
// are: who waits takes them for the times of the hand-overs.
func (t *table) clockOf(r reply) rules.Clock {
	now := t.clock.read()
	c := rules.Clock{Early: r.date.Add(-dateStep), Late: now.Add(t.skew), Fences: now}
	if r.date.IsZero() {
		c.Early, c.Fences = now.Add(-anyTime), time.Time{}
	}
	return c
}

// decide asks the rule book.
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

// untilDate is the longest time until a Date ends what has d left.
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
	ambiguous bool // an earlier write may have been applied

	answer driver.Answer // if the last write was applied
	marking
}

// readAndChange answers a request for the remembered row, or reads the row first.
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

// change answers a request for a row as a reply has brought it. It writes until the answer is certain.
func (t *table) change(ctx context.Context, key string, asked driver.Request, seen row, r reply, ambiguous bool) (driver.Answer, error) {
	q := request{key: key, Request: asked, ambiguous: ambiguous}
	for n := 0; ; n++ {
		next, changed, a := t.decide(seen, r, asked)
		switch {
		case !changed:
			return t.answerUnchanged(ctx, q, seen, r, a)
		case n == q.writes() && q.mayGiveWay(seen):
			return givesWay(seen), nil
		case n == q.writes():
			return driver.Answer{}, outcome(q.contended(ctx, n), q.ambiguous)
		}
		w := t.becoming(q.Request, seen, r, next)
		w.returns, w.yields = q.returns(next, a), q.Kind == driver.Acquire && len(seen.Holders) > 0 && seen.holder(q.Owner) < 0
		if q.Kind == driver.MarkStarted {
			q.note(seen, w, q.ambiguous)
		}
		u, err := t.update(ctx, key, w)
		if err != nil {
			return q.failed(seen, a, err)
		}
		if u.applied {
			answer, refusal, err := t.answerWrite(ctx, q, seen, next, a, u)
			if refusal == nil {
				return answer, err
			}
			u, a = *refusal, driver.Answer{}
			u.ambiguous = true
		}
		q.ambiguous, q.answer = q.ambiguous || u.ambiguous, a
		if seen, r, err = t.seeAgain(ctx, q, n, u); errors.Is(err, errGiveWay) {
			return givesWay(seen), nil
		}
		if err != nil {
			return driver.Answer{}, outcome(err, q.ambiguous)
		}
	}
}

// writes is how many writes a request may take.
func (q *request) writes() int {
	switch q.Kind {
	case driver.Leave, driver.Abandon, driver.Release, driver.Renew:
		return endWrites
	case driver.Acquire:
		if q.MaxHolders > 1 { // that others are granted the key does not mean that there is no room
			return endWrites
		}
	}
	return changeWrites
}

// returns is which row the reply to an applied write has to bring. A place, and who is parked, depend on the row before it.
func (q *request) returns(next rules.State, a driver.Answer) types.ReturnValue {
	switch {
	case a.Outcome == driver.Refused, next.Closed.For > 0:
		return types.ReturnValueAllOld
	case (row{State: next}).holder(q.Owner) >= 0:
		return types.ReturnValueAllNew // to be remembered
	}
	return types.ReturnValueNone
}

// mayGiveWay says that the owner may be refused without an answer of the rules. Who holds the key, was handed it or has a
// place is not: its lease and its place are there.
func (q *request) mayGiveWay(seen row) bool {
	return q.Kind == driver.Acquire && q.Fence == 0 && !q.ambiguous && seen.holder(q.Owner) < 0 && seen.place(q.Owner) < 0
}

// givesWay is the refusal of an owner that has no lease and no place: the requests of holders go first.
func givesWay(seen row) driver.Answer {
	return withoutPlace(driver.Answer{Outcome: driver.Refused, Status: driver.Status{State: driver.Reserved}}, seen)
}

// contended is the error of a request that has met n conflicts.
func (q *request) contended(ctx context.Context, n int) error {
	return &failure{fmt.Sprintf("dynamostore: key %q: the request %q was not applied, the row changed meanwhile: conflicts: %d", q.key, q.Kind, n), errors.Join(lockstore.ErrUnavailable, lockstore.ErrContended), ctx.Err()}
}

// failed is the answer after a write that has failed. a is what it would have been.
func (q *request) failed(seen row, a driver.Answer, err error) (driver.Answer, error) {
	switch {
	case a.Outcome == driver.Refused && errors.Is(err, lockstore.ErrUnavailable) && !q.ambiguous:
		return withoutPlace(a, seen), nil
	case q.Join && len(seen.Holders) > 0 && errors.Is(err, lockstore.ErrContended) && errors.Is(err, lockstore.ErrUnavailable) && q.mayGiveWay(seen):
		return givesWay(seen), nil
	}
	return driver.Answer{}, outcome(err, q.ambiguous)
}

var errGiveWay = errors.New("the requests of holders go first")

// seeAgain returns the row after the conflict number n, counted from 0, as its refusal has brought it. If others write at the same time, it
// pauses and reads, because the row of the refusal is old after the pause.
func (t *table) seeAgain(ctx context.Context, q request, n int, refusal reply) (row, reply, error) {
	seen, err := t.names.decode(q.key, refusal.item)
	afterMemory := n == 0 && q.Fence != 0 && seen.item[attrHolders] == nil // nobody shares the key, so few write
	if err != nil || q.writes() == changeWrites || afterMemory {
		return seen, refusal, err
	}
	wait := t.afterConflict(n, q.Request, seen)
	switch end, ok := ctx.Deadline(); {
	case (!ok || time.Until(end) > wait+lastWrite) && pause.For(ctx, wait) == nil:
		return t.read(ctx, q.key, true)
	case q.mayGiveWay(seen) && ctx.Err() == nil:
		return seen, refusal, errGiveWay
	}
	return seen, refusal, q.contended(ctx, n+1)
}

// afterConflict is the pause before the next write after n+1 conflicts. A refused write costs as much as another one, so as
// many as ask at the same time spread their writes. Requests of holders go first: they begin with a short pause.
func (t *table) afterConflict(n int, q driver.Request, seen row) time.Duration {
	slots := min(1<<min(n/2, 5), max(1, len(seen.Holders)))
	if seen.holder(q.Owner) < 0 {
		slots = max(4<<min(n, 5), len(seen.Holders)+len(seen.Queue))
	}
	return t.random(time.Duration(slots) * slot)
}

// answerWrite answers a request whose write was applied to the row seen. It may send more writes: the correction of a grant (correct) or of a
// hand-over (correctTurn), and the removal of a mark that came too late (unmark). A refusal is that of a correction.
func (t *table) answerWrite(ctx context.Context, q request, seen row, next rules.State, a driver.Answer, u reply) (_ driver.Answer, refusal *reply, err error) {
	stored, err := t.names.decode(q.key, u.item) // the row before or after the write, see returns
	if err != nil {
		return driver.Answer{}, nil, outcome(err, true)
	}
	switch {
	case next.Closed.For > 0:
		t.memory.remember(q.key, row{}, q.Owner)
	case a.Outcome != driver.Refused:
		t.memory.remember(q.key, stored, q.Owner)
	}
	switch {
	case a.Outcome == driver.Granted:
		granted, refusal, err := t.answerGrant(ctx, q.key, q.Request, seen, next, u)
		granted.Wake = a.Wake
		return granted, refusal, err
	case a.Outcome == driver.Refused:
		if len(next.Queue) > len(seen.Queue) { // others have come or gone meanwhile
			if _, _, now := t.decide(stored, u, q.Request); now.Outcome == driver.Refused {
				a, seen = now, stored
			}
		}
		if a.Position > 0 {
			a.Hint = placeNote(a.Position, t.clock.local(), seen)
		}
		return a, nil, nil
	case q.Kind == driver.MarkStarted:
		if _, _, now := t.decide(seen, u, q.Request); now.Outcome != driver.Done {
			a, err = t.unmark(ctx, q.key, q.Request, q.marking, now)
		}
	case next.Closed.For > 0:
		a.Wake = parkedIn(stored) // some may have joined after the row was read
	}
	t.correctTurn(ctx, q.key, seen, next, u)
	return a, nil, err
}

// parkedIn are the parked owners of the row before a write that has closed the key.
func parkedIn(before row) []driver.Owner {
	return slices.DeleteFunc(rules.Parked(before.Queue), func(o driver.Owner) bool { return before.holder(o) >= 0 })
}

// answerUnchanged answers when the rules change nothing in the row, also after a write whose reply was lost. It sends a write in two
// cases: the owner has the lease already (confirm), or its mark came after the end of the lease (unmark).
func (t *table) answerUnchanged(ctx context.Context, q request, seen row, r reply, a driver.Answer) (driver.Answer, error) {
	if q.ambiguous && (a.Outcome == driver.Done || a.Outcome == driver.Lost) { // Lost: of a revoked lease
		a.Wake = q.wakes(seen)
	}
	marked := slices.ContainsFunc(seen.Ended, func(e rules.Ended) bool { return e.Owner == q.Owner || e.Fence == q.Fence })
	switch {
	case a.Outcome == driver.Granted:
		a, err := t.confirmRepeat(ctx, q.key, q.Request, seen.Holders[seen.holder(q.Owner)], r)
		a.Wake = q.wakes(seen)
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
		return t.unmark(ctx, q.key, q.Request, q.marking, a)
	case a.Outcome != driver.Lost || !q.ambiguous || marked:
	case q.Kind == driver.Release, q.Kind == driver.Complete, q.Kind == driver.Resolve:
		// The other attempt may have been applied, and others may have had the key since. Lost would
		// say that the lease was lost before the request.
		return driver.Answer{}, replyLost(q.key)
	}
	if q.ambiguous && q.Kind == driver.Resolve && a.Outcome == driver.Refused && !marked {
		return driver.Answer{}, replyLost(q.key)
	}
	return a, nil
}

// wakes are the parked owners of an attempt whose reply was lost. If it was applied, they have been handed the key, or it has closed the key.
func (q *request) wakes(seen row) []driver.Owner {
	if q.Kind == driver.Complete || q.Kind == driver.Resolve && q.Effect {
		return q.answer.Wake
	}
	return slices.DeleteFunc(slices.Clone(q.answer.Wake), func(o driver.Owner) bool { return seen.holder(o) < 0 })
}

// revokedBefore is the answer to a Revoke whose earlier attempt may have been applied. first is the
// answer if it was: it says what was revoked, and a is of the row as it is now.
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
