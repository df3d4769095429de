package dynamostore

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

const (
	// sound is false for a row whose end is damaged. Such a row must not change.
	sound = "#expires <= :last"

	ifOwn     = "#owner = :me AND " + sound
	ifMine    = ifOwn + " AND #fence = :fence"
	ifNobodys = "attribute_not_exists(#owner)"

	// ifNotOver refuses a lease that is over by the local clock. Then the row and the Date of
	// the refusal decide. ifAsSeen is for a row whose end has not changed since a reply.
	ifNotOver    = " AND #expires > :now"
	ifAsSeen     = " AND #expires = :ended"
	ifNotStarted = " AND attribute_not_exists(#begun)"

	freed = ", #ttl = :ttl, #expires = :now REMOVE #owner, #holder, #begun"
)

// mine are the values of ifMine.
func mine(q driver.Request) values {
	return values{":me": ownerText(q.Owner), ":fence": fenceNumber(q.Fence), ":last": integer(maxMilli)}
}

// lasts adds to a write that the lease is not over by the local clock, or else that it is as it
// was seen. Before the first reply seen is the zero row.
func (t *table) lasts(w *write, seen row) {
	if seen.expires.IsZero() {
		w.condition += ifNotOver
		w.values[":now"] = millis(t.clock.read())
		return
	}
	w.condition += ifAsSeen
	w.values[":ended"] = millis(seen.expires)
}

// frees completes a write whose update ends in freed. If the lease was over when it was seen,
// the key has been free since then: nobody's turn begins again.
func (t *table) frees(w *write, seen row, date time.Time) {
	t.lasts(w, seen)
	since := t.clock.read()
	w.values[":ttl"] = sweepTime(since)
	if takeable(seen, date) {
		since = seen.since()
	}
	w.values[":now"] = millis(since)
}

// release sends one request, and a second one if the lease is over. The row and its fence stay.
func (t *table) release(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	var seen row
	var date time.Time
	ambiguous := false
	for range grantWrites {
		w := write{update: "SET #released = :me" + freed, condition: ifMine, values: mine(q)}
		t.frees(&w, seen, date)
		r, err := t.update(ctx, key, w)
		if err != nil || r.applied {
			return done, outcome(err, ambiguous)
		}
		ambiguous = ambiguous || r.ambiguous
		seen, err = t.names.decode(key, r.item)
		switch {
		case err != nil:
			return driver.Answer{}, err
		case seen.owner == q.Owner && seen.fence == q.Fence:
		case seen.ended(q.Owner):
			return done, nil
		case ambiguous:
			// The other attempt may have released the lease, and another owner may have had
			// the key since. Lost would say that the lease was lost before the release.
			return driver.Answer{}, replyLost(key)
		default:
			return lost("this lease does not hold it"), nil
		}
		date = r.date
	}
	return driver.Answer{}, fmt.Errorf("dynamostore: key %q: not released, the lease was renewed %d times meanwhile", key, grantWrites)
}

// abandon ends an acquire that may have been applied or may still be on its way. It takes
// one request if the owner has a live lease or another owner holds the key, and otherwise two.
// It is one more if the owner has a place.
func (t *table) abandon(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	t.waiting.Delete(q.Owner)
	seen, date, ambiguous := row{owner: q.Owner}, time.Time{}, false
	for range grantWrites {
		r, err := t.update(ctx, key, t.abandoning(q.Owner, seen, date))
		if err != nil {
			return driver.Answer{}, outcome(err, ambiguous)
		}
		ambiguous = ambiguous || r.ambiguous
		seen, err = t.names.decode(key, r.item)
		switch {
		case r.applied:
			seen.owner = ""
		case err != nil:
			return driver.Answer{}, err
		case seen.owner == "" || seen.owner == q.Owner:
			date = r.date
			continue
		}
		// Nobody has the key, or another owner. This owner may have a place in the queue.
		answer, err := t.leaveRow(ctx, key, q.Owner, seen, r.date)
		if answer.Outcome != driver.Holding {
			return answer, outcome(err, ambiguous || r.applied)
		}
		seen, date = row{owner: q.Owner}, time.Time{} // its acquire has arrived meanwhile
	}
	return driver.Answer{}, fmt.Errorf("dynamostore: key %q: not abandoned, the key changed its owner %d times meanwhile", key, grantWrites)
}

// abandoning is the write that marks a free key, or a key of this owner, as abandoned. It makes
// the fence larger than every fence that this process has sent. So a late acquire of the owner
// is refused. If the key is free, the abandon does not change since when: those who wait keep
// their turns.
func (t *table) abandoning(owner driver.Owner, seen row, date time.Time) write {
	own, highest := seen.owner == owner, t.clock.highestFence.Load()
	w := write{update: "SET #abandoned = :me", condition: ifNobodys, oldRow: true, values: values{":me": ownerText(owner)}}
	if own {
		w.update, w.condition = "SET #released = :me", ifOwn
		w.values[":last"] = integer(maxMilli)
	}
	now := t.clock.read()
	if !own || highest > 0 {
		// The clock may have been set back since the acquire was sent.
		fence := max(driver.Fence(now.UnixMicro()), driver.Fence(highest)+1)
		if seen.fence >= fence {
			fence = seen.fence + 1
			w.condition += " AND #fence = :seen"
			w.values[":seen"] = fenceNumber(seen.fence)
		} else {
			w.condition += " AND #fence < :fence"
			w.makesRow = !own
		}
		w.update += ", #fence = :fence"
		w.values[":fence"] = fenceNumber(fence)
	}
	// Otherwise another process sent the acquire, and perhaps no reply has corrected the clock of
	// this one. A fence from a clock far ahead would cost every acquire until that time a second
	// request. If the owner's lease is in the row, the row's own fence is large enough.
	if own {
		w.update += freed
		t.frees(&w, seen, date)
	} else {
		w.update += ", #ttl = :ttl"
		w.values[":ttl"] = sweepTime(now)
	}
	return w
}
