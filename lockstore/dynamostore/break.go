package dynamostore

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

var _ lockstore.Revoker = (*Store)(nil)

// brokenOwner is the owner in the row of a broken lease. No request has this owner,
// because it has spaces.
const brokenOwner = "broken by an operator"

const (
	ifUnbroken = ifHolds + " AND " + sound
	ifBroken   = "#fence = :fence AND #owner = :broken AND " + sound
	ifNotBegun = " AND attribute_not_exists(#begun)"
)

// Revoke implements lockstore.Revoker by one request, and a second one to free the key of a
// lease that is broken already. It needs dynamodb:UpdateItem. If the local clock is behind, a
// Revoke may change the row of an expired lease: it is then held by nobody until its end, which
// is over, and with RevokeRequest.Now those who wait count their turns from now on.
func (s *Store) Revoke(ctx context.Context, req lockstore.RevokeRequest) (lockstore.Status, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Status{}, err
	}
	var seen row // at the last refusal
	var date time.Time
	ambiguous := false
	for range grantWrites {
		r, err := s.update(ctx, s.breaking(req, seen, date))
		if err != nil {
			return lockstore.Status{}, outcome(err, ambiguous)
		}
		broken := seen.owner == brokenOwner // before this write
		seen, err = s.names.decode(req.Key, r.item)
		ambiguous = ambiguous || r.ambiguous
		over := err == nil && (seen.owner == "" || seen.owner == closedOwner || seen.fence != req.Fence || takeable(seen, r.date))
		switch {
		case err != nil:
			return lockstore.Status{}, err
		case over && ambiguous && req.OpenAtOnce:
			return lockstore.Status{}, fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and no lease has this fence now", req.Key)
		case over:
			return lockstore.Status{}, lost(req.Key, "no lease with this fence holds it")
		case r.applied && !broken:
			seen.holder = lockstore.DecodeHolderInfo(req.By.Encode())
		case r.applied || seen.owner == brokenOwner && !req.OpenAtOnce:
		case req.OpenAtOnce && seen.begun:
			return lockstore.Status{}, &lockstore.BegunError{HeldError: lockstore.HeldError{Key: req.Key, Holder: seen.holder, Remaining: s.remaining(seen, r)}}
		default:
			date = r.date
			continue // it is broken already, or the local clock was ahead
		}
		return lockstore.Status{
			Key: req.Key, Held: !req.OpenAtOnce, Broken: !req.OpenAtOnce, Holder: seen.holder, Fence: seen.fence,
			Remaining: s.remaining(seen, r), Waiting: len(seen.queue),
		}, nil
	}
	return lockstore.Status{}, fmt.Errorf("dynamostore: key %q: not broken, the lease was renewed %d times meanwhile", req.Key, grantWrites)
}

// breaking is the write that breaks a lease, or frees the key of a lease that was broken when
// it was seen. The old owner is over, as after a release.
func (s *Store) breaking(req lockstore.RevokeRequest, seen row, date time.Time) write {
	w := write{key: req.Key, update: "SET #released = #owner", condition: ifUnbroken, oldRow: true, values: map[string]types.AttributeValue{
		":fence":  fenceNumber(req.Fence),
		":broken": text(brokenOwner),
		":last":   integer(maxMilli),
	}}
	if seen.owner == brokenOwner {
		w.update, w.condition = "SET #released = #released", ifBroken
	} else {
		w.values[":closed"] = text(closedOwner)
	}
	if req.OpenAtOnce {
		w.update += freed
		w.condition += ifNotBegun
		s.frees(&w, seen, date)
		return w
	}
	// The end of the lease stays as it is.
	w.update += ", #owner = :broken, #holder = :holder"
	w.values[":holder"] = text(req.By.Encode())
	s.lasts(&w, seen)
	return w
}
