package dynamostore

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// renew sends one request, and a second one if the local clock is wrong. The lease is lost
// only if another owner may take it over by DynamoDB's own time.
func (t *table) renew(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	first, err := t.extend(ctx, key, q, row{}, t.expiresAt(t.clock.read(), q.TTL))
	if err != nil || first.lost != "" {
		return lost(first.lost), err
	}
	// The reply has corrected the clock. With the corrected clock the first request
	// would have asked for this end.
	wanted := t.expiresAt(t.clock.correct(first.sent), q.TTL)
	if wanted.Sub(first.end) <= min(max(t.skew, margin), q.TTL/4) {
		return t.renewed(first, q), nil
	}
	second, err := t.extend(ctx, key, q, row{expires: first.end}, t.expiresAt(t.clock.read(), q.TTL))
	switch {
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
	lost   string    // why the lease is lost, "" if it lasts
	before time.Time // the end of the lease before the request
	end    time.Time // the end of the lease after the request
}

// renewed is the answer with the time for which the lease may be trusted, counted from before
// the request. A renewal for less than what is left does not shorten the trust.
func (t *table) renewed(e extension, q driver.Request) driver.Answer {
	trust := trustedFor(max(q.TTL, t.left(e.before, e.reply)), e.end, e.date) - margin
	return driver.Answer{Outcome: driver.Granted, Fence: q.Fence, TTL: trust}
}

// extend moves the end of a lease that lasts to expires, see table.lasts. If it does not last and
// the owner still has the lease, the lease is not lost.
func (t *table) extend(ctx context.Context, key string, q driver.Request, seen row, expires time.Time) (extension, error) {
	w := write{
		update:    "SET #expires = :expires, #ttl = if_not_exists(#begun, :ttl)",
		condition: "#owner = :me AND #fence = :fence AND #expires < :expires",
		values: values{
			":me":      ownerText(q.Owner),
			":fence":   fenceNumber(q.Fence),
			":expires": millis(expires),
			":ttl":     sweepTime(expires),
		},
		oldRow: true,
	}
	t.lasts(&w, seen)
	r, err := t.update(ctx, key, w)
	if err != nil {
		return extension{}, err
	}
	seen, err = t.names.decode(key, r.item)
	switch {
	case r.applied:
		// The old row fulfilled the condition, so an error in decode does not matter.
	case err != nil:
		return extension{}, err
	case seen.owner != q.Owner || seen.fence != q.Fence:
		return extension{lost: "this lease does not hold it"}, nil
	case takeable(seen, r.date):
		return extension{lost: "the lease has expired"}, nil
	default:
		expires = seen.expires
	}
	if r.date.IsZero() {
		return extension{}, noDate(key)
	}
	return extension{reply: r, before: seen.expires, end: expires}, nil
}
