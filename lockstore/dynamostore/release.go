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

	ifOwn     = "#owner = :me AND " + sound
	ifMine    = ifOwn + " AND #fence = :fence"
	ifNobodys = "attribute_not_exists(#owner)"

	// ifNotOver refuses a lease that is over by the local clock. Then the row and the Date of
	// the refusal decide. ifAsSeen is for a row whose end has not changed since a reply.
	ifNotOver = " AND #expires > :now"
	ifAsSeen  = " AND #expires = :ended"

	freed = ", #ttl = :ttl, #expires = :now REMOVE #owner, #holder, #begun"
)

// lasts adds to a write that the lease is not over by the local clock, or else that it is as it
// was seen. Before the first reply seen is the zero row.
func (s *Store) lasts(w *write, seen row) {
	if seen.expires.IsZero() {
		w.condition += ifNotOver
		w.values[":now"] = millis(s.clock.read())
		return
	}
	w.condition += ifAsSeen
	w.values[":ended"] = millis(seen.expires)
}

// frees completes a write whose update ends in freed. If the lease was over when it was seen,
// the key has been free since then: nobody's turn begins again.
func (s *Store) frees(w *write, seen row, date time.Time) {
	s.lasts(w, seen)
	since := s.clock.read()
	w.values[":ttl"] = sweepTime(since)
	if takeable(seen, date) {
		since = seen.since()
	}
	w.values[":now"] = millis(since)
}

// Release implements lockstore.Store by one request, and a second one if the lease is over. With
// fence 0 it may need up to three. The row and its fence stay.
func (s *Store) Release(ctx context.Context, lease lockstore.Lease) error {
	if err := lease.Validate(); err != nil {
		return err
	}
	if lease.Fence == 0 {
		return s.abandon(ctx, lease)
	}
	var seen row
	var date time.Time
	ambiguous := false
	for range grantWrites {
		w := write{key: lease.Key, update: "SET #released = :me" + freed, condition: ifMine, values: map[string]types.AttributeValue{
			":me":    ownerText(lease.Owner),
			":fence": fenceNumber(lease.Fence),
			":last":  integer(maxMilli),
		}}
		s.frees(&w, seen, date)
		r, err := s.update(ctx, w)
		if err != nil || r.applied {
			return outcome(err, ambiguous)
		}
		ambiguous = ambiguous || r.ambiguous
		seen, err = s.names.decode(lease.Key, r.item)
		switch {
		case err != nil:
			return err
		case seen.owner == lease.Owner && seen.fence == lease.Fence:
		case seen.ended(lease.Owner):
			return nil
		case ambiguous:
			// The other attempt may have released the lease, and another owner may have had
			// the key since. ErrLost would say that the lease was lost before the release.
			return fmt.Errorf("dynamostore: key %q: the outcome is unknown: a reply was lost, and the row does not show this lease", lease.Key)
		default:
			return lost(lease.Key, "this lease does not hold it")
		}
		date = r.date
	}
	return fmt.Errorf("dynamostore: key %q: not released, the lease was renewed %d times meanwhile", lease.Key, grantWrites)
}

// abandon ends an acquire that may have been applied or may still be on its way. It takes
// one request if the owner has a live lease or another owner holds the key, and otherwise two.
func (s *Store) abandon(ctx context.Context, lease lockstore.Lease) error {
	s.waiting.Delete(lease.Owner)
	seen, date, ambiguous := row{owner: lease.Owner}, time.Time{}, false
	for range grantWrites {
		r, err := s.update(ctx, s.abandoning(lease, seen, date))
		if err != nil {
			return outcome(err, ambiguous)
		}
		seen, err = s.names.decode(lease.Key, r.item)
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
		date = r.date
	}
	return fmt.Errorf("dynamostore: key %q: not abandoned, the key changed its owner %d times meanwhile", lease.Key, grantWrites)
}

// abandoning is the write that marks a free key, or a key of this owner, as abandoned. It makes
// the fence larger than every fence that this process has sent. So a late acquire of the owner
// is refused. If the key is free, the abandon does not change since when: those who wait keep
// their turns.
func (s *Store) abandoning(lease lockstore.Lease, seen row, date time.Time) write {
	own, highest := seen.owner == lease.Owner, s.clock.highestFence.Load()
	w := write{key: lease.Key, update: "SET #abandoned = :me", condition: ifNobodys, oldRow: true, values: map[string]types.AttributeValue{
		":me": ownerText(lease.Owner),
	}}
	if own {
		w.update, w.condition = "SET #released = :me", ifOwn
		w.values[":last"] = integer(maxMilli)
	}
	now := s.clock.read()
	if !own || highest > 0 {
		// The clock may have been set back since the acquire was sent.
		fence := max(lockstore.Fence(now.UnixMicro()), lockstore.Fence(highest)+1)
		if seen.fence >= fence {
			fence = seen.fence + 1
			w.condition += " AND #fence = :seen"
			w.values[":seen"] = fenceNumber(seen.fence)
		} else {
			w.condition += " AND #fence < :fence"
			w.makesRow = !own
		}
		w.update += ", #fence = :fence"
		w.values[":fence"] = fenceNumber(fence)
	}
	// Otherwise another process sent the acquire, and perhaps no reply has corrected the clock of
	// this one. A fence from a clock far ahead would cost every acquire until that time a second
	// request. If the owner's lease is in the row, the row's own fence is large enough.
	if own {
		w.update += freed
		s.frees(&w, seen, date)
	} else {
		w.update += ", #ttl = :ttl"
		w.values[":ttl"] = sweepTime(now)
	}
	return w
}
