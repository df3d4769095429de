package dynamostore

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

const (
	// sound is false for a row whose end is damaged. Such a row must not change.
	sound = "#expires <= :last"

	// ifMine is for an owner that has the key alone. An owner never equals sharedOwner.
	ifMine = "#owner = :me AND #fence = :fence AND " + sound + " AND attribute_not_exists(#revoked)"

	// ifNotOver refuses a lease that is over by the local clock. Then the row and the Date of
	// the refusal decide. ifAsSeen is for a row whose end has not changed since a reply.
	ifNotOver    = " AND #expires > :now"
	ifAsSeen     = " AND #expires = :ended"
	ifNotStarted = " AND attribute_not_exists(#begun)"
)

// mine are the values of ifMine.
func mine(q driver.Request) values {
	return values{":me": ownerText(q.Owner), ":fence": fenceNumber(q.Fence), ":last": integer(maxMilli)}
}

// release sends one write if it knows whether somebody waits, and a second one if somebody has
// come or gone since. The row and its fence stay. A hand-over needs the right time, so it begins with
// a read if no reply has told it, or if the local clock was set.
func (t *table) release(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	n := parseNote(q.Note)
	if n.shared || n.waits && !t.clock.right() {
		return t.readAndChange(ctx, key, q)
	}
	w, next, end := t.releasing(q, n.waits)
	r, err := t.update(ctx, key, w)
	switch {
	case err != nil:
		return driver.Answer{}, err
	case r.applied:
		t.correctTurn(ctx, key, next, end, r)
		return done, nil
	}
	seen, err := t.names.decode(key, r.item)
	if err != nil {
		return driver.Answer{}, err
	}
	return t.change(ctx, key, q, seen, r, r.ambiguous)
}

// releasing is the write that ends a lease. It frees the key if nobody waits, or makes the first
// in the queue the holder until end, with the fence next.
func (t *table) releasing(q driver.Request, waits bool) (w write, next driver.Fence, end time.Time) {
	w = write{set: []string{"#released = :me", "#ended = :fence"}, remove: []string{"#how", "#begun"}, ttl: ":ttl", condition: ifMine, values: mine(q)}
	now := t.clock.read()
	if !waits {
		w.values[":ttl"] = sweepTime(now, q.Fence)
		w.set, w.remove = append(w.set, "#last = :fence", "#queue = :none"), append(w.remove, "#owner", "#fence", "#expires", "#handed", "#holder")
		w.condition += " AND attribute_not_exists(#queue[1]) AND #queue[0] = :me"
		w.values[":none"] = list()
		return w, 0, end
	}
	next, end = lockstore.NextFence(q.Fence, now), now.Add(driver.Turn).Truncate(time.Millisecond)
	w.values[":ttl"] = sweepTime(now, next)
	w.set, w.remove = append(w.set, "#owner = #queue[1]", "#fence = :next", "#expires = :expires", "#handed = :one", "#holder = :nobody"), append(w.remove, "#queue[0]")
	// A place of an owner that shares the key has a space, and is not for this write.
	w.condition += " AND #queue[0] = :me AND attribute_type(#queue[1], :text) AND #queue[1] <> :me AND #queue[1] > :space AND NOT contains(#queue[1], :space)"
	w.values[":next"], w.values[":expires"], w.values[":one"] = fenceNumber(next), millis(end), integer(1)
	w.values[":text"], w.values[":space"], w.values[":nobody"] = text("S"), text(" "), text("")
	return w, next, end
}

// correctTurn writes the end of a hand-over again if it is too early, because the request was slow. The
// release is done, whatever becomes of this. It makes no end earlier: whoever was handed the key may
// have seen the first end, trusts the lease, and is not told of another one.
func (t *table) correctTurn(ctx context.Context, key string, fence driver.Fence, end time.Time, r reply) {
	if fence == 0 || r.date.IsZero() {
		return
	}
	right := t.clock.read().Add(driver.Turn).Truncate(time.Millisecond)
	if right.Sub(end) > dateStep+margin {
		_, _ = t.moveEnd(ctx, key, fence, fence, end, right, right)
	}
}

// readAndChange is for requests that are rare: they read the row, and write it if they change it.
func (t *table) readAndChange(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	seen, r, err := t.read(ctx, key)
	if err != nil {
		return driver.Answer{}, err
	}
	return t.change(ctx, key, q, seen, r, false)
}
