package dynamostore

import (
	"context"
	"fmt"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// ifInDoubt resolves a started lease that has ended, if the row has not changed since it was
// read.
const ifInDoubt = "#owner = :theirs AND #fence = :fence AND #expires = :ended AND attribute_exists(#begun)"

// resolve sends a read and a write.
func (t *table) resolve(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	seen, r, err := t.read(ctx, key)
	ambiguous := false
	for range 2 {
		if err != nil {
			return driver.Answer{}, outcome(err, ambiguous)
		}
		over := seen.owner == "" || takeable(seen, r.date)
		switch {
		case seen.fence == q.Fence && (seen.owner == "" || seen.owner == closedOwner) && q.Effect == !over:
			return done, nil
		case ambiguous && (seen.fence != q.Fence || !seen.inDoubt(r.date)):
			// An attempt whose reply was lost may have resolved the key, and another was granted it since.
			return driver.Answer{}, fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and the row has changed since", key)
		case !over && seen.owner != closedOwner:
			return driver.Answer{Outcome: driver.Refused, Status: t.status(seen, r)}, nil
		case seen.fence != q.Fence || !seen.inDoubt(r.date):
			return lost("it is not in doubt with this fence"), nil
		}
		if r, err = t.update(ctx, key, t.resolving(q, seen)); err == nil {
			if r.applied {
				return done, nil
			}
			ambiguous = ambiguous || r.ambiguous
			seen, err = t.names.decode(key, r.item)
		}
	}
	if err != nil {
		return driver.Answer{}, outcome(err, ambiguous)
	}
	return driver.Answer{}, fmt.Errorf("dynamostore: key %q: not resolved, the row changed twice meanwhile", key)
}

// resolving is the write that resolves a key as it was seen. It says that the owner is over. The
// row of a revoked lease says so already.
func (t *table) resolving(q driver.Request, seen row) write {
	w := write{condition: ifInDoubt, values: values{
		":theirs": ownerText(seen.owner),
		":fence":  fenceNumber(q.Fence),
		":ended":  millis(seen.expires),
	}}
	set := "SET #released = #owner"
	if seen.owner == revokedOwner {
		set = "SET #released = #released"
	}
	if q.Effect {
		w.completing(set+", #settled = :fence", q.Result, t.expiresAt(t.clock.read(), q.TTL))
		return w
	}
	// The key has been free since the end of the lease.
	w.update = set + ", #ttl = :ttl REMOVE #owner, #holder, #begun"
	w.values[":ttl"] = sweepTime(t.clock.read())
	return w
}
