package dynamostore

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	// sound is false for a row whose end is damaged. Such a row must not change.
	sound = "#expires <= :last"

	ifMine = "#owner = :me AND #fence = :fence AND " + sound

	freed = ", #ttl = :ttl, #expires = :now REMOVE #owner, #holder, #begun"

	releaseUpdate = "SET #released = :me" + freed

	// An abandon makes the fence larger than every fence that this process has sent. So a
	// late acquire of the owner is refused. If the row is free, the abandon does not change
	// since when: those who wait keep their turns.
	abandonOwn  = "SET #released = :me, #fence = :fence" + freed
	abandonFree = "SET #released = :me, #fence = :fence, #ttl = :ttl"

	ifOwn     = "#owner = :me AND " + sound
	ifNobodys = "attribute_not_exists(#owner)"
)

// Release implements lockstore.Store by one request; with fence 0 it may need up to three. The
// row and its fence stay.
func (s *Store) Release(ctx context.Context, lease lockstore.Lease) error {
	if err := lease.Validate(); err != nil {
		return err
	}
	if lease.Fence == 0 {
		return s.abandon(ctx, lease)
	}
	now := s.clock.read()
	return s.release(ctx, lease, write{
		key:       lease.Key,
		update:    releaseUpdate,
		condition: ifMine,
		values: map[string]types.AttributeValue{
			":me":    ownerText(lease.Owner),
			":fence": fenceNumber(lease.Fence),
			":last":  integer(maxMilli),
			":now":   millis(now),
			":ttl":   sweepTime(now),
		},
	})
}

func (s *Store) release(ctx context.Context, lease lockstore.Lease, w write) error {
	r, err := s.update(ctx, w)
	if err != nil || r.applied {
		return err
	}
	seen, err := s.names.decode(lease.Key, r.item)
	switch {
	case err != nil:
		return err
	case seen.released == lease.Owner:
		return nil
	case r.ambiguous:
		// The other attempt may have released the lease, and another owner may have had
		// the key since. ErrLost would say that the lease was lost before the release.
		return fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and the row does not show this lease", lease.Key)
	default:
		return lost(lease.Key, "this lease does not hold it")
	}
}

// abandon ends an acquire that may have been applied or may still be on its way. It takes
// one request if the owner has the key or another owner holds it, and otherwise two.
func (s *Store) abandon(ctx context.Context, lease lockstore.Lease) error {
	s.waiting.Delete(lease.Owner)
	w := s.raiseFence(lease, row{owner: lease.Owner})
	if s.clock.highestFence.Load() == 0 {
		// Another process sent the acquire, and perhaps no reply has corrected the clock of
		// this process. A fence from a clock far ahead would cost every acquire until that
		// time a second request. If the owner's lease is in the row, the row's own fence is
		// large enough.
		now := s.clock.read()
		w = write{
			key:       lease.Key,
			update:    releaseUpdate,
			condition: ifOwn,
			values: map[string]types.AttributeValue{
				":me":   ownerText(lease.Owner),
				":now":  millis(now),
				":ttl":  sweepTime(now),
				":last": integer(maxMilli),
			},
			oldRow: true,
		}
	}
	ambiguous := false
	for range grantWrites {
		r, err := s.update(ctx, w)
		if err != nil {
			return outcome(err, ambiguous)
		}
		seen, err := s.names.decode(lease.Key, r.item)
		if r.applied {
			seen.owner = ""
			return s.leave(ctx, lease.Key, lease.Owner, seen, r.date)
		}
		ambiguous = ambiguous || r.ambiguous
		if err != nil {
			return err
		}
		if seen.owner != "" && seen.owner != lease.Owner {
			// Another owner holds the key. This owner may have a place in the queue.
			return s.leave(ctx, lease.Key, lease.Owner, seen, r.date)
		}
		w = s.raiseFence(lease, seen)
	}
	return fmt.Errorf("dynamostore: key %q: not abandoned, the key changed its owner %d times meanwhile", lease.Key, grantWrites)
}

// raiseFence is the write that marks a free key, or a key of this owner, as abandoned. seen
// is the row at the last refusal.
func (s *Store) raiseFence(lease lockstore.Lease, seen row) write {
	now := s.clock.read()
	// The clock may have been set back since the acquire was sent.
	fence := max(lockstore.Fence(now.UnixMicro()), lockstore.Fence(s.clock.highestFence.Load())+1)
	w := write{
		key:       lease.Key,
		update:    abandonFree,
		condition: ifNobodys,
		values: map[string]types.AttributeValue{
			":me":  ownerText(lease.Owner),
			":ttl": sweepTime(now),
		},
		oldRow: true,
	}
	own := seen.owner == lease.Owner
	if own {
		w.update, w.condition = abandonOwn, ifOwn
		w.values[":now"], w.values[":last"] = millis(now), integer(maxMilli)
	}
	if seen.fence >= fence {
		fence = seen.fence + 1
		w.condition += " AND #fence = :seen"
		w.values[":seen"] = fenceNumber(seen.fence)
	} else {
		w.condition += " AND #fence < :fence"
		w.makesRow = !own
	}
	w.values[":fence"] = fenceNumber(fence)
	return w
}
