package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/internal/tell"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

const (
	// notEnded refuses an owner whose mark is in the row.
	notEnded = "#released <> :me AND #abandoned <> :me"

	// ifFree is for a key that nobody has and nobody waits for, whose last fence is smaller than
	// the local time.
	ifFree = "attribute_not_exists(#owner) AND attribute_not_exists(#fence) AND attribute_not_exists(#queue[0]) AND #last < :fence"

	// ifJoins is for a key that one owner has alone, and whose row DynamoDB does not delete before
	// it would delete the one of the new lease. Work has not started, or the key may be in doubt.
	ifJoins = "attribute_type(#owner, :text) AND #owner <> :me AND #owner <> :closed AND #owner <> :shared AND #fence > :zero AND #fence <= :highest AND " + sound +
		" AND attribute_not_exists(#begun) AND #queue[0] = #owner AND NOT contains(#queue, :me) AND attribute_not_exists(#queue[64]) AND #ttl <= :ttl"
)

const (
	// allTry is with how many free places all who found the queue full try to take one.
	allTry = 8
	// tryPause is the longest pause before they do.
	tryPause = 200 * time.Millisecond
)

// grant is an applied acquire that the caller does not know yet.
type grant struct {
	fence   driver.Fence
	expires time.Time
	before  driver.Fence // the fence in the old row, 0 without one; -1 when it is not known
}

// made says that the only lease of a row is this grant: the SDK may send a write twice.
func (g *grant) made(h *rules.Holder, o driver.Owner) bool {
	return h != nil && h.Owner == o && h.Fence == g.fence && h.End().Equal(g.expires) && !h.Revoked
}

// acquire sends one write, which grants a free key, or takes the last place of the queue. If it
// is refused, the row decides. An owner that knows more begins in another way.
func (t *table) acquire(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	n := parseNote(q.Note)
	switch {
	case q.Fence != 0 && q.MaxHolders == 1:
		return t.extendHandOver(ctx, key, q)
	case q.Fence == 0 && n.full:
		if a, refused, err := t.stillFull(ctx, key, q); err != nil || refused {
			return a, err
		}
	}
	if q.MaxHolders > 1 || q.Parked > 0 || n.reads {
		return t.readAndChange(ctx, key, q)
	}
	w, g := t.arriving(q)
	r, err := t.update(ctx, key, w)
	if err != nil {
		return t.notArrived(ctx, key, q, err)
	}
	seen, err := t.names.decode(key, r.item)
	switch {
	case r.applied && r.item[attrOwner] == nil: // it was free
		// The old row fulfilled the condition, so an error in decode does not matter.
		if g.before = -1; err == nil && r.sentOnce {
			g.before = seen.LastFence
		}
		return t.trusted(ctx, key, q, g, false, r)
	case err != nil:
		return driver.Answer{}, err
	case r.applied && seen.damaged: // a place in such a queue is none
		return t.change(ctx, key, q, seen, r, true)
	case r.applied:
		return t.joined(ctx, key, q, seen, r)
	case r.ambiguous && g.made(seen.alone(), q.Owner):
		// The SDK sent this write twice, and the first one was applied.
		g.before = -1
		return t.trusted(ctx, key, q, g, len(seen.Queue) > 0, r)
	}
	return t.change(ctx, key, q, seen, r, r.ambiguous)
}

// notArrived is the answer after an arrival that failed. If it was throttled, a read costs less than
// what failed, and is enough to wait without a place.
func (t *table) notArrived(ctx context.Context, key string, q driver.Request, failed error) (driver.Answer, error) {
	if q.Join && throttled(failed) && errors.Is(failed, lockstore.ErrUnavailable) {
		if seen, r, err := t.readAs(ctx, key, false); err == nil {
			if _, _, a := t.decide(seen, r, q); a.Outcome == driver.Refused && seen.place(q.Owner) < 0 {
				return withoutPlace(a, seen), nil
			}
		}
	}
	return driver.Answer{}, failed
}

// withPlace is the row that a write has made which took the last place in the queue of the row before.
func (t *table) withPlace(key string, before row, place string) (row, error) {
	return t.names.decode(key, cloneWith(before.item, attrQueue, list(append(before.queue, place)...)))
}

// joined is the answer to an arrival that took the last place in the queue of the row before.
func (t *table) joined(ctx context.Context, key string, q driver.Request, before row, r reply) (driver.Answer, error) {
	seen, err := t.withPlace(key, before, string(q.Owner))
	if err != nil {
		return driver.Answer{}, err
	}
	if len(seen.Queue) < len(seen.queue)-1 { // it has an earlier place, with another MaxHolders: this one ends
		if u, err := t.update(ctx, key, t.becoming(q, seen, r, seen.State)); err != nil || u.applied {
			seen.queue = seen.queue[:len(seen.queue)-1]
			seen.item = cloneWith(seen.item, attrQueue, list(seen.queue...))
		}
	}
	return t.change(ctx, key, q, seen, r, true)
}

// stillFull refuses an owner without a place, unless it may take one now. A write costs more than
// a read, also if it is refused, and all who wait for a place may see the same free one at the same
// time. So the fewer places there are, the fewer of them try, each after a pause and a second read,
// which is consistent.
func (t *table) stillFull(ctx context.Context, key string, q driver.Request) (_ driver.Answer, refused bool, _ error) {
	for _, consistent := range []bool{false, true} {
		seen, r, err := t.readAs(ctx, key, consistent)
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

// withoutPlace is the refusal of an owner that gets no place now.
func withoutPlace(a driver.Answer, seen row) driver.Answer {
	a.Position, a.Status.Waiting, a.Note = 0, len(seen.Queue), noteFull
	return a
}

// arriving is the write that grants the key as it is when nobody was seen: it must be free, or
// new. If the request joins, the same write takes a place instead if the key is taken: it sets the
// attributes of a lease only if there is none. A row of another program has no number as its
// fence, and is refused.
func (t *table) arriving(q driver.Request) (write, *grant) {
	now := t.clock.read()
	g := &grant{fence: driver.Fence(now.UnixMicro()), expires: t.expiresAt(now, q.TTL)}
	t.sent.note(q.Owner, g.fence)
	w := write{
		set:       []string{"#owner = :me", "#fence = :fence", "#expires = :expires", "#holder = :holder", "#queue = :mine"},
		remove:    []string{"#last"},
		ttl:       ":ttl",
		condition: ifFree + " AND " + notEnded,
		makesRow:  true,
		oldRow:    true,
		values: values{
			":me":      ownerText(q.Owner),
			":mine":    list(string(q.Owner)),
			":fence":   fenceNumber(g.fence),
			":expires": millis(g.expires),
			":holder":  text(q.Holder),
			":ttl":     sweepTime(g.expires, g.fence),
		},
	}
	if q.Join {
		w.set = []string{
			"#owner = if_not_exists(#owner, :me)", "#fence = if_not_exists(#fence, :fence)", "#expires = if_not_exists(#expires, :expires)",
			"#holder = if_not_exists(#holder, :holder)", "#queue = list_append(if_not_exists(#queue, :empty), :mine)",
		}
		// A queue of another type is damaged: DynamoDB refuses to add a place to it.
		w.condition = "(" + ifFree + " AND attribute_not_exists(#expires) AND (attribute_not_exists(#queue) OR attribute_type(#queue, :list)) OR " + ifJoins + ") AND " + notEnded
		for name, v := range (values{":empty": list(), ":list": text("L"), ":text": text("S"), ":zero": integer(0), ":last": integer(maxMilli), ":highest": integer(maxMilli * 1000), ":closed": text(closedOwner), ":shared": text(sharedOwner)}) {
			w.values[name] = v
		}
	}
	return w, g
}

// extendHandOver makes a lease that was handed over as long as its request asks, in one write.
func (t *table) extendHandOver(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	now := t.clock.read()
	q.TTL = max(q.TTL, driver.Turn) // its owner may trust the lease already, so it gets no shorter
	g := &grant{fence: q.Fence, expires: t.expiresAt(now, q.TTL), before: -1}
	w := write{
		set:       []string{"#expires = :expires", "#holder = :holder"},
		remove:    []string{"#handed"},
		ttl:       ":ttl",
		condition: ifMine + ifNotOver + ifNotStarted + " AND attribute_exists(#handed) AND #expires < :expires",
		values:    mine(q),
		oldRow:    true,
	}
	w.values[":expires"], w.values[":holder"], w.values[":ttl"], w.values[":now"] = millis(g.expires), text(q.Holder), sweepTime(g.expires, q.Fence), millis(now)
	r, err := t.update(ctx, key, w)
	if err != nil {
		return driver.Answer{}, err
	}
	seen, err := t.names.decode(key, r.item)
	switch h := seen.alone(); {
	case r.applied, err == nil && r.ambiguous && g.made(h, q.Owner):
		return t.trusted(ctx, key, q, g, len(seen.Queue) > 0, r)
	case err != nil:
		return driver.Answer{}, err
	}
	return t.change(ctx, key, q, seen, r, r.ambiguous)
}

// granted is the answer to an applied grant of a row as it was seen, or to a renewal of those who
// share a key.
func (t *table) granted(ctx context.Context, key string, q driver.Request, seen row, next rules.State, r reply) (driver.Answer, error) {
	for _, h := range next.Holders {
		if h.Owner != q.Owner {
			continue
		}
		end := h.End().Truncate(time.Millisecond)
		if h.MaxHolders == 1 && q.Kind == driver.Acquire {
			q.TTL = max(q.TTL, h.TTL) // the rules give more to who extends a hand-over
			return t.trusted(ctx, key, q, &grant{fence: h.Fence, expires: end, before: -1}, len(next.Queue) > 0, r)
		}
		if r.date.IsZero() {
			return driver.Answer{}, noDate(key)
		}
		trust := q.TTL
		for _, old := range seen.Holders {
			if q.Kind == driver.Renew && old.Fence == h.Fence {
				trust = max(trust, old.TTL, t.left(old.End(), r)) // of what was handed over the row has the TTL
			}
		}
		return driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: trustedFor(trust, end, r.date) - margin, Note: leaseNote(true, h.MaxHolders > 1)}, nil
	}
	return driver.Answer{}, fmt.Errorf("dynamostore: key %q: a mistake in the store: a grant without a holder", key)
}

// trusted is the answer to an applied grant of a key that nobody shares. If its end is wrong,
// because the local clock is or the request was slow, it is written again.
func (t *table) trusted(ctx context.Context, key string, q driver.Request, g *grant, waits bool, r reply) (driver.Answer, error) {
	if r.date.IsZero() {
		return driver.Answer{}, noDate(key)
	}
	a := driver.Answer{Outcome: driver.Granted, Fence: g.fence, TTL: trustedFor(q.TTL, g.expires, r.date) - margin, Note: leaseNote(waits, false)}
	if !t.mustCorrect(g, q.TTL, r.date) {
		return a, nil
	}
	defer tell.Log(ctx, t.log, slog.LevelWarn, "dynamostore: the end of a lease is written a second time: it was too far from DynamoDB's time, because the local clock is wrong or the request was slow",
		slog.String("key", key), slog.Duration("correction", time.Duration(t.clock.offset.Load())))
	now, right := t.clock.read(), g.fence
	if g.before >= 0 {
		right = lockstore.NextFence(g.before, now) // one from a clock far ahead would cost every acquire until that time a second request
	}
	expires := t.expiresAt(now, q.TTL)
	r, err := t.moveEnd(ctx, key, g.fence, right, g.expires, expires, expires)
	switch {
	case err != nil:
		return driver.Answer{}, outcome(err, true)
	case r.applied:
		a.Fence, a.TTL = right, trustedFor(q.TTL, expires, r.date)-margin
		return a, nil
	}
	seen, err := t.names.decode(key, r.item)
	if err != nil {
		return driver.Answer{}, err
	}
	return t.change(ctx, key, q, seen, r, true)
}

// moveEnd writes another end, and another fence, of a lease or of a closed key that has not
// changed since.
func (t *table) moveEnd(ctx context.Context, key string, fence, right driver.Fence, ended, expires, used time.Time) (reply, error) {
	return t.update(ctx, key, write{
		set:       []string{"#fence = :right", "#expires = :expires"},
		ttl:       ":ttl",
		condition: "#fence = :fence AND #expires = :ended AND #owner <> :shared AND attribute_not_exists(#begun)",
		values: values{
			":fence":   fenceNumber(fence),
			":right":   fenceNumber(right),
			":ended":   millis(ended),
			":expires": millis(expires),
			":ttl":     sweepTime(used, right),
			":shared":  text(sharedOwner),
		},
	})
}

// answerRepeat answers an owner that holds the lease already: the reply to an earlier
// call was lost. The TTL is what is left, counted from before this request.
func (t *table) answerRepeat(ctx context.Context, key string, q driver.Request, seen row, h rules.Holder, r reply) (driver.Answer, error) {
	if r.date.IsZero() {
		return driver.Answer{}, noDate(key)
	}
	left := min(q.TTL, t.left(h.End(), r))
	if h.MaxHolders == 1 {
		if err := t.confirm(ctx, key, h); err != nil {
			return driver.Answer{}, outcome(err, true)
		}
	}
	return driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: left - margin, Note: leaseNote(len(seen.Queue) > 0, h.MaxHolders > 1)}, nil
}

// confirm moves the end of a lease from an earlier call by 1 ms. That call may have
// begun to correct its fence, because of a wrong clock, by a request that is still on its
// way. That request is refused when it finds another end.
func (t *table) confirm(ctx context.Context, key string, h rules.Holder) error {
	r, err := t.update(ctx, key, write{
		set:       []string{"#expires = :expires"},
		condition: "#owner = :me AND #fence = :fence AND #expires = :ended",
		values: values{
			":me":      ownerText(h.Owner),
			":fence":   fenceNumber(h.Fence),
			":ended":   millis(h.End()),
			":expires": millis(h.End().Add(time.Millisecond)),
		},
	})
	if err != nil || r.applied {
		return err
	}
	seen, err := t.names.decode(key, r.item)
	if err != nil {
		return err
	}
	// A later end of the same grant is good too: the SDK sent this write twice, or
	// another repeat or a renewal moved the end.
	if now := seen.alone(); now == nil || now.Owner != h.Owner || now.Fence != h.Fence || !now.End().After(h.End()) {
		return fmt.Errorf("dynamostore: key %q: the lease changed during the repeat, outcome unknown", key)
	}
	return nil
}

// mustCorrect reports whether the end of a grant is so wrong that others would wait too
// long, or that the lease could be trusted for too short a time. Only the Date of the
// grant's own reply is used: with a later reading of the clock, a slow reply and a slow
// clock would look the same.
func (t *table) mustCorrect(g *grant, ttl time.Duration, date time.Time) bool {
	ahead := g.expires.Sub(date) > ttl+2*t.skew+dateStep
	behind := trustedFor(ttl, g.expires, date) < ttl/2
	return ahead || behind
}

// noDate is an unknown outcome: the row is written, but without a Date header the time
// of trust is not known.
func noDate(key string) error {
	return fmt.Errorf("dynamostore: key %q: the reply has no Date header, so the lease cannot be trusted; something between here and DynamoDB removes it", key)
}
