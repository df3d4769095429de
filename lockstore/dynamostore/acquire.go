package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	grantUpdate = "SET #owner = :me, #fence = :fence, #expires = :expires, #holder = :holder, #ttl = :ttl"

	// ifFree takes a free key for which nobody waits and whose fence is smaller than the
	// local time; its write takes a key without a row, too. It refuses a row of another
	// program, which has no number as its fence, and it refuses an owner that has released.
	ifFree = "#fence < :fence AND attribute_not_exists(#owner) AND attribute_not_exists(#queue[0])" + ifNotEnded

	// ifFreeAt takes a free key whose fence is not smaller than the local time, or for
	// which others wait, if the row has not changed since it was seen.
	ifFreeAt = "attribute_not_exists(#owner) AND #fence = :seen" + ifNotEnded

	// ifStill takes over an expired lease, if the row has not changed since the refusal.
	// It compares the end too, because a renewal changes only the end.
	ifStill = "#owner = :theirs AND #fence = :seen AND #expires = :ended AND attribute_not_exists(#begun)" + ifNotEnded

	// ifNotEnded refuses an owner whose mark is in the row.
	ifNotEnded = " AND #released <> :me AND #abandoned <> :me"
)

// grantWrites is how many writes one grant may take: the first write, the write that
// follows its refusal, and two more if other owners take and release the key meanwhile.
const grantWrites = 4

// grant is an applied acquire that the caller does not know yet.
type grant struct {
	lease    lockstore.Lease
	expires  time.Time
	date     time.Time
	before   lockstore.Fence // the fence in the old row, 0 without one
	since    time.Time       // since when the key was free in the old row; zero when that is not known
	restores bool            // before is known, and the client has sent one attempt
	repeat   bool            // an earlier call was granted the lease
	byPlace  bool            // the owner had a place, which the grant ended
}

// Acquire implements lockstore.Store. It sends one request if the key is free. It sends
// a second one for a takeover, for the same acquire again, for a fence ahead of the
// clock, and if another owner took and released the key meanwhile. Once per call, a
// grant with a wrong end is released and acquired again with the corrected time: two
// requests more.
func (s *Store) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Lease{}, err
	}
	g, err := s.grant(ctx, req)
	if err != nil {
		return lockstore.Lease{}, err
	}
	if !g.repeat && s.mustCorrect(g, req.TTL) {
		s.logger().LogAttrs(ctx, slog.LevelWarn, "dynamostore: the lease is acquired a second time: its end was too far from DynamoDB's time, because the local clock is wrong or the request was slow",
			slog.String("key", req.Key), slog.Duration("correction", time.Duration(s.clock.offset.Load())))
		if err := s.undo(ctx, g); err != nil {
			return lockstore.Lease{}, outcome(err, true)
		}
		if g, err = s.grant(ctx, req); err != nil {
			return lockstore.Lease{}, err
		}
	}
	return g.lease, nil
}

// grant writes until the key is granted or the answer is certain.
func (s *Store) grant(ctx context.Context, req lockstore.Request) (grant, error) {
	var seen row // at the last refusal, or when AwaitTurn returned
	var date time.Time
	ambiguous := false
	condition := ifFree
	if v, ok := s.waiting.LoadAndDelete(req.Owner); ok {
		seen, date = v.(sight).row, v.(sight).date
		if condition = ifStill; seen.owner == "" {
			condition = ifFreeAt
		}
	}
	for range grantWrites {
		now := s.clock.read()
		expires := s.expiresAt(now, req.TTL)
		fence := lockstore.Fence(now.UnixMicro())
		w := write{key: req.Key, condition: condition, makesRow: condition == ifFree, oldRow: true}
		values := map[string]types.AttributeValue{
			":me":      ownerText(req.Owner),
			":expires": millis(expires),
			":holder":  text(req.Holder.Encode()),
			":ttl":     sweepTime(expires),
		}
		remove := ", #queue"
		if condition == ifFree {
			s.clock.noteFence(fence)
		} else {
			fence = lockstore.NextFence(seen.fence, now)
			values[":seen"] = fenceNumber(seen.fence)
			var queue string
			var more map[string]types.AttributeValue
			queue, remove, more = seen.passing(req.Owner, date)
			w.condition += queue
			maps.Copy(values, more)
		}
		if condition == ifStill {
			values[":theirs"] = ownerText(seen.owner)
			values[":ended"] = millis(seen.expires)
			if seen.owner == closedOwner {
				remove += ", #kept"
			}
		}
		values[":fence"] = fenceNumber(fence)
		w.values, w.update = values, grantUpdate+" REMOVE #freed"+remove

		r, err := s.update(ctx, w)
		if err != nil {
			return grant{}, outcome(err, ambiguous)
		}
		ambiguous = ambiguous || r.ambiguous
		g := grant{
			lease:   lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: fence},
			expires: expires,
			date:    r.date,
			byPlace: condition != ifFree && seen.place(req.Owner) >= 0,
		}
		if r.applied {
			before, err := s.names.decode(req.Key, r.item)
			g.before, g.since, g.restores = before.fence, before.since(), err == nil && r.sentOnce
			return s.trusted(g, req.TTL)
		}

		if seen, err = s.names.decode(req.Key, r.item); err != nil {
			return grant{}, err
		}
		switch {
		case seen.owner == req.Owner && seen.fence == fence && seen.expires.Equal(expires):
			// The SDK sent this write twice, and the first one was applied.
			return s.trusted(g, req.TTL)
		case seen.owner == req.Owner:
			return s.answerRepeat(ctx, req, seen, r)
		case seen.ended(req.Owner):
			return grant{}, lost(req.Key, "this acquisition has ended")
		}
		condition, err = s.next(ctx, req, &seen, &r)
		if err != nil {
			return grant{}, err
		}
		date = r.date
	}
	// Each time another owner took the key and released it before the next write.
	return grant{}, &lockstore.HeldError{Key: req.Key}
}

// trusted sets for how long the lease may be trusted.
func (s *Store) trusted(g grant, ttl time.Duration) (grant, error) {
	if g.date.IsZero() {
		return grant{}, noDate(g.lease.Key)
	}
	g.lease.TTL = trustedFor(ttl, g.expires, g.date) - margin
	return g, nil
}

// answerRepeat answers an owner that holds the lease already: the reply to an earlier
// call was lost. The TTL is what is left, counted from before this request.
func (s *Store) answerRepeat(ctx context.Context, req lockstore.Request, seen row, r reply) (grant, error) {
	if r.date.IsZero() {
		return grant{}, noDate(req.Key)
	}
	if takeable(seen, r.date) {
		return grant{}, lost(req.Key, "the lease has expired")
	}
	left := min(req.TTL, s.left(seen.expires, r))
	if err := s.confirm(ctx, req, seen); err != nil {
		return grant{}, outcome(err, true)
	}
	return grant{
		lease:  lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: seen.fence, TTL: left - margin},
		repeat: true,
	}, nil
}

// confirm moves the end of a lease from an earlier call by 1 ms. That call may have
// begun to undo its grant, because of a wrong clock, by a request that is still on its
// way. That request is refused when it finds another end.
func (s *Store) confirm(ctx context.Context, req lockstore.Request, seen row) error {
	expires := seen.expires.Add(time.Millisecond)
	r, err := s.update(ctx, write{
		key:       req.Key,
		update:    "SET #expires = :expires",
		condition: "#owner = :me AND #fence = :fence AND #expires = :ended",
		values: map[string]types.AttributeValue{
			":me":      ownerText(req.Owner),
			":fence":   fenceNumber(seen.fence),
			":ended":   millis(seen.expires),
			":expires": millis(expires),
		},
	})
	if err != nil || r.applied {
		return err
	}
	now, err := s.names.decode(req.Key, r.item)
	if err != nil {
		return err
	}
	// A later end of the same grant is good too: the SDK sent this write twice, or
	// another repeat or a renewal moved the end.
	if now.owner != req.Owner || now.fence != seen.fence || !now.expires.After(seen.expires) {
		return fmt.Errorf("dynamostore: key %q: the lease changed during the repeat, outcome unknown", req.Key)
	}
	return nil
}

// mustCorrect reports whether the end of a grant is so wrong that others would wait too
// long, or that the lease could be trusted for too short a time. Only the Date of the
// grant's own reply is used: with a later reading of the clock, a slow reply and a slow
// clock would look the same.
func (s *Store) mustCorrect(g grant, ttl time.Duration) bool {
	ahead := g.expires.Sub(g.date) > ttl+2*s.skew+dateStep
	behind := trustedFor(ttl, g.expires, g.date) < ttl/2
	return ahead || behind
}

// undo releases a grant that the caller does not know, and puts the old fence back. A
// fence from a clock far ahead would cost every acquire until that time a second
// request.
func (s *Store) undo(ctx context.Context, g grant) error {
	now := s.clock.read()
	since := g.since // nobody's turn moves
	if since.IsZero() {
		since = now
	}
	before := g.before
	if !g.restores {
		before = g.lease.Fence // the reply with the old fence was lost, and no smaller fence is safe
	}
	w := write{
		key:       g.lease.Key,
		update:    "SET #fence = :before",
		condition: "#owner = :me AND #fence = :fence AND #expires = :expires",
		values: map[string]types.AttributeValue{
			":me":      ownerText(g.lease.Owner),
			":fence":   fenceNumber(g.lease.Fence),
			":expires": millis(g.expires),
			":before":  fenceNumber(before),
			":now":     millis(since),
			":ttl":     sweepTime(now),
		},
	}
	if g.byPlace {
		// The owner is the first in line again, for its next request.
		w.update += ", #queue = list_append(:mine, if_not_exists(#queue, :empty))"
		w.values[":mine"], w.values[":empty"] = list(g.lease.Owner), list()
	}
	w.update += freed
	// If refused, the lease was so short that another owner has taken the key over.
	_, err := s.update(ctx, w)
	return err
}

func (s *Store) logger() *slog.Logger {
	if s.log == nil {
		return slog.Default()
	}
	return s.log
}

// next is the condition under which the row that refused a request may be granted
// to its owner, or the error that tells the owner to wait. An owner that asks for a
// place takes it first. If that is refused, the row has changed: seen and r are then
// what is there now.
func (s *Store) next(ctx context.Context, req lockstore.Request, seen *row, r *reply) (string, error) {
	for range 2 {
		free := seen.owner == ""
		switch {
		case seen.owner == closedOwner && !takeable(*seen, r.date):
			return "", s.keptError(req.Key, *seen, *r)
		case inDoubt(*seen, r.date):
			return "", &lockstore.DoubtError{HeldError: lockstore.HeldError{Key: req.Key, Holder: seen.holder}}
		}
		left := seen.untilTurn(req.Owner, r.date)
		switch {
		case free && left <= 0 && len(seen.queue) == 0 && !seen.damaged && int64(seen.fence) < s.clock.read().UnixMicro():
			return ifFree, nil
		case free && left <= 0:
			return ifFreeAt, nil
		case !free && left <= 0 && takeable(*seen, r.date):
			return ifStill, nil
		}
		held := &lockstore.HeldError{Key: req.Key, Holder: seen.holder, Place: seen.place(req.Owner) + 1}
		if free || takeable(*seen, r.date) {
			held.Holder, held.Remaining, held.Free = lockstore.Holder{}, max(left, time.Millisecond), true
		} else {
			held.Remaining = s.remaining(*seen, *r)
		}
		if !req.Queue || !seen.joins(req.Owner) {
			return "", held
		}
		joined, err := s.join(ctx, req)
		if err != nil {
			// The refusal is certain. The next request shows whether there is a place.
			return "", errors.Join(held, ctx.Err())
		}
		if joined.applied {
			before, err := s.names.decode(req.Key, joined.item)
			if err == nil {
				held.Place = len(before.queue) + 1
			}
			return "", held
		}
		if *seen, err = s.names.decode(req.Key, joined.item); err != nil {
			return "", err
		}
		if seen.owner == req.Owner || seen.ended(req.Owner) {
			return ifFree, nil // a copy of this request came first, and the next refusal shows what it did
		}
		*r = joined
	}
	return "", &lockstore.HeldError{Key: req.Key, Holder: seen.holder, Remaining: s.remaining(*seen, *r)}
}

func lost(key, why string) error {
	return fmt.Errorf("dynamostore: key %q: %s: %w", key, why, lockstore.ErrLost)
}

// noDate is an unknown outcome: the row is written, but without a Date header the time
// of trust is not known.
func noDate(key string) error {
	return fmt.Errorf("dynamostore: key %q: %w", key,
		errors.New("the reply has no Date header, so the lease cannot be trusted; something between here and DynamoDB removes it"))
}
