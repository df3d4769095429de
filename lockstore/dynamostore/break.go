package dynamostore

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

var _ lockstore.Breaker = (*Store)(nil)

// brokenOwner is the owner in the row of a broken lease. No request has this owner,
// because it has spaces.
const brokenOwner = "broken by an operator"

const (
	// breakUpdate leaves the end of the lease as it is, so no clock takes part. The old
	// owner is over, as after a release.
	breakUpdate    = "SET #released = #owner, #owner = :broken, #holder = :holder"
	breakNowUpdate = "SET #released = #owner" + freed
	freeUpdate     = "SET #expires = :now, #ttl = :ttl REMOVE #owner, #holder"

	ifUnbroken = ifHolds + " AND " + sound
	ifBroken   = "#fence = :fence AND #owner = :broken AND " + sound

	// A begun lease that has ended is in doubt. Its row says who began, and stays as it is.
	ifUndecided = " AND (attribute_not_exists(#begun) OR #expires > :now)"
	ifNotBegun  = " AND attribute_not_exists(#begun)"
)

// Break implements lockstore.Breaker by one request, and a second one to free the key of a
// lease that is broken already. It needs dynamodb:UpdateItem. A Break of an expired lease
// may change its row: it is then held by nobody until its end, which is over, and with
// BreakRequest.Now those who wait count their turns from now on.
func (s *Store) Break(ctx context.Context, req lockstore.BreakRequest) (lockstore.Status, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Status{}, err
	}
	r, seen, err := s.breakLease(ctx, req)
	begun := err == nil && !r.applied && seen.begun && seen.fence == req.Fence && !takeable(seen, r.date)
	if begun && !req.Now && seen.owner != brokenOwner {
		r, seen, err = s.breakLease(ctx, req) // the local clock was ahead; the refusal has corrected it
	}
	switch {
	case err != nil:
		return lockstore.Status{}, err
	case r.applied:
		seen.holder = lockstore.DecodeHolder(req.By.Encode())
	case begun && req.Now:
		return lockstore.Status{}, &lockstore.BegunError{HeldError: lockstore.HeldError{Key: req.Key, Holder: seen.holder, Remaining: s.remaining(seen, r)}}
	case req.Now && seen.owner == brokenOwner:
		ambiguous := r.ambiguous
		now := s.clock.read()
		r, err = s.update(ctx, write{key: req.Key, update: freeUpdate, condition: ifBroken + ifNotBegun, oldRow: true, values: map[string]types.AttributeValue{
			":fence": fenceNumber(req.Fence), ":broken": text(brokenOwner), ":last": integer(maxMilli), ":now": millis(now), ":ttl": sweepTime(now),
		}})
		if err != nil {
			return lockstore.Status{}, outcome(err, ambiguous)
		}
		r.ambiguous = r.ambiguous || ambiguous
		seen, err = s.names.decode(req.Key, r.item)
	}
	switch {
	case err != nil:
		return lockstore.Status{}, err
	case !r.applied && r.ambiguous && req.Now:
		return lockstore.Status{}, fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and no lease has this fence now", req.Key)
	case seen.fence != req.Fence || !r.applied && seen.owner != brokenOwner || takeable(seen, r.date):
		return lockstore.Status{}, lost(req.Key, "no lease with this fence holds it")
	}
	return lockstore.Status{
		Key: req.Key, Held: !req.Now, Broken: !req.Now, Holder: seen.holder, Fence: seen.fence,
		Remaining: s.remaining(seen, r), Waiting: len(seen.queue),
	}, nil
}

// breakLease breaks a lease that is not broken yet. The row is that from before the write, or
// the one that refused it.
func (s *Store) breakLease(ctx context.Context, req lockstore.BreakRequest) (reply, row, error) {
	now := s.clock.read()
	w := write{
		key: req.Key, update: breakUpdate, condition: ifUnbroken + ifUndecided, oldRow: true,
		values: map[string]types.AttributeValue{
			":fence":  fenceNumber(req.Fence),
			":broken": text(brokenOwner),
			":closed": text(closedOwner),
			":last":   integer(maxMilli),
			":now":    millis(now),
		},
	}
	if req.Now {
		w.update, w.condition = breakNowUpdate, ifUnbroken+ifNotBegun
		w.values[":ttl"] = sweepTime(now)
	} else {
		w.values[":holder"] = text(req.By.Encode())
	}
	r, err := s.update(ctx, w)
	if err != nil {
		return r, row{}, err
	}
	seen, err := s.names.decode(req.Key, r.item)
	return r, seen, err
}
