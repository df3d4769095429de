package dynamostore

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	// sound is false for a row whose end is damaged. Such a row must not change.
	sound = "#expires <= :last"

	ifMine = "#owner = :me AND #fence = :fence AND " + sound

	freed = " REMOVE #owner, #expires, #holder"

	releaseUpdate = "SET #released = :me, #ttl = :ttl" + freed

	abandonUpdate = "SET #released = :me, #fence = :fence, #ttl = :ttl" + freed

	notAnothers = "((#owner = :me AND " + sound + ") OR attribute_not_exists(#owner))"

	// ifNotAnothers makes the fence larger than every fence that this process has sent.
	// So a late acquire of the owner is refused.
	ifNotAnothers = "attribute_not_exists(#key) OR (#fence < :fence AND " + notAnothers + ")"

	// ifNotAnothersAt does the same for a fence that is not smaller than the local time.
	ifNotAnothersAt = notAnothers + " AND #fence = :seen"
)

// Release implements lockstore.Store by one request. The row and its fence stay.
func (s *Store) Release(ctx context.Context, lease lockstore.Lease) error {
	if err := lease.Validate(); err != nil {
		return err
	}
	if lease.Fence == 0 {
		return s.abandon(ctx, lease)
	}
	return s.release(ctx, lease, write{
		key:       lease.Key,
		update:    releaseUpdate,
		condition: ifMine,
		values: map[string]types.AttributeValue{
			":me":    ownerText(lease.Owner),
			":fence": fenceNumber(lease.Fence),
			":last":  integer(maxMilli),
			":ttl":   sweepTime(s.clock.read()),
		},
	})
}

// ReleaseAfter implements lockstore.CooldownReleaser by one request. It gives the key
// to an owner that nobody is, and the next acquire after the cooldown takes that
// owner's lease over. So the cooldown lasts from d to d + 2 skew + 2 s, by the corrected
// local clock. An acquire during the cooldown is refused in the name of the last holder.
func (s *Store) ReleaseAfter(ctx context.Context, lease lockstore.Lease, d time.Duration) error {
	if err := lockstore.ValidateReleaseAfter(lease, d); err != nil {
		return err
	}
	end := s.expiresAt(s.clock.read(), d)
	return s.release(ctx, lease, write{
		key:       lease.Key,
		update:    "SET #released = :me, #owner = :nobody, #expires = :end, #ttl = :ttl",
		condition: ifMine,
		values: map[string]types.AttributeValue{
			":me":     ownerText(lease.Owner),
			":fence":  fenceNumber(lease.Fence),
			":nobody": text(cooldownOwner),
			":end":    millis(end),
			":last":   integer(maxMilli),
			":ttl":    sweepTime(end),
		},
	})
}

func (s *Store) release(ctx context.Context, lease lockstore.Lease, w write) error {
	r, err := s.update(ctx, w)
	if err != nil || r.applied {
		return err
	}
	seen, err := decode(lease.Key, r.item)
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

// abandon ends an acquire that may have been applied or may still be on its way.
func (s *Store) abandon(ctx context.Context, lease lockstore.Lease) error {
	w := s.raiseFence(lease, row{})
	if s.clock.highestFence.Load() == 0 {
		// Another process sent the acquire, and perhaps no reply has corrected the clock of
		// this process. A fence from a clock far ahead would cost every acquire until that
		// time a second request. If the owner's lease is in the row, the row's own fence is
		// large enough.
		w = write{
			key:       lease.Key,
			update:    releaseUpdate,
			condition: "#owner = :me AND " + sound,
			values: map[string]types.AttributeValue{
				":me":   ownerText(lease.Owner),
				":ttl":  sweepTime(s.clock.read()),
				":last": integer(maxMilli),
			},
		}
	}
	ambiguous := false
	for range grantWrites {
		r, err := s.update(ctx, w)
		if err != nil {
			return outcome(err, ambiguous)
		}
		if r.applied {
			return nil
		}
		ambiguous = ambiguous || r.ambiguous
		seen, err := decode(lease.Key, r.item)
		if err != nil {
			return err
		}
		if seen.owner != "" && seen.owner != lease.Owner {
			return nil // another owner holds the key, so this owner has nothing there
		}
		w = s.raiseFence(lease, seen)
	}
	return fmt.Errorf("dynamostore: key %q: not abandoned, the key changed its owner %d times meanwhile", lease.Key, grantWrites)
}

// raiseFence is the write that marks a free key, or a key of this owner, as abandoned. It
// makes the fence larger than every fence that this process has sent. seen is the row
// at the last refusal.
func (s *Store) raiseFence(lease lockstore.Lease, seen row) write {
	now := s.clock.read()
	// The clock may have been set back since the acquire was sent.
	fence := max(lockstore.Fence(now.UnixMicro()), lockstore.Fence(s.clock.highestFence.Load())+1)
	w := write{
		key:       lease.Key,
		update:    abandonUpdate,
		condition: ifNotAnothers,
		values: map[string]types.AttributeValue{
			":me":   ownerText(lease.Owner),
			":ttl":  sweepTime(now),
			":last": integer(maxMilli),
		},
	}
	if seen.fence >= fence {
		fence = seen.fence + 1
		w.condition = ifNotAnothersAt
		w.values[":seen"] = fenceNumber(seen.fence)
	}
	w.values[":fence"] = fenceNumber(fence)
	return w
}
