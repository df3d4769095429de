package dynamostore

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Renew implements lockstore.Store, by one request.
func (s *Store) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := lease.Validate(); err != nil {
		return 0, err
	}
	if err := lockstore.ValidateTTL(ttl); err != nil {
		return 0, err
	}
	now := s.clock.read()
	expires := now.Add(ttl).Truncate(time.Millisecond)
	r, err := s.update(ctx, write{
		key:       lease.Key,
		update:    "SET #expires = :expires, #ttl = :ttl",
		condition: "#owner = :me AND #fence = :fence AND #expires < :expires AND #expires > :now",
		values: map[string]types.AttributeValue{
			":me":      ownerText(lease.Owner),
			":fence":   fenceNumber(lease.Fence),
			":expires": millis(expires),
			":now":     millis(now),
			":ttl":     sweepTime(expires),
		},
	})
	if err != nil {
		return 0, err
	}
	if !r.applied {
		seen, err := decode(lease.Key, r.item)
		switch {
		case err != nil:
			return 0, err
		case seen.owner != lease.Owner || seen.fence != lease.Fence:
			return 0, lost(lease.Key, "this lease does not hold it")
		case seen.expires.Before(expires):
			return 0, lost(lease.Key, "the lease has expired")
		}
		// An earlier renewal, or this one sent twice: it lasts as long or longer.
		expires = seen.expires
	}
	if r.date.IsZero() {
		return 0, noDate(lease.Key)
	}
	return s.lasts(ttl, expires, r.date) - margin, nil
}
