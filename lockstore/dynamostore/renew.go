package dynamostore

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Renew implements lockstore.Store. It sends one request, and a second one if the local
// clock is wrong. The lease is lost only if another owner may take it over by
// DynamoDB's own time.
func (s *Store) Renew(ctx context.Context, lease lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	if err := lease.Validate(); err != nil {
		return 0, err
	}
	if err := lockstore.ValidateTTL(ttl); err != nil {
		return 0, err
	}
	first, err := s.extend(ctx, lease, row{}, s.expiresAt(s.clock.read(), ttl))
	if err != nil {
		return 0, err
	}
	// The reply has corrected the clock. With the corrected clock the first request
	// would have asked for this end.
	wanted := s.expiresAt(s.clock.correct(first.sent), ttl)
	if wanted.Sub(first.end) <= min(max(s.skew, margin), ttl/4) {
		return s.trust(first, ttl), nil
	}
	second, err := s.extend(ctx, lease, row{expires: first.end}, s.expiresAt(s.clock.read(), ttl))
	switch {
	case err == nil:
		return s.trust(second, ttl), nil
	case first.applied && !errors.Is(err, lockstore.ErrLost):
		return s.trust(first, ttl), nil // the second request, applied or not, shortens nothing
	default:
		return 0, err
	}
}

// extension is the result of one request to renew.
type extension struct {
	reply
	before time.Time // the end of the lease before the request
	end    time.Time // the end of the lease after the request
}

// trust is for how long the lease may be trusted, counted from before the request. A
// renewal for less than what is left does not shorten the trust.
func (s *Store) trust(e extension, ttl time.Duration) time.Duration {
	return trustedFor(max(ttl, s.left(e.before, e.reply)), e.end, e.date) - margin
}

// extend moves the end of a lease that lasts to expires, see Store.lasts. If it does not last and
// the owner still has the lease, that is no error.
func (s *Store) extend(ctx context.Context, lease lockstore.Lease, seen row, expires time.Time) (extension, error) {
	w := write{
		key:       lease.Key,
		update:    "SET #expires = :expires, #ttl = if_not_exists(#begun, :ttl)",
		condition: "#owner = :me AND #fence = :fence AND #expires < :expires",
		values: map[string]types.AttributeValue{
			":me":      ownerText(lease.Owner),
			":fence":   fenceNumber(lease.Fence),
			":expires": millis(expires),
			":ttl":     sweepTime(expires),
		},
		oldRow: true,
	}
	s.lasts(&w, seen)
	r, err := s.update(ctx, w)
	if err != nil {
		return extension{}, err
	}
	seen, err = s.names.decode(lease.Key, r.item)
	switch {
	case r.applied:
		// The old row fulfilled the condition, so an error in decode does not matter.
	case err != nil:
		return extension{}, err
	case seen.owner != lease.Owner || seen.fence != lease.Fence:
		return extension{}, lost(lease.Key, "this lease does not hold it")
	case takeable(seen, r.date):
		return extension{}, lost(lease.Key, "the lease has expired")
	default:
		expires = seen.expires
	}
	if r.date.IsZero() {
		return extension{}, noDate(lease.Key)
	}
	return extension{reply: r, before: seen.expires, end: expires}, nil
}
