package dynamostore

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	// sound is false for a lease whose end is damaged, which stays as it is.
	sound = "#expires <= :last"

	ifMine = "#owner = :me AND #fence = :fence AND " + sound

	freed = " REMOVE #owner, #expires, #holder"

	releaseUpdate = "SET #released = :me, #ttl = :ttl" + freed

	abandonUpdate = "SET #released = :me, #fence = :fence, #ttl = :ttl" + freed

	notAnothers = "((#owner = :me AND " + sound + ") OR attribute_not_exists(#owner))"

	// ifNotAnothers raises the fence above every stamp that the owner has sent;
	// that is what refuses its late acquire.
	ifNotAnothers = "attribute_not_exists(#key) OR (#fence < :fence AND " + notAnothers + ")"

	// ifNotAnothersAt does so for a fence at or above the local time.
	ifNotAnothersAt = notAnothers + " AND #fence = :seen"
)

// Release implements lockstore.Store, by one request. It updates the row and
// does not delete it: the fence stays.
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

// ReleaseAfter implements lockstore.CooldownReleaser, by one request. The key
// gets an owner that nobody is, whose lease ends after d by the corrected local
// clock and is taken over as a dead holder's is: the key stays closed for at
// least d and at most d + 2 skew + 2 s, and says so as held by the last holder.
func (s *Store) ReleaseAfter(ctx context.Context, lease lockstore.Lease, d time.Duration) error {
	if err := lockstore.ValidateReleaseAfter(lease, d); err != nil {
		return err
	}
	opens := s.stamp(s.clock.read(), d)
	return s.release(ctx, lease, write{
		key:       lease.Key,
		update:    "SET #released = :me, #owner = :closed, #expires = :opens, #ttl = :ttl",
		condition: ifMine,
		values: map[string]types.AttributeValue{
			":me":     ownerText(lease.Owner),
			":fence":  fenceNumber(lease.Fence),
			":closed": text(closedOwner),
			":opens":  millis(opens),
			":last":   integer(maxMilli),
			":ttl":    sweepTime(opens),
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
	case r.doubt:
		// That attempt may have released it, and another had the key since then.
		// ErrLost would say that the lease vanished under its holder.
		return fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and the row has no trace of this lease", lease.Key)
	default:
		return lost(lease.Key, "this lease does not hold it")
	}
}

// abandon ends an acquire of unknown outcome, applied or still on its way.
func (s *Store) abandon(ctx context.Context, lease lockstore.Lease) error {
	w := s.raise(lease, row{})
	if s.clock.highest.Load() == 0 {
		// Another process sent the acquire, and no reply may have corrected this one's
		// clock: a fence from it could be far ahead, and until that time has come each
		// acquire would need two requests. If the lease is there, its fence is enough.
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
	unsure := false
	for range grantWrites {
		r, err := s.update(ctx, w)
		if err != nil {
			return outcome(err, unsure)
		}
		if r.applied {
			return nil
		}
		unsure = unsure || r.doubt
		seen, err := decode(lease.Key, r.item)
		if err != nil {
			return err
		}
		if seen.owner != "" && seen.owner != lease.Owner {
			return nil // another holds it: nothing of this owner is there
		}
		w = s.raise(lease, seen)
	}
	return fmt.Errorf("dynamostore: key %q: not abandoned, the key changed hands %d times meanwhile", lease.Key, grantWrites)
}

// raise is the write that marks a free row, or one of this owner, and raises its
// fence above every stamp that the owner has sent through this process. seen is
// what the last refusal showed.
func (s *Store) raise(lease lockstore.Lease, seen row) write {
	now := s.clock.read()
	// The clock may have been corrected downwards since the acquire was stamped.
	fence := max(lockstore.Fence(now.UnixMicro()), lockstore.Fence(s.clock.highest.Load())+1)
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
