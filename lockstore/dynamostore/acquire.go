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

// acquire sends one write, which grants a free key, or takes the last place of the queue. If it
// is refused, the row decides. An owner that knows more begins in another way.
func (t *table) acquire(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	n := parseNote(q.Hint)
	if q.Fence == 0 && n.full {
		if a, refused, err := t.lookForRoom(ctx, key, q); err != nil || refused {
			return a, err
		}
	}
	if q.Fence != 0 || q.MaxHolders > 1 || q.Parked > 0 || n.reads {
		return t.readAndChange(ctx, key, q)
	}
	w, g := t.arrivalWrite(q)
	r, err := t.update(ctx, key, w)
	if err != nil {
		return t.waitWithoutPlace(ctx, key, q, err)
	}
	seen, err := t.names.decode(key, r.item)
	switch {
	case r.applied && r.item[attrOwner] == nil: // it was free
		// The old row fulfilled the condition, so an error in decode does not matter.
		if g.before = -1; err == nil && r.sentOnce {
			g.before = seen.LastFence
		}
		t.memory.remember(key, t.afterArrival(key, g, r.item), q.Owner)
		return t.answerArrival(ctx, key, q, g, r)
	case err == nil && !r.applied && r.ambiguous && g.made(seen.alone(), q.Owner): // the SDK sent this write twice, and the first one was applied
		g.before = -1
		return t.answerArrival(ctx, key, q, g, r)
	case err == nil && r.applied && !seen.damaged: // a place in a damaged queue is none
		r.item[attrQueue] = list(append(seen.queue, g.place)...)
		seen, err = t.names.decode(key, r.item)
	}
	if err != nil {
		return driver.Answer{}, outcome(err, r.applied || r.ambiguous)
	}
	return t.change(ctx, key, q, seen, r, r.applied || r.ambiguous)
}

// answerArrival answers an arrival that was granted the key. If its end has to be corrected and the row has changed, the row decides.
func (t *table) answerArrival(ctx context.Context, key string, q driver.Request, g *grant, r reply) (driver.Answer, error) {
	a, refusal, err := t.correct(ctx, key, q, g, r)
	if refusal == nil {
		return a, err
	}
	seen, err := t.names.decode(key, refusal.item)
	if err != nil {
		return driver.Answer{}, outcome(err, true)
	}
	return t.change(ctx, key, q, seen, *refusal, true)
}

// arrivalWrite is the first write of an Acquire that knows nothing of the row: it grants a key that is free or new. Its fence is of the
// clock, and is noted in t.sent, so that an abandon can raise the row's fence above it. If the request joins, the same write takes a place instead if the key is taken: it sets the
// attributes of a lease only if there is none. A row of another program has no number as its
// fence, and is refused.
func (t *table) arrivalWrite(q driver.Request) (write, *grant) {
	now := t.clock.read()
	g := &grant{fence: driver.Fence(now.UnixMicro()), expires: t.expiresAt(now, q.TTL), place: placeOf(rules.Waiter{Owner: q.Owner, Since: now})}
	t.sent.note(q.Owner, g.fence)
	g.lease = values{
		attrOwner: ownerText(q.Owner), attrFence: fenceNumber(g.fence), attrExpires: millis(g.expires), attrText: text(q.Holder),
		attrQueue: list(g.place),
	}
	w := write{
		becomes:    maps.Clone(g.lease),
		makesRow:   true,
		conditions: []string{ifFree, notEnded},
		names:      []string{attrEnded, attrAbandoned},
		values:     values{":me": ownerText(q.Owner)},
		returns:    types.ReturnValueAllOld,
	}
	w.becomes[attrLastFence], w.becomes[attrTTL] = nil, sweepTime(g.expires, g.fence)
	if q.Join {
		for _, name := range []string{attrOwner, attrFence, attrExpires, attrText} {
			w.assign(name, "if_not_exists(#"+name+", :"+name+")", g.lease[name])
		}
		w.assign(attrQueue, "list_append(if_not_exists(#queue, :empty), :queue)", g.lease[attrQueue])
		// A queue of another type is damaged: DynamoDB refuses to add a place to it.
		w.conditions[0] = "(" + ifFree + " AND attribute_not_exists(#expires) AND (attribute_not_exists(#queue) OR attribute_type(#queue, :typeList)) OR " + ifJoins + ")"
		w.names = append(w.names, attrStarted)
		maps.Copy(w.values, values{
			":empty": list(), ":typeList": text("L"), ":typeText": text("S"), ":zero": integer(0), ":last": integer(maxMilli), ":highest": integer(maxMilli * 1000),
			":closed": text(closedOwner), ":shared": text(sharedOwner),
		})
	}
	return w, g
}

// waitWithoutPlace is for an arrival that has failed. If it was throttled, a read costs less than
// what failed, and is enough to wait without a place.
func (t *table) waitWithoutPlace(ctx context.Context, key string, q driver.Request, failed error) (driver.Answer, error) {
	if q.Join && throttled(failed) && errors.Is(failed, lockstore.ErrUnavailable) {
		if seen, r, err := t.read(ctx, key, false); err == nil {
			if _, _, a := t.decide(seen, r, q); a.Outcome == driver.Refused && seen.place(q.Owner) < 0 {
				return withoutPlace(a, seen), nil
			}
		}
	}
	return driver.Answer{}, failed
}

// lookForRoom refuses an owner without a place, unless it may take one now. A write costs more than
// a read, also if it is refused, and all who wait for a place may see the same free one at the same
// time. So the fewer places there are, the fewer of them try, each after a pause and a second read,
// which is consistent.
func (t *table) lookForRoom(ctx context.Context, key string, q driver.Request) (_ driver.Answer, refused bool, _ error) {
	for _, consistent := range []bool{false, true} {
		seen, r, err := t.read(ctx, key, consistent)
		if err != nil {
			return driver.Answer{}, false, err
		}
		_, _, a := t.decide(seen, r, q)
		if a.Outcome != driver.Refused || seen.place(q.Owner) >= 0 {
			break // as the write says it
		}
		room := maxPlaces - len(seen.Queue)
		if room <= 0 || !q.Join || !consistent && (t.random(allTry) >= time.Duration(room) || pause.For(ctx, t.random(tryPause)) != nil) {
			return withoutPlace(a, seen), true, nil
		}
	}
	return driver.Answer{}, false, nil
}

// withoutPlace is the refusal of an owner that gets no place now, because the queue is full, or because the request was throttled or gave
// way. Its next Acquire begins with a read.
func withoutPlace(a driver.Answer, seen row) driver.Answer {
	a.Position, a.Status.Waiting, a.Hint = 0, len(seen.Queue), noteFull
	return a
}
