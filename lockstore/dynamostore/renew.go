package dynamostore

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	// ifLive is what the local clock knows of a lease that can be renewed. The
	// service's Date decides when this refuses.
	ifLive = "#owner = :me AND #fence = :fence AND #expires < :expires AND #expires > :now"

	// ifAsSeen renews a lease to which nothing has happened since the last reply.
	ifAsSeen = "#owner = :me AND #fence = :fence AND #expires = :seen"
)

// Renew implements lockstore.Store, by one request, and one more if the local
// clock turns out to be off. The lease is lost when another may take it over by
// the service's own time, never by the local clock alone.
func (s *Store) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := lease.Validate(); err != nil {
		return 0, err
	}
	if err := lockstore.ValidateTTL(ttl); err != nil {
		return 0, err
	}
	now := s.clock.read()
	values := map[string]types.AttributeValue{":now": millis(now)}
	end, r, err := s.extend(ctx, lease, ifLive, s.stamp(now, ttl), values)
	if err != nil {
		return 0, err
	}
	// The reply has corrected the clock. Had it been right before, the lease would
	// end here.
	right := s.stamp(s.clock.correct(r.sent), ttl)
	if right.Sub(end) > min(s.skew, ttl/4) {
		values = map[string]types.AttributeValue{":seen": millis(end)}
		if end, r, err = s.extend(ctx, lease, ifAsSeen, s.stamp(s.clock.read(), ttl), values); err != nil {
			return 0, err
		}
	}
	if !r.applied { // an earlier request was given more, and keeps it
		ttl = max(ttl, s.left(end, r))
	}
	return lasts(ttl, end, r.date) - margin, nil
}

// extend moves the end of the lease to expires if the condition holds, and
// returns the end that the row has then.
func (s *Store) extend(ctx context.Context, lease lockstore.Lease, condition string, expires time.Time, values map[string]types.AttributeValue) (time.Time, reply, error) {
	values[":me"] = ownerText(lease.Owner)
	values[":fence"] = fenceNumber(lease.Fence)
	values[":expires"] = millis(expires)
	values[":ttl"] = sweepTime(expires)
	r, err := s.update(ctx, write{
		key:       lease.Key,
		update:    "SET #expires = :expires, #ttl = :ttl",
		condition: condition,
		values:    values,
	})
	if err != nil {
		return time.Time{}, r, err
	}
	if !r.applied {
		seen, err := decode(lease.Key, r.item)
		switch {
		case err != nil:
			return time.Time{}, r, err
		case seen.owner != lease.Owner || seen.fence != lease.Fence:
			return time.Time{}, r, lost(lease.Key, "this lease does not hold it")
		case takeable(seen, r.date):
			return time.Time{}, r, lost(lease.Key, "the lease has expired")
		}
		expires = seen.expires
	}
	if r.date.IsZero() {
		return time.Time{}, r, noDate(lease.Key)
	}
	return expires, r, nil
}
