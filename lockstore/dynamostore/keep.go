package dynamostore

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// The row of a kept key has an owner that nobody is. So everything that holds for a row with
// an owner holds for it, and the next acquire after its end is a takeover.
const (
	beginUpdate = "SET #begun = :sweep, #ttl = :sweep"
	ifBegins    = ifMine + " AND #expires > :now AND attribute_not_exists(#begun)"

	keeps = ", #owner = :closed, #expires = :opens, #ttl = :ttl"
	clean = " REMOVE #queue, #begun"

	// ifInDoubt settles a begun lease that has ended, if the row has not changed since it
	// was read.
	ifInDoubt = "#owner = :theirs AND #fence = :fence AND #expires = :ended AND attribute_exists(#begun)"
)

// keeping completes the update of a write that keeps data until opens. set is the beginning
// of the update.
func (w *write) keeping(set string, data []byte, opens time.Time) {
	w.update = set + keeps
	w.values[":closed"] = text(closedOwner)
	w.values[":opens"] = millis(opens)
	w.values[":ttl"] = sweepTime(opens.Add(idleRow)) // a day more: the clock of the writer may be off
	if len(data) > 0 {
		w.update += ", #kept = :kept"
		w.values[":kept"] = &types.AttributeValueMemberB{Value: data}
	}
	w.update += clean
}

// MarkStarted implements lockstore.Completer by one request.
func (s *Store) MarkStarted(ctx context.Context, lease lockstore.Lease) error {
	if err := lockstore.ValidateGrant(lease); err != nil {
		return err
	}
	for range 2 {
		now := s.clock.read()
		r, err := s.update(ctx, write{
			key:       lease.Key,
			update:    beginUpdate,
			condition: ifBegins,
			values: map[string]types.AttributeValue{
				":me":    ownerText(lease.Owner),
				":fence": fenceNumber(lease.Fence),
				":last":  integer(maxMilli),
				":now":   millis(now),
				":sweep": sweepTime(now.Add(lockstore.StartedFor)),
			},
		})
		if err != nil || r.applied {
			return err
		}
		seen, err := s.names.decode(lease.Key, r.item)
		switch {
		case err != nil:
			return err
		case seen.owner != lease.Owner || seen.fence != lease.Fence:
			return lost(lease.Key, "this lease does not hold it")
		case takeable(seen, r.date):
			return lost(lease.Key, "the lease has expired")
		case seen.begun:
			return nil
		}
		// The local clock was ahead. The refusal has corrected it.
	}
	return lost(lease.Key, "the lease has expired")
}

// Complete implements lockstore.Completer by one request, and by a second one if the local clock is
// wrong. So the key is kept for at least d, and for at most d + 2 skew + 2 s. After an unknown
// outcome, Complete again returns nil if the first call has kept the key: then the end is by the
// local clock of that call, whose error nothing corrects.
func (s *Store) Complete(ctx context.Context, lease lockstore.Lease, data []byte, d time.Duration) error {
	if err := lockstore.ValidateComplete(lease, data, d); err != nil {
		return err
	}
	opens := s.expiresAt(s.clock.read(), d)
	w := write{
		key:       lease.Key,
		condition: ifMine,
		values: map[string]types.AttributeValue{
			":me":    ownerText(lease.Owner),
			":fence": fenceNumber(lease.Fence),
			":last":  integer(maxMilli),
		},
	}
	w.keeping("SET #released = :me", data, opens)
	r, err := s.update(ctx, w)
	if err != nil {
		return err
	}
	if r.applied {
		return s.correctKeep(ctx, lease, opens, s.expiresAt(s.clock.correct(r.sent), d), d)
	}
	seen, err := s.names.decode(lease.Key, r.item)
	switch {
	case err != nil:
		return err
	case seen.released == lease.Owner && seen.owner == closedOwner && !seen.settled:
		if !seen.expires.Equal(opens) {
			return nil // kept already
		}
		// The SDK sent this write twice, and the first one was applied.
		return s.correctKeep(ctx, lease, opens, s.expiresAt(s.clock.correct(r.sent), d), d)
	case r.ambiguous:
		return fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and the row does not show this lease", lease.Key)
	case seen.released == lease.Owner:
		return lost(lease.Key, "this lease was released")
	default:
		return lost(lease.Key, "this lease does not hold it")
	}
}

// correctKeep writes the end of a Complete again if the clock that wrote it was wrong. wanted is
// the end by the clock that the reply has corrected.
func (s *Store) correctKeep(ctx context.Context, lease lockstore.Lease, opens, wanted time.Time, d time.Duration) error {
	if wanted.Sub(opens).Abs() <= min(max(s.skew, margin), d/4) {
		return nil
	}
	r, err := s.update(ctx, write{
		key:       lease.Key,
		update:    "SET #expires = :opens, #ttl = :ttl",
		condition: "#owner = :closed AND #fence = :fence AND #expires = :ended",
		values: map[string]types.AttributeValue{
			":closed": text(closedOwner),
			":fence":  fenceNumber(lease.Fence),
			":ended":  millis(opens),
			":opens":  millis(wanted),
			":ttl":    sweepTime(wanted.Add(idleRow)),
		},
	})
	if err != nil {
		return outcome(err, true)
	}
	if r.applied {
		return nil
	}
	seen, err := s.names.decode(lease.Key, r.item)
	if err == nil && seen.owner == closedOwner && seen.fence == lease.Fence && seen.expires.Equal(wanted) {
		return nil // the SDK sent this write twice
	}
	return fmt.Errorf("dynamostore: key %q: the answer was kept, but not for its time: the local clock is wrong, and the row has changed since", lease.Key)
}

// keptError is the refusal by a row that keeps an answer.
func (s *Store) keptError(key string, seen row, r reply) error {
	return &lockstore.KeptError{
		HeldError: lockstore.HeldError{Key: key, Holder: seen.holder, Remaining: s.remaining(seen, r)},
		Result:    seen.kept,
	}
}

// inDoubt reports whether a begun lease is over.
func inDoubt(r row, date time.Time) bool {
	return r.begun && r.owner != "" && r.owner != closedOwner && takeable(r, date)
}

// ResolveEffect implements lockstore.Resolver by a read and a write.
func (s *Store) ResolveEffect(ctx context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	if err := lockstore.ValidateResolveEffect(key, fence, data, d); err != nil {
		return err
	}
	return s.settle(ctx, key, fence, true, func(w *write, set string) {
		w.keeping(set, data, s.expiresAt(s.clock.read(), d))
	})
}

// ResolveNoEffect implements lockstore.Resolver by a read and a write.
func (s *Store) ResolveNoEffect(ctx context.Context, key string, fence lockstore.Fence) error {
	if err := lockstore.ValidateResolveNoEffect(key, fence); err != nil {
		return err
	}
	return s.settle(ctx, key, fence, false, func(w *write, set string) {
		// The key has been free since the end of the lease.
		w.update = set + ", #ttl = :ttl REMOVE #owner, #holder, #begun"
		w.values[":ttl"] = sweepTime(s.clock.read())
	})
}

// settle sends the write that complete makes. set is the beginning of its update, which says
// that the owner is over. The row of a broken lease says so already.
func (s *Store) settle(ctx context.Context, key string, fence lockstore.Fence, keep bool, complete func(w *write, set string)) error {
	seen, r, err := s.read(ctx, key)
	for range 2 {
		if err != nil {
			return err
		}
		over := seen.owner == "" || takeable(seen, r.date)
		switch {
		case !over && seen.owner != closedOwner:
			return &lockstore.HeldError{Key: key, Holder: seen.holder, Remaining: s.remaining(seen, r)}
		case seen.fence == fence && (seen.owner == "" || seen.owner == closedOwner) && keep == !over:
			return nil
		case seen.fence != fence || !inDoubt(seen, r.date):
			return lost(key, "it is not in doubt with this fence")
		}
		w := write{key: key, condition: ifInDoubt, values: map[string]types.AttributeValue{
			":theirs": ownerText(seen.owner),
			":fence":  fenceNumber(fence),
			":ended":  millis(seen.expires),
		}}
		set := "SET #released = #owner"
		if seen.owner == brokenOwner {
			set = "SET #released = #released"
		}
		if keep {
			set += ", #settled = :fence"
		}
		complete(&w, set)
		if r, err = s.update(ctx, w); err == nil {
			if r.applied {
				return nil
			}
			seen, err = s.names.decode(key, r.item)
		}
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("dynamostore: key %q: not settled, the row changed twice meanwhile", key)
}

// Kept is a Complete for a transaction of the caller's own, with TransactWriteItems: the effect of
// the work and its answer are written together, or none of them. The transaction is cancelled
// if fence does not hold the lock of key any more: when the answer is kept already, for
// example. See IsStale for the refusal. A Complete of the same lease afterwards returns nil.
//
// The condition never holds if lockstore.ValidateComplete refuses data or d, or if the row has no
// time to live of the store's name, see Options.TTL. The end is written by the local clock, as
// the replies to this Store have corrected it; the reply to the transaction does not. So the
// key is kept for less than d if that clock is behind by more than skew + 1 s.
//
// Kept needs dynamodb:UpdateItem on the lock table. A table with multi-Region strong
// consistency has no transactions.
func (s *Store) Kept(key string, fence lockstore.Fence, data []byte, d time.Duration) types.TransactWriteItem {
	w := write{
		key:       key,
		condition: ifHolds + " AND " + sound,
		values: map[string]types.AttributeValue{
			":fence":  fenceNumber(fence),
			":broken": text(brokenOwner),
			":last":   integer(maxMilli),
		},
	}
	w.keeping("SET #released = #owner", data, s.expiresAt(s.clock.read(), d))
	if lockstore.ValidateResolveEffect(key, fence, data, d) != nil {
		w.condition += " AND attribute_not_exists(#fence)"
	}
	update, condition := s.names.expressions(w)
	return types.TransactWriteItem{Update: &types.Update{
		TableName:                           &s.table,
		Key:                                 s.names.row(key),
		UpdateExpression:                    &update,
		ConditionExpression:                 &condition,
		ExpressionAttributeNames:            s.names.aliases(update, condition),
		ExpressionAttributeValues:           w.values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}
