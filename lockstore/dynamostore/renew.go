package dynamostore

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// renew sends one request, and a second one if the local clock is wrong. The lease is lost
// only if another owner may take it over by DynamoDB's own time.
func (t *table) renew(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	if parseNote(q.Note).shared {
		return t.readAndChange(ctx, key, q)
	}
	first, err := t.extend(ctx, key, q, time.Time{}, t.expiresAt(t.clock.read(), q.TTL))
	switch {
	case err != nil || first.lost != "":
		return lost(first.lost), err
	case first.shares:
		return t.readAndChange(ctx, key, q)
	}
	// The reply has corrected the clock. With the corrected clock the first request
	// would have asked for this end.
	wanted := t.expiresAt(t.clock.correct(first.sent), q.TTL)
	if wanted.Sub(first.end) <= min(max(t.skew, margin), q.TTL/4) {
		return t.renewed(first, q), nil
	}
	second, err := t.extend(ctx, key, q, first.end, t.expiresAt(t.clock.read(), q.TTL))
	switch {
	case err == nil && second.shares: // another owner may have taken the key meanwhile
		return t.readAndChange(ctx, key, q)
	case err == nil && second.lost == "":
		return t.renewed(second, q), nil
	case first.applied && second.lost == "":
		return t.renewed(first, q), nil // the second request, applied or not, shortens nothing
	default:
		return lost(second.lost), err
	}
}

// extension is the result of one request to renew.
type extension struct {
	reply
	shares bool      // the key is shared, was handed over for longer, or its mark of started work has to move: this is no request for it
	waits  bool      // somebody is in the queue
	lost   string    // why the lease is lost, "" if it lasts
	before time.Time // the end of the lease before the request
	end    time.Time // the end of the lease after the request
}

// renewed is the answer with the time for which the lease may be trusted, counted from before
// the request. A renewal for less than what is left does not shorten the trust.
func (t *table) renewed(e extension, q driver.Request) driver.Answer {
	trust := trustedFor(max(q.TTL, t.left(e.before, e.reply)), e.end, e.date) - margin
	return driver.Answer{Outcome: driver.Granted, Fence: q.Fence, TTL: trust, Note: leaseNote(e.waits, false)}
}

// extend moves the end of a lease to expires. It is not over by the local clock, or else its end
// is as it was seen. If that is not so and the owner still has the lease, the lease is not lost.
func (t *table) extend(ctx context.Context, key string, q driver.Request, ended, expires time.Time) (extension, error) {
	w := write{
		set:       []string{"#expires = :expires"},
		remove:    []string{"#handed"},
		ttl:       "if_not_exists(#begun, :ttl)",
		condition: ifMine + " AND #expires < :expires AND (attribute_not_exists(#begun) OR #begun >= :least)",
		values:    mine(q),
		oldRow:    true,
	}
	w.values[":expires"], w.values[":ttl"], w.values[":least"] = millis(expires), sweepTime(expires, q.Fence), integer(leastBegun(expires))
	if ended.IsZero() {
		w.condition += ifNotOver
		w.values[":now"] = millis(t.clock.read())
	} else {
		w.condition += ifAsSeen
		w.values[":ended"] = millis(ended)
	}
	r, err := t.update(ctx, key, w)
	if err != nil {
		return extension{}, err
	}
	seen, err := t.names.decode(key, r.item)
	h := seen.alone()
	e := extension{reply: r, waits: len(seen.Queue) > 0, end: expires}
	if h != nil {
		e.before = h.End()
	}
	switch {
	case r.applied:
		// The old row fulfilled the condition, so an error in decode does not matter.
	case err != nil:
		return extension{}, err
	case textOf(r.item[attrOwner]) == sharedOwner:
		e.shares = true
		return e, nil
	case h == nil || h.Owner != q.Owner || h.Fence != q.Fence || h.Revoked:
		return extension{lost: "this lease does not hold it"}, nil
	case takeable(h.End(), r.date):
		return extension{lost: "the lease has expired"}, nil
	case h.HandedOver, h.Started && begunOf(seen.item) < leastBegun(expires):
		// A parked place's turn may be longer than the TTL, and the lease is extended all the same.
		e.shares = true
		return e, nil
	default:
		e.end = h.End()
	}
	if r.date.IsZero() {
		return extension{}, noDate(key)
	}
	return e, nil
}
