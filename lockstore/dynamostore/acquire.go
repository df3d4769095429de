package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// ifNotEnded refuses an owner whose mark is in the row.
const ifNotEnded = " AND #released <> :me AND #abandoned <> :me"

// grantWrites is how many writes one grant may take: the first write, the write that
// follows its refusal, and two more if other owners change the row meanwhile.
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
	var held *lockstore.HeldError // then the next write takes a place in the queue
	ambiguous := false
	at := s.sightOf(req.Owner)
	for range grantWrites {
		w, g := s.granting(req, at)
		if held != nil {
			w = s.joining(req)
		}
		r, err := s.update(ctx, w)
		switch {
		case err != nil && held != nil:
			// The refusal is certain. The next request shows whether there is a place.
			return grant{}, errors.Join(held, ctx.Err())
		case err != nil:
			return grant{}, outcome(err, ambiguous)
		}
		ambiguous = ambiguous || r.ambiguous && held == nil
		seen, err := s.names.decode(req.Key, r.item)
		switch {
		case r.applied && held != nil:
			if err == nil {
				held.QueuePosition = len(seen.queue) + 1
			}
			return grant{}, held
		case r.applied:
			g.before, g.since, g.restores = seen.fence, seen.since(), err == nil && r.sentOnce
			return s.trusted(g, r, req.TTL)
		case err != nil:
			return grant{}, err
		case held == nil && seen.owner == req.Owner && seen.fence == g.lease.Fence && seen.expires.Equal(g.expires):
			// The SDK sent this write twice, and the first one was applied.
			return s.trusted(g, r, req.TTL)
		case seen.owner == req.Owner:
			return s.answerRepeat(ctx, req, seen, r)
		case seen.ended(req.Owner):
			return grant{}, lost(req.Key, "this acquisition has ended")
		case seen.owner == closedOwner && !takeable(seen, r.date):
			return grant{}, s.keptError(req.Key, seen, r)
		case inDoubt(seen, r.date):
			return grant{}, &lockstore.DoubtError{HeldError: lockstore.HeldError{Key: req.Key, Holder: seen.holder}}
		}
		held = s.refusal(req, seen, r)
		if held != nil && (!req.JoinQueue || !seen.joins(req.Owner)) {
			return grant{}, held
		}
		if at = nil; len(r.item) > 0 {
			at = &sight{seen, r.date}
		}
	}
	// Each time the row had changed before the next write.
	return grant{}, &lockstore.HeldError{Key: req.Key}
}

// granting is the write that grants the key, and its grant. A key that was not seen must be
// free, nobody may wait for it, and the fence in its row must be smaller than the local time:
// it may be a new key. A row of another program has no number as its fence, and is refused.
// A row that was seen must be free, or under the lease or the result that is over. It is the
// same if its fence is; only a renewal changes just the end.
func (s *Store) granting(req lockstore.Request, at *sight) (write, grant) {
	now := s.clock.read()
	g := grant{
		lease:   lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: lockstore.Fence(now.UnixMicro())},
		expires: s.expiresAt(now, req.TTL),
	}
	w := write{
		key:    req.Key,
		update: "SET #owner = :me, #fence = :fence, #expires = :expires, #holder = :holder, #ttl = :ttl REMOVE #freed",
		values: map[string]types.AttributeValue{
			":me":      ownerText(req.Owner),
			":expires": millis(g.expires),
			":holder":  text(req.HolderInfo.Encode()),
			":ttl":     sweepTime(g.expires),
		},
		oldRow: true,
	}
	if at == nil {
		at, w.makesRow = &sight{}, true
		w.condition = "#fence < :fence AND attribute_not_exists(#owner)"
		s.clock.noteFence(g.lease.Fence)
	} else {
		g.lease.Fence = lockstore.NextFence(at.fence, now)
		w.condition = "#fence = :seen AND attribute_not_exists(#owner)"
		w.values[":seen"] = fenceNumber(at.fence)
	}
	if at.owner != "" {
		w.condition = "#fence = :seen AND #owner = :theirs AND #expires = :ended AND attribute_not_exists(#begun)"
		w.values[":theirs"], w.values[":ended"] = ownerText(at.owner), millis(at.expires)
	}
	if at.owner == closedOwner {
		w.update += ", #kept"
	}
	w.values[":fence"] = fenceNumber(g.lease.Fence)
	g.byPlace = at.place(req.Owner) >= 0
	at.passing(&w, req.Owner)
	w.condition += ifNotEnded
	return w, g
}

// refusal says why the owner has to wait. It is nil if the key may be granted to the owner as
// the row was seen.
func (s *Store) refusal(req lockstore.Request, seen row, r reply) *lockstore.HeldError {
	held := &lockstore.HeldError{Key: req.Key, QueuePosition: seen.place(req.Owner) + 1}
	left := seen.untilTurn(req.Owner, r.date)
	switch {
	case seen.owner != "" && !takeable(seen, r.date):
		held.Holder, held.Remaining = seen.holder, s.remaining(seen, r)
	case left > 0:
		held.Remaining, held.Reserved = left, true
	default:
		return nil
	}
	return held
}

// trusted sets for how long the lease may be trusted.
func (s *Store) trusted(g grant, r reply, ttl time.Duration) (grant, error) {
	if r.date.IsZero() {
		return grant{}, noDate(g.lease.Key)
	}
	g.date = r.date
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

func lost(key, why string) error {
	return fmt.Errorf("dynamostore: key %q: %s: %w", key, why, lockstore.ErrLost)
}

// noDate is an unknown outcome: the row is written, but without a Date header the time
// of trust is not known.
func noDate(key string) error {
	return fmt.Errorf("dynamostore: key %q: %w", key,
		errors.New("the reply has no Date header, so the lease cannot be trusted; something between here and DynamoDB removes it"))
}
