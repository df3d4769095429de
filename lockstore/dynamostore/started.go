package dynamostore

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// markStarted sends one request, and a second one if the local clock is ahead or if the mark is there already. The
// Date of the reply says whether the write came before the end of the lease. If it came later, no work
// begins, and the mark is removed. So no other call may rest on this call's mark: each writes one of its own.
func (t *table) markStarted(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	now := t.clock.read()
	mark := begun(now)
	w := write{set: []string{"#begun = :sweep"}, ttl: ":sweep", condition: ifMine + ifNotOver + ifNotStarted, values: mine(q), oldRow: true}
	w.values[":now"], w.values[":sweep"] = millis(now), integer(mark)
	ambiguous, repeats := false, false
	for range changeWrites {
		r, err := t.update(ctx, key, w)
		if err != nil {
			return driver.Answer{}, outcome(err, ambiguous)
		}
		ambiguous = ambiguous || r.ambiguous
		seen, err := t.names.decode(key, r.item)
		if err != nil {
			return driver.Answer{}, outcome(err, ambiguous)
		}
		_, _, a := t.decide(seen, r, q)
		// The SDK may have sent this write twice.
		written := r.applied || r.ambiguous && begunOf(seen.item) == mark
		switch h := seen.alone(); {
		case written && h != nil && h.Owner == q.Owner && h.Fence == q.Fence && h.Revoked && !takeable(h.End(), r.date):
			return done, nil // nobody marks a revoked lease, so the mark came before the revocation
		case written && a.Outcome != driver.Done && !repeats:
			return a, t.unmark(ctx, key, q, mark)
		case written, a.Outcome != driver.Done, h == nil:
			return a, nil
		case h.Started: // by another call, and work may rest on its mark
			repeats = true
			mark = max(mark, begunOf(seen.item)+1)
			w.condition = ifMine + ifAsSeen + " AND #begun = :was"
			w.values = mine(q)
			w.values[":was"] = seen.item[attrStarted]
		default:
			w.condition, w.values = ifMine+ifAsSeen+ifNotStarted, mine(q)
		}
		w.values[":ended"], w.values[":sweep"] = seen.item[attrExpires], integer(mark)
	}
	return driver.Answer{}, outcome(contended(ctx, key, q, changeWrites), ambiguous)
}

// begun is the mark of work that starts at a time. A mark is the ttl of its row. So it moves about once a day, with a renewal: it
// is never less than leastBegun, lockstore.StartedFor after the end of the lease.
func begun(at time.Time) int64 { return at.Add(lockstore.StartedFor+idleRow).Unix() + 1 }

func leastBegun(end time.Time) int64 { return begun(end.Add(-idleRow)) }

// begunOf is the mark of a row as a number, 0 if it is damaged.
func begunOf(item values) int64 {
	n, _ := number(item, attrStarted, maxMilli)
	return n
}

// unmark removes the mark that this call has written after the end of the lease. A mark with another value is another
// call's.
func (t *table) unmark(ctx context.Context, key string, q driver.Request, mark int64) error {
	_, err := t.update(ctx, key, write{
		remove:    []string{"#begun"},
		ttl:       ":ttl",
		condition: "#owner = :me AND #fence = :fence AND #begun = :sweep",
		values:    values{":me": ownerText(q.Owner), ":fence": fenceNumber(q.Fence), ":sweep": integer(mark), ":ttl": sweepTime(t.clock.read(), q.Fence)},
	})
	return outcome(err, true)
}
