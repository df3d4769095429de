package dynamostore

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

const (
	ifUnrevoked = ifHolds + " AND attribute_type(#owner, :text) AND " + sound // no owner is compared, so a damaged one must be seen
	ifRevoked   = "#fence = :fence AND #owner = :broken AND " + sound
)

// revoke sends one request, and a second one to free the key of a lease that is revoked
// already. If the local clock is behind, it may change the row of an expired lease: it is then
// revoked until its end, which is over, and with AtOnce those who wait count their turns from
// now on.
func (t *table) revoke(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	var seen row // at the last refusal
	var date time.Time
	ambiguous := false
	for range grantWrites {
		r, err := t.update(ctx, key, t.revoking(q, seen, date))
		if err != nil {
			return driver.Answer{}, outcome(err, ambiguous)
		}
		revoked := seen.owner == revokedOwner // before this write
		seen, err = t.names.decode(key, r.item)
		ambiguous = ambiguous || r.ambiguous
		over := err == nil && (seen.owner == "" || seen.owner == closedOwner || seen.fence != q.Fence || takeable(seen, r.date))
		switch {
		case err != nil:
			return driver.Answer{}, err
		case over && ambiguous && q.AtOnce:
			return driver.Answer{}, fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and no lease has this fence now", key)
		case over:
			return lost("no lease with this fence holds it"), nil
		case r.applied && !revoked:
			seen.owner, seen.holder = revokedOwner, q.Holder
		case r.applied || seen.owner == revokedOwner && !q.AtOnce:
		case q.AtOnce && seen.started:
			return driver.Answer{Outcome: driver.Refused, Status: t.status(seen, r)}, nil
		default:
			date = r.date
			continue // it is revoked already, or the local clock was ahead
		}
		status := t.status(seen, r)
		if q.AtOnce {
			by, left := status.Holder, status.Remaining
			seen.owner, seen.freed = "", t.clock.read()
			status = t.status(seen, r)
			status.Holder, status.Remaining = by, left
		}
		return driver.Answer{Outcome: driver.Done, Status: status}, nil
	}
	return driver.Answer{}, fmt.Errorf("dynamostore: key %q: not revoked, the lease was renewed %d times meanwhile", key, grantWrites)
}

// revoking is the write that revokes a lease, or frees the key of a lease that was revoked when
// it was seen. The old owner is over, as after a release.
func (t *table) revoking(q driver.Request, seen row, date time.Time) write {
	w := write{update: "SET #released = #owner", condition: ifUnrevoked, oldRow: true, values: values{
		":fence":  fenceNumber(q.Fence),
		":broken": text(revokedOwner),
		":last":   integer(maxMilli),
	}}
	if seen.owner == revokedOwner {
		w.update, w.condition = "SET #released = #released", ifRevoked
	} else {
		w.values[":closed"], w.values[":text"] = text(closedOwner), text("S")
	}
	if q.AtOnce {
		w.update += freed
		w.condition += ifNotStarted
		t.frees(&w, seen, date)
		return w
	}
	// The end of the lease stays as it is.
	w.update += ", #owner = :broken, #holder = :holder"
	w.values[":holder"] = text(q.Holder)
	t.lasts(&w, seen)
	return w
}
