package dynamostore

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	// sound is false for a row whose end is damaged. Such a row must not change.
	sound = "#expires <= :last"

	// notEnded refuses an owner whose mark is in the row.
	notEnded = "#ended <> :me AND #abandoned <> :me"

	// ifFree is for a key that nobody has and nobody waits for, whose last fence is smaller than
	// the local time.
	ifFree = "attribute_not_exists(#owner) AND attribute_not_exists(#fence) AND attribute_not_exists(#queue[0]) AND #lastFence < :fence"

	// ifJoins is for a key that one owner has alone, and whose row DynamoDB does not delete before
	// it would delete the one of the new lease. Work has not started, or the key may be in doubt. The holder's place is the first of 65.
	ifJoins = "attribute_type(#owner, :typeText) AND #owner <> :me AND #owner <> :closed AND #owner <> :shared AND #fence > :zero AND #fence <= :highest AND " + sound +
		" AND attribute_not_exists(#started) AND #queue[0] = #owner AND NOT contains(#queue, :me) AND attribute_not_exists(#queue[128]) AND #ttl <= :ttl"
)

const (
	// allTry is with how many free places all who found the queue full try to take one.
	allTry = 8
	// tryPause is the longest pause before they do.
	tryPause = 200 * time.Millisecond
)

// acquire answers an Acquire; only Do calls it. It sends the arrival, one write that grants a free key or takes the last place of the queue, and change
// answers for the row after it. If the time is not known, it sends a read first. If an arrival that joins is throttled, it sends a read, and refuses the
// owner without a place if the row says so. Who extends a hand-over, shares the key, parks or has a place sends no arrival: readAndChange answers. The
// hint of the last answer says who has a place, and who found the queue full: for that one see lookForRoom.
func (t *table) acquire(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	n := parseNote(q.Hint)
	if q.Fence == 0 && n.Full {
		if a, refused, err := t.lookForRoom(ctx, key, q); err != nil || refused {
			return a, err
		}
	}
	if q.Fence != 0 || q.MaxHolders > 1 || q.Parked > 0 || n.Reads {
		return t.readAndChange(ctx, key, q)
	}
	if !t.clock.right() {
		if _, _, err := t.read(ctx, key, false); err != nil { // its reply tells the time
			return driver.Answer{}, err
		}
	}
	r, err := t.update(ctx, key, t.arrivalWrite(q))
	if q.Join && errors.Is(err, lockstore.ErrContended) && errors.Is(err, lockstore.ErrUnavailable) {
		// It was throttled. A read costs less, and may show that the owner has to wait anyway.
		if seen, r, readErr := t.read(ctx, key, false); readErr == nil {
			q.Work = "" // the read may be old, and covers nobody
			if a, ok := t.withoutPlace(seen, r, q); ok {
				return a, nil
			}
		}
	}
	if err != nil {
		return driver.Answer{}, err
	}
	seen, err := t.names.decode(key, r.item)
	if err != nil {
		return driver.Answer{}, outcome(err, r.applied || r.ambiguous)
	}
	return t.change(ctx, key, q, seen, r, r.applied || r.ambiguous)
}

// arrivalWrite is the first write of an Acquire that knows nothing of the row: it grants a key that is free or new. Its fence is of the
// clock. If the request joins, the same write takes a place instead if the key is taken: it sets the
// attributes of a lease only if there is none. A row of another program has no number as its
// fence, and is refused. It sends nothing, but notes the fence (noteSent). acquire calls it.
func (t *table) arrivalWrite(q driver.Request) write {
	now := t.clock.read()
	fence, expires := driver.Fence(now.UnixMicro()), t.expiresAt(now, q.TTL)
	t.noteSent(fence)
	lease := values{
		attrOwner: text(q.Owner), attrFence: integer(fence), attrExpires: millis(expires), attrText: text(q.Holder),
		attrQueue: list(placeOf(rules.Waiter{Owner: q.Owner, Since: now, Work: q.Work, Event: q.Event})),
	}
	w := write{
		becomes:    maps.Clone(lease),
		makesRow:   true,
		conditions: []string{ifFree, notEnded},
		values:     values{":me": text(q.Owner)},
		returns:    types.ReturnValueAllNew,
	}
	w.becomes[attrLastFence], w.becomes[attrTTL] = nil, sweepTime(expires, fence)
	if q.Join {
		for _, name := range []string{attrOwner, attrFence, attrExpires, attrText} {
			w.assign(name, "if_not_exists(#"+name+", :"+name+")", lease[name])
		}
		w.assign(attrQueue, "list_append(if_not_exists(#queue, :empty), :queue)", lease[attrQueue])
		// A queue of another type is damaged: DynamoDB refuses to add a place to it.
		w.conditions[0] = "(" + ifFree + " AND attribute_not_exists(#expires) AND (attribute_not_exists(#queue) OR attribute_type(#queue, :typeList)) OR " + ifJoins + ")"
		if q.Work != "" { // somebody who waits may cover it
			w.conditions = append(w.conditions, "attribute_not_exists(#queue[2])")
		}
		maps.Copy(w.values, values{
			":empty": list(), ":typeList": text("L"), ":typeText": text("S"), ":zero": integer(0), ":last": integer(maxMilli), ":highest": integer(maxMilli * 1000),
			":closed": text(closedOwner), ":shared": text(sharedOwner),
		})
	}
	return w
}

// withoutPlace refuses an owner without a write, so it gets no place. Its next Acquire begins with a read. ok is false if the row is no
// reason for a refusal, or has a place of the owner, or one that may cover it. It sends nothing; acquire and lookForRoom call it.
func (t *table) withoutPlace(seen row, r reply, q driver.Request) (a driver.Answer, ok bool) {
	q.Join = false
	_, _, a = t.decide(seen, r, q)
	a.Hint = noteFull
	return a, a.Outcome == driver.Refused && a.Position == 0 && !a.Covered
}

// lookForRoom sends a read for an owner whose hint says that it was refused without a place, mostly because the queue was full, and refuses it with this
// hint while the queue is full; acquire calls it. It writes nothing. All who wait for a place see a free one at the same time, and a write costs more
// than a read, also if it is refused. So the fewer places are free, and the more share the key, the fewer go on, each after a pause and a second read,
// which is consistent.
func (t *table) lookForRoom(ctx context.Context, key string, q driver.Request) (_ driver.Answer, refused bool, _ error) {
	for _, again := range []bool{false, true} {
		seen, r, err := t.read(ctx, key, again)
		if err != nil {
			return driver.Answer{}, false, err
		}
		a, ok := t.withoutPlace(seen, r, q)
		if !ok {
			break // as the write says it
		}
		room := maxPlaces - len(seen.Queue)
		if holders := len(seen.Holders); holders > 1 && len(seen.Queue) > 0 { // each of them writes, too, and goes first
			room = (room + holders - 1) / holders
		}
		if room <= 0 || !q.Join || !again && (t.random(allTry) >= time.Duration(room) || pause.For(ctx, t.random(tryPause)) != nil) {
			return a, true, nil
		}
	}
	return driver.Answer{}, false, nil
}
