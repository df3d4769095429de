package dynamostore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// Package rules decides. What it needs is a row and DynamoDB's time, which each reply has. The new
// row is written if the old one has not changed. Only the requests that are sent most often begin
// with a write whose condition is the rule: see arriving, releasing, extend and their like.

// book has the settings of the rules. A row has room for two marks, see row.encode.
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
	q.Note, q.Join = "", q.Join && !seen.damaged
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

// try is a write of a request, and what it would make of the row.
type try struct {
	next   rules.State
	answer driver.Answer
}

// change answers a request for a row that a reply has brought. It writes until the answer is
// certain. ambiguous says that an earlier write of the call may have been applied.
func (t *table) change(ctx context.Context, key string, q driver.Request, seen row, r reply, ambiguous bool) (driver.Answer, error) {
	var last try
	most := changeWrites
	switch q.Kind {
	case driver.Leave, driver.Abandon, driver.Release, driver.Renew:
		most = endWrites
	case driver.Acquire:
		if q.MaxHolders > 1 { // that others are granted the key does not mean that there is no room
			most = endWrites
		}
	}
	// Who holds the key, was handed it or has a place is not refused: its lease and its place are there.
	mayGiveWay := func() bool {
		return q.Kind == driver.Acquire && q.Fence == 0 && !ambiguous && seen.holder(q.Owner) < 0 && seen.place(q.Owner) < 0
	}
	for n := 0; ; n++ {
		next, changed, a := t.decide(seen, r, q)
		switch {
		case !changed:
			return t.unchanged(ctx, key, q, seen, r, a, last, ambiguous)
		case n == most && mayGiveWay():
			return givesWay(seen), nil
		case n == most:
			return driver.Answer{}, outcome(contended(ctx, key, q, n), ambiguous)
		}
		w := t.becoming(q, seen, r, next)
		w.yields = q.Kind == driver.Acquire && len(seen.Holders) > 0 && seen.holder(q.Owner) < 0
		u, err := t.update(ctx, key, w)
		switch {
		case err != nil && a.Outcome == driver.Refused && errors.Is(err, lockstore.ErrUnavailable) && !ambiguous:
			return withoutPlace(a, seen), nil
		case err != nil && q.Join && len(seen.Holders) > 0 && errors.Is(err, lockstore.ErrContended) && errors.Is(err, lockstore.ErrUnavailable) && mayGiveWay():
			return givesWay(seen), nil
		case err != nil:
			return driver.Answer{}, outcome(err, ambiguous)
		case u.applied && a.Outcome == driver.Granted:
			granted, err := t.granted(ctx, key, q, seen, next, u)
			granted.Wake = a.Wake
			return granted, err
		case u.applied && a.Outcome == driver.Refused:
			if before, err := t.names.decode(key, u.item); err == nil && len(next.Queue) > len(seen.Queue) { // others have come or gone meanwhile
				if _, _, now := t.decide(before, u, q); now.Outcome == driver.Refused {
					a, seen = now, before
				}
			}
			if a.Position > 0 {
				a.Note = placeNote(a.Position, t.clock.local(), seen)
			}
			return a, nil
		case u.applied && next.Closed.For > 0:
			a.Wake = t.parkedIn(key, u.item)
			return a, nil
		case u.applied:
			return a, nil
		}
		ambiguous = ambiguous || u.ambiguous
		last = try{next, a}
		r = u
		if seen, err = t.names.decode(key, u.item); err == nil && most == endWrites {
			// Others write at the same time. The row of the refusal is old after the pause.
			wait := t.afterConflict(n, q, seen)
			switch end, ok := ctx.Deadline(); {
			case (!ok || time.Until(end) > wait+lastWrite) && pause.For(ctx, wait) == nil:
				seen, r, err = t.read(ctx, key)
			case mayGiveWay() && ctx.Err() == nil:
				return givesWay(seen), nil
			default:
				err = contended(ctx, key, q, n+1)
			}
		}
		if err != nil {
			return driver.Answer{}, outcome(err, ambiguous)
		}
	}
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

// givesWay is the refusal of an owner that has no lease and no place: the requests of holders go first.
func givesWay(seen row) driver.Answer {
	return withoutPlace(driver.Answer{Outcome: driver.Refused, Status: driver.Status{State: driver.Reserved}}, seen)
}

// contended is the error of a request that has met n conflicts.
func contended(ctx context.Context, key string, q driver.Request, n int) error {
	return &failure{fmt.Sprintf("dynamostore: key %q: the request %q was not applied, the row changed meanwhile: conflicts: %d", key, q.Kind, n), errors.Join(lockstore.ErrUnavailable, lockstore.ErrContended), ctx.Err()}
}

// unchanged returns an answer that needs no write, or none after one whose reply was lost.
func (t *table) unchanged(ctx context.Context, key string, q driver.Request, seen row, r reply, a driver.Answer, last try, ambiguous bool) (driver.Answer, error) {
	mine := seen.holder(q.Owner)
	if ambiguous && (a.Outcome == driver.Done || a.Outcome == driver.Lost) { // Lost: of a revoked lease
		a.Wake = last.answer.Wake // the attempt whose reply was lost may have handed the key over
	}
	marked := slices.ContainsFunc(seen.Ended, func(e rules.Ended) bool { return e.Owner == q.Owner || e.Fence == q.Fence })
	switch {
	case a.Outcome == driver.Granted:
		h := seen.Holders[mine]
		if slices.ContainsFunc(last.next.Holders, func(o rules.Holder) bool {
			return o.Owner == h.Owner && o.Fence == h.Fence && o.End().UnixMilli() == h.End().UnixMilli()
		}) {
			granted, err := t.granted(ctx, key, q, row{}, last.next, r) // the SDK sent the write twice, and the first one was applied
			granted.Wake = last.answer.Wake
			return granted, err
		}
		return t.answerRepeat(ctx, key, q, seen, h, r)
	case a.Outcome == driver.Refused && a.Position > 0:
		a.Note = placeNote(a.Position, t.clock.local(), seen)
	case a.Outcome == driver.Refused && q.Join && len(seen.Queue) >= maxPlaces:
		a.Note = noteFull
	case q.Kind == driver.Revoke && ambiguous:
		return revokedBefore(key, q, seen, a, last.answer)
	case a.Outcome != driver.Lost || !ambiguous || marked:
	case q.Kind == driver.Release, q.Kind == driver.Complete, q.Kind == driver.Resolve:
		// The other attempt may have been applied, and others may have had the key since. Lost would
		// say that the lease was lost before the request.
		return driver.Answer{}, replyLost(key)
	}
	if ambiguous && q.Kind == driver.Resolve && a.Outcome == driver.Refused && !marked {
		return driver.Answer{}, replyLost(key)
	}
	return a, nil
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

// becoming is the write that makes the next state of a row as a reply has brought it. It depends on
// as little of the row as the decision does.
func (t *table) becoming(q driver.Request, seen row, r reply, next rules.State) write {
	w := write{values: values{}}
	if q.Kind == driver.Abandon {
		t.raise(q.Owner, seen, r, &next)
	}
	item, queue := t.encode(seen, next)
	was := func(name string) (condition string) {
		if seen.item[name] == nil {
			return "attribute_not_exists(#" + name + ")"
		}
		w.values[":was"+name] = seen.item[name]
		return "#" + name + " = :was" + name
	}
	var conditions []string
	put := func(name string, v types.AttributeValue) {
		switch {
		case reflect.DeepEqual(v, seen.item[name]) || v == nil && seen.item[name] == nil:
		case v == nil:
			w.remove = append(w.remove, "#"+name)
		default:
			w.set = append(w.set, "#"+name+" = :"+name)
			w.values[":"+name] = v
		}
	}
	for _, name := range leaseAttributes {
		put(name, item[name])
	}
	leases := len(w.set)+len(w.remove) > 0
	for _, name := range otherAttributes {
		put(name, item[name])
	}
	comes, goes := q.Kind == driver.Acquire, (q.Kind == driver.Leave || q.Kind == driver.Abandon) && seen.place(q.Owner) > 0
	switch {
	case !leases && item[attrShared] != nil && len(seen.Queue) > 0 && (comes || goes) && seen.holder(q.Owner) < 0:
		// Who comes or goes behind others depends on them, and not on who shares the key meanwhile, unless it is a holder itself.
		w.values[":asks"] = text(sharedBy(q.Owner))
		conditions = append(conditions, was(attrOwner), "attribute_exists(#queue[0])", "NOT contains(#shared, :asks)")
	case len(seen.item) == 0:
		w.makesRow = true
		conditions = append(conditions, "attribute_not_exists(#key)")
	case leases || item[attrShared] != nil:
		for _, name := range leaseAttributes {
			conditions = append(conditions, was(name))
		}
	default:
		conditions = append(conditions, was(attrOwner), was(attrFence), was(attrLast))
	}
	if leases || len(seen.item) == 0 {
		w.ttl, w.values[":ttl"] = ":ttl", t.sweeps(item, next)
	}
	w.oldRow = q.Kind == driver.Acquire || next.Closed.For > 0
	switch q.Kind {
	case driver.Acquire:
		conditions = append(conditions, notEnded)
		w.values[":me"] = ownerText(q.Owner)
	case driver.Abandon:
		if len(seen.item) > 0 && seen.holder(q.Owner) < 0 && seen.place(q.Owner) < 0 {
			conditions = append(conditions, was(attrQueue)) // its acquire may join meanwhile, with any MaxHolders
		}
	}
	newcomer := func(most int) bool { // would find room if nobody waited
		next := next
		next.Queue = []rules.Waiter{{MaxHolders: most}}
		return book.Wait(next, t.clockOf(r), "") <= 0
	}
	if first := len(seen.queue) - len(seen.Queue); len(seen.Queue) > 0 && len(next.Queue) > len(seen.Queue) && newcomer(next.Queue[len(next.Queue)-1].MaxHolders) {
		conditions = append(conditions, fmt.Sprintf("attribute_exists(#queue[%d])", first)) // there is room, so it joins because somebody waits
	}
	change := queueChange(seen, next, queue)
	conditions = append(conditions, change.conditions...)
	w.set, w.remove = append(w.set, change.set...), append(w.remove, change.remove...)
	maps.Copy(w.values, change.values)
	if len(next.Queue) == 0 && len(seen.item) > 0 && !seen.damaged && newcomer(math.MaxInt) {
		// Who has joined since would have been handed the key.
		conditions = append(conditions, fmt.Sprintf("attribute_not_exists(#queue[%d])", len(seen.queue)))
	}
	if len(w.set)+len(w.remove) == 0 { // a renewal of what lasts longer: the answer rests on a write, and DynamoDB wants one that sets something
		w.set, w.values[":same"] = []string{"#owner = :same"}, seen.item[attrOwner]
	}
	w.condition = strings.Join(conditions, " AND ")
	return w
}

// raise makes the fence of a free key larger than every fence that this process has sent for the owner, so that
// a late acquire of an owner that abandons it is refused. If the owner's lease is in the row and
// this process has sent no acquire of it, the row's own fence is large enough: a fence from a clock far
// ahead would cost every acquire until that time a second request.
func (t *table) raise(owner driver.Owner, seen row, r reply, next *rules.State) {
	highest := t.sent.highest(owner)
	if !(row{State: *next}).free() || len(seen.Holders) > 0 && highest == 0 {
		return
	}
	c := t.clockOf(r)
	// The clock may have been set back since the acquire was sent.
	next.LastFence = max(lockstore.NextFence(seen.LastFence, cmp.Or(c.Fences, c.Early)), highest+1)
}

// sweeps is when DynamoDB may delete the row.
func (t *table) sweeps(item values, next rules.State) types.AttributeValue {
	if started := item[attrStarted]; started != nil {
		return started
	}
	used := t.clock.read()
	for _, h := range next.Holders {
		used = later(used, h.End())
	}
	if next.Closed.For > 0 {
		used = next.Closed.End().Add(idleRow) // a day more: the clock of the writer may be off
	}
	return sweepTime(used, next.LastFence)
}

// queueWrite is the part of a write about the queue.
type queueWrite struct {
	set, remove, conditions []string
	values                  values
}

// makesRoom says that a lease or the first place has ended.
func makesRoom(seen, next rules.State) bool {
	return len(seen.Queue) > 0 && (len(next.Queue) == 0 || next.Queue[0].Owner != seen.Queue[0].Owner) ||
		slices.ContainsFunc(seen.Holders, func(h rules.Holder) bool {
			return !slices.ContainsFunc(next.Holders, func(n rules.Holder) bool { return n.Fence == h.Fence })
		})
}

// queueChange makes the queue of a row what it has to be. An owner that joins meanwhile stays. A
// queue that only lost places is as it was up to an element if this one is where it was. So the write requires the
// last element that it removes. Whoever makes room hands the key over until the first that stays finds none: so
// the write requires this one, too. It is the holder now, or there is no room for it.
func queueChange(seen row, next rules.State, queue []string) queueWrite {
	if next.Closed.For > 0 { // also of those who join meanwhile
		return queueWrite{remove: []string{"#queue"}}
	}
	c := queueWrite{values: values{}}
	var removed []int
	kept := 0
	for i, e := range seen.queue {
		if kept < len(queue) && queue[kept] == e {
			kept++
		} else {
			removed = append(removed, i)
		}
	}
	at := func(i int) {
		c.conditions = append(c.conditions, fmt.Sprintf("#queue[%d] = :at%d", i, i))
		c.values[fmt.Sprintf(":at%d", i)] = text(seen.queue[i])
	}
	if makesRoom(seen.State, next) && len(queue) > 0 {
		if i := slices.Index(seen.queue, queue[0]); i >= 0 {
			at(i)
		}
	}
	switch {
	case kept < len(queue) && len(removed) == 0 && kept == len(queue)-1 && len(seen.queue) > 0:
		joins := queue[kept]
		most := maxPlaces - 1 + min(1, len(seen.queue)-len(seen.Queue)) // elements: before the places is who has the key alone
		if waiter(joins).Parked > 0 {
			// At most half of the places, also if others park at the same time.
			most = min(most, len(seen.queue)+maxPlaces/2-len(rules.Parked(next.Queue)))
		}
		if slices.Contains(seen.queue, joins) { // as the owner of a hand-over that has lapsed
			most = len(seen.queue)
		} else {
			c.conditions = append(c.conditions, "NOT contains(#queue, :joins)")
			c.values[":joins"] = text(joins)
		}
		c.set = append(c.set, "#queue = list_append(#queue, :joining)")
		c.conditions = append(c.conditions, fmt.Sprintf("attribute_not_exists(#queue[%d])", most))
		c.values[":joining"] = list(joins)
	case kept < len(queue) || seen.damaged || seen.item[attrQueue] == nil && len(seen.item) > 0 && len(queue) > 0:
		c.set = append(c.set, "#queue = :queue")
		c.values[":queue"] = list(queue...)
		switch {
		case len(seen.queue) > 0:
			c.conditions = append(c.conditions, "#queue = :wasqueue")
			c.values[":wasqueue"] = seen.item[attrQueue]
		case !seen.damaged && len(seen.item) > 0:
			c.conditions = append(c.conditions, "attribute_not_exists(#queue[0])")
		}
	case len(removed) > 0:
		for _, i := range removed {
			c.remove = append(c.remove, fmt.Sprintf("#queue[%d]", i))
		}
		at(removed[len(removed)-1])
	}
	return c
}

func list(texts ...string) types.AttributeValue {
	l := &types.AttributeValueMemberL{Value: []types.AttributeValue{}}
	for _, s := range texts {
		l.Value = append(l.Value, text(s))
	}
	return l
}
