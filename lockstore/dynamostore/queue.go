package dynamostore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// The queue of a key is a list in its row, the owners in the order of arrival. A
// free row keeps in expires since when it is free, by the clock of the writer that
// freed it. The service's Date is the other end of that time. Turn needs no
// tolerance for clocks: a stamp may be a second off and a Date a second behind,
// and the first in line still has a second.
const (
	// maxPlaces keeps a row with a short key below two write units.
	maxPlaces = 64

	// leaveWrites bounds the writes of one Leave: others that leave move the place.
	leaveWrites = 8
	leavePause  = 20 * time.Millisecond

	// farAhead is how far in the future a free row's stamp may be. One beyond it is
	// a wrong clock's, and keeps the key for nobody.
	farAhead = 3 * time.Second

	// The first in the queue looks every shortLook, and after a while every longLook.
	// The pause of the others is longer by shortLook for each place before theirs.
	shortLook = 25 * time.Millisecond
	longLook  = 300 * time.Millisecond
)

// place is the owner's index in the queue, -1 without one.
func (r row) place(o driver.Owner) int { return slices.Index(r.queue, o) }

// since is the moment from which on the key counts as free.
func (r row) since() time.Time {
	if end := r.expires.Add(dateStep); r.owner != "" && r.freed.Before(end) {
		return end
	}
	return r.freed
}

// free is for how long an owner may have been granted the key by the service's
// time, and whether that is known. A row that another version freed has no stamp.
func (r row) free(date time.Time) (d time.Duration, known bool) {
	since := r.since()
	return max(0, date.Sub(since)), !since.IsZero() && !since.After(date.Add(farAhead))
}

// untilTurn is how long a row that is free, or may be taken over, is still kept for
// those before an owner. Without a Date nobody's turn is over.
func (r row) untilTurn(o driver.Owner, date time.Time) time.Duration {
	before := r.place(o)
	if before < 0 {
		before = len(r.queue)
	}
	free, known := r.free(date)
	if date.IsZero() {
		free, known = 0, true
	}
	if !known {
		return 0
	}
	return lockstore.UntilTurn(before, free)
}

// passing adds to a grant what is about the queue, as the owner saw it. The grant ends the
// owner's place and those before it, or the whole queue when the owner has none.
func (at *sight) passing(w *write, o driver.Owner) {
	i := at.place(o)
	_, known := at.free(at.date)
	first := 0
	switch {
	case at.damaged:
		w.update += ", #queue"
		return
	case len(at.queue) == 0:
		w.condition += " AND attribute_not_exists(#queue[0])"
		w.update += ", #queue"
		return
	case !known:
		first = max(i, 0) // no turn is over: nobody else's place ends
	case i < 0:
		w.condition += " AND size(#queue) = :waiting"
		w.values[":waiting"] = integer(int64(len(at.queue)))
		w.update += ", #queue"
		return
	}
	for p := first; p <= i; p++ {
		w.update += fmt.Sprintf(", #queue[%d]", p)
	}
	if i >= 0 {
		w.condition += fmt.Sprintf(" AND #queue[%d] = :me", i)
	}
}

// joins reports whether a refused owner may take a place.
func (r row) joins(o driver.Owner) bool {
	return !r.damaged && r.place(o) < 0 && len(r.queue) < maxPlaces && r.owner != closedOwner
}

// joining is the write that takes the last place behind a holder or behind others.
func joining(owner driver.Owner) write {
	return write{
		update: "SET #queue = list_append(if_not_exists(#queue, :empty), :mine)",
		condition: "(attribute_exists(#owner) OR attribute_exists(#queue[0])) AND #owner <> :me AND #owner <> :closed AND " +
			"NOT contains(#queue, :me) AND attribute_not_exists(#queue[63])" + ifNotEnded,
		values: values{
			":me":     ownerText(owner),
			":closed": text(closedOwner),
			":mine":   list(owner),
			":empty":  list(),
		},
		oldRow: true,
	}
}

func list(owners ...driver.Owner) types.AttributeValue {
	l := &types.AttributeValueMemberL{Value: []types.AttributeValue{}}
	for _, o := range owners {
		l.Value = append(l.Value, ownerText(o))
	}
	return l
}

// Await implements driver.Driver by consistent reads. The first in the queue reads every
// 25 ms at first, and every 300 ms when it has been the first for 5.5 s. With n places before
// its own, an owner pauses n times 25 ms longer at first, and later for 300 ms or n times 25 ms,
// whichever is longer. The next acquire of this owner begins with the row that was read, so its
// first request is not one that must be refused.
func (t *table) Await(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	ask := driver.Answer{Outcome: driver.Ask}
	place, moved := 0, t.clock.local() // moved is when the owner's place was seen to change
	for {
		seen, r, err := t.read(ctx, key)
		if err == nil {
			before := place
			place = seen.place(q.Owner)
			if seen.owner == q.Owner || seen.ended(q.Owner) || place < 0 || seen.inDoubt(r.date) {
				return ask, nil // there is no turn to wait for
			}
			if (seen.owner == "" || takeable(seen, r.date)) && seen.untilTurn(q.Owner, r.date) <= 0 {
				t.waiting.Store(q.Owner, &sight{seen, r.date})
				return ask, nil
			}
			if place != before {
				moved = t.clock.local()
			}
		}
		waited := max(0, t.clock.local().Sub(moved)) // the clock may have been set back
		nearer := time.Duration(place) * shortLook   // others are served in this time at least
		look := min(max(longLook, nearer), shortLook+nearer+waited/20)
		if err := pause(ctx, look*3/4+t.random(look/2)); err != nil {
			return driver.Answer{}, err
		}
		if err != nil {
			return ask, nil // the caller asks, and is told why the store cannot be read
		}
	}
}

// pause returns the context's error if the context ends before d has passed.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sight is a row and when it was seen, by the service's time.
type sight struct {
	row
	date time.Time
}

// sightOf is what Await has seen last for the owner, or nil.
func (t *table) sightOf(o driver.Owner) *sight {
	at, _ := t.waiting.LoadAndDelete(o)
	seen, _ := at.(*sight)
	return seen
}

// leave sends one read and one write, and more writes if others leave at the same time.
func (t *table) leave(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	t.waiting.Delete(q.Owner)
	seen, r, err := t.read(ctx, key)
	if err != nil {
		return driver.Answer{}, err
	}
	return t.leaveRow(ctx, key, q.Owner, seen, r.date)
}

// leaveRow ends the owner's place in a row as it was seen.
func (t *table) leaveRow(ctx context.Context, key string, owner driver.Owner, seen row, date time.Time) (driver.Answer, error) {
	ambiguous := false
	for n := range leaveWrites {
		if n > 0 {
			// Others leave at the same time: each of them moves the places.
			if err := pause(ctx, t.random(time.Duration(n)*leavePause)); err != nil {
				return driver.Answer{}, outcome(fmt.Errorf("dynamostore: key %q: did not leave the queue: %w: %w", key, lockstore.ErrUnavailable, err), ambiguous)
			}
		}
		if seen.owner == owner && !takeable(seen, date) {
			return driver.Answer{Outcome: driver.Holding, Fence: seen.fence}, nil
		}
		if seen.place(owner) < 0 {
			return done, nil
		}
		r, err := t.update(ctx, key, t.leaving(owner, seen, date))
		if err != nil || r.applied {
			return done, outcome(err, ambiguous)
		}
		ambiguous = ambiguous || r.ambiguous
		if seen, err = t.names.decode(key, r.item); err != nil {
			return driver.Answer{}, err
		}
		date = r.date
	}
	return driver.Answer{}, fmt.Errorf("dynamostore: key %q: did not leave the queue, which changed %d times meanwhile; the place costs those behind it a turn", key, leaveWrites)
}

// leaving is the write that takes an owner's place out of the row as it was seen. It may
// change since when the key counts as free, see lockstore.FreeAfterLeave. If the holder is
// dead, that is an attribute of its own, because the end of a lease must not change.
func (t *table) leaving(owner driver.Owner, seen row, date time.Time) write {
	i := seen.place(owner)
	w := write{
		update:    fmt.Sprintf("REMOVE #queue[%d]", i),
		condition: fmt.Sprintf("#queue[%d] = :me", i),
		values:    values{":me": ownerText(owner)},
	}
	since, ended, dead := seen.since(), seen.freed, seen.owner != "" && takeable(seen, date)
	if dead {
		ended = seen.expires
	}
	if _, known := seen.free(date); known && (dead || seen.owner == "") {
		free := t.clock.read().Sub(since)
		if later := free - lockstore.FreeAfterLeave(i, free); later > 0 {
			w.condition += " AND #expires = :ended"
			w.values[":freed"], w.values[":ended"] = millis(since.Add(later)), millis(ended)
			if dead {
				w.update = "SET #freed = :freed " + w.update
				w.condition += " AND #owner = :theirs AND #fence = :seen" // as in a takeover
				w.values[":theirs"], w.values[":seen"] = ownerText(seen.owner), fenceNumber(seen.fence)
				return w
			}
			w.update = "SET #expires = :freed " + w.update
		}
	}
	if seen.owner == "" {
		w.condition += " AND attribute_not_exists(#owner)"
	} else {
		w.condition += " AND attribute_exists(#owner)"
	}
	return w
}
