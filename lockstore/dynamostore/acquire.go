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

const (
	grantUpdate = "SET #owner = :me, #fence = :fence, #expires = :expires, #holder = :holder, #ttl = :ttl"

	// ifFree takes a key that has no row, or a free one whose fence is below the
	// local time. A row without a number as its fence is not ours, and refused. The
	// mark of an owner's own release refuses its late acquire.
	ifFree = "attribute_not_exists(#key) OR (#fence < :fence AND attribute_not_exists(#owner) AND #released <> :me)"

	// ifFreeAt takes a free key whose fence is at or above the local time, if
	// nothing happened since the refusal.
	ifFreeAt = "attribute_not_exists(#owner) AND #fence = :seen"

	// ifStill takes over an expired lease, if nothing happened since the refusal.
	// It compares the expiry too: a renewal in between changes nothing else.
	ifStill = "#owner = :theirs AND #fence = :seen AND #expires = :ended AND #released <> :me"
)

// grantWrites bounds the writes of one grant: the first one, one that answers
// its refusal, and two for keys that change hands in between.
const grantWrites = 4

// grant is an applied acquire that the caller has not seen yet.
type grant struct {
	lease    lockstore.Lease
	expires  time.Time
	date     time.Time
	before   lockstore.Fence // the fence that it replaced, 0 when there was none
	restores bool            // before is known, and no copy of the request is under way
	repeat   bool            // an earlier call made it
}

// Acquire implements lockstore.Store. It sends one request when the key is
// free and one more for a takeover, a repeat, a fence ahead of the clock, or a
// key that changed hands in between. Once per call, a grant whose stamp turns out to be
// off is released and made again with the corrected time (two requests more).
func (s *Store) Acquire(ctx context.Context, req lockstore.Request) (lockstore.Lease, error) {
	if err := req.Validate(); err != nil {
		return lockstore.Lease{}, err
	}
	g, err := s.grant(ctx, req)
	if err != nil {
		return lockstore.Lease{}, err
	}
	if !g.repeat && s.stampOff(g, req.TTL) {
		s.logger().LogAttrs(ctx, slog.LevelWarn, "dynamostore: the lease was stamped too far from the service's time and is made again; the local clock is off or the request was slow",
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

// grant writes until the key is granted, or refused for good.
func (s *Store) grant(ctx context.Context, req lockstore.Request) (grant, error) {
	var seen row // what the last refusal showed
	unsure := false
	condition := ifFree
	for range grantWrites {
		now := s.clock.read()
		expires := s.stamp(now, req.TTL)
		fence := lockstore.Fence(now.UnixMicro())
		values := map[string]types.AttributeValue{
			":me":      ownerText(req.Owner),
			":expires": millis(expires),
			":holder":  text(req.Holder.Encode()),
			":ttl":     sweepTime(expires),
		}
		switch condition {
		case ifFree:
			s.clock.stamped(fence)
		case ifFreeAt:
			fence = seen.fence + 1
			values[":seen"] = fenceNumber(seen.fence)
		case ifStill:
			fence = lockstore.NextFence(seen.fence, now)
			values[":theirs"] = ownerText(seen.owner)
			values[":seen"] = fenceNumber(seen.fence)
			values[":ended"] = millis(seen.expires)
		}
		values[":fence"] = fenceNumber(fence)

		r, err := s.update(ctx, write{key: req.Key, update: grantUpdate, condition: condition, values: values, before: true})
		if err != nil {
			return grant{}, outcome(err, unsure)
		}
		unsure = unsure || r.doubt
		g := grant{
			lease:   lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: fence},
			expires: expires,
			date:    r.date,
		}
		if r.applied {
			before, err := decode(req.Key, r.item)
			g.before, g.restores = before.fence, err == nil && r.once
			return s.trusted(g, req.TTL)
		}

		if seen, err = decode(req.Key, r.item); err != nil {
			return grant{}, err
		}
		switch {
		case seen.owner == req.Owner && seen.fence == fence && seen.expires.Equal(expires):
			// The SDK sent this write twice, and the first one was applied.
			return s.trusted(g, req.TTL)
		case seen.owner == req.Owner:
			return s.again(ctx, req, seen, r)
		case seen.released == req.Owner:
			return grant{}, lost(req.Key, "this acquisition has ended")
		case seen.owner == "" && int64(seen.fence) >= s.clock.read().UnixMicro():
			condition = ifFreeAt
		case seen.owner == "":
			condition = ifFree
		case condition != ifStill && takeable(seen, r.date):
			condition = ifStill
		default:
			return grant{}, s.held(req.Key, seen, r)
		}
	}
	// Others took and freed it each time in between; it is theirs for now.
	return grant{}, &lockstore.HeldError{Key: req.Key}
}

// trusted fills in for how long a grant of this call may be trusted.
func (s *Store) trusted(g grant, ttl time.Duration) (grant, error) {
	if g.date.IsZero() {
		return grant{}, noDate(g.lease.Key)
	}
	g.lease.TTL = lasts(ttl, g.expires, g.date) - margin
	return g, nil
}

// again answers the repeat of an earlier call, whose reply was lost, with the
// time that is left, counted from before this request.
func (s *Store) again(ctx context.Context, req lockstore.Request, seen row, r reply) (grant, error) {
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

// confirm moves the end of a lease that an earlier call was granted, by as little
// as it can. That call may have found its stamp off and begun to take the grant
// back, by a request that is still under way: it finds another end then, and is
// refused.
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
	now, err := decode(req.Key, r.item)
	if err != nil {
		return err
	}
	// A later end of the same grant is as good: this write sent twice, another repeat or
	// a renewal moved it.
	if now.owner != req.Owner || now.fence != seen.fence || !now.expires.After(seen.expires) {
		return fmt.Errorf("dynamostore: key %q: the lease changed while it was asked about again, outcome unknown", req.Key)
	}
	return nil
}

// stampOff reports whether a grant's stamp is so far off that it would block
// others for too long, or be of too little use. Only the Date of its own reply
// judges: by a later reading of the clock, a slow reply would look the same as
// a slow clock and hide it.
func (s *Store) stampOff(g grant, ttl time.Duration) bool {
	ahead := g.expires.Sub(g.date) > ttl+2*s.skew+dateStep
	behind := lasts(ttl, g.expires, g.date) < ttl/2
	return ahead || behind
}

// undo takes back a grant that nobody has seen, with the fence that it
// replaced: a fence from a clock far ahead would cost every later acquire a
// second request until that time has come.
func (s *Store) undo(ctx context.Context, g grant) error {
	w := write{
		key:       g.lease.Key,
		update:    "SET #fence = :before, #ttl = :ttl REMOVE #owner, #expires, #holder",
		condition: "#owner = :me AND #fence = :fence AND #expires = :expires",
		values: map[string]types.AttributeValue{
			":me":      ownerText(g.lease.Owner),
			":fence":   fenceNumber(g.lease.Fence),
			":expires": millis(g.expires),
			":before":  fenceNumber(g.before),
			":ttl":     sweepTime(s.clock.read()),
		},
	}
	if !g.restores {
		// A lost reply took the old fence with it, and a lower one must not be guessed.
		w.values[":before"] = fenceNumber(g.lease.Fence)
	}
	// Refused: the stamp was so old that another has taken the key over since.
	_, err := s.update(ctx, w)
	return err
}

func (s *Store) logger() *slog.Logger {
	if s.log == nil {
		return slog.Default()
	}
	return s.log
}

func (s *Store) held(key string, seen row, r reply) error {
	return &lockstore.HeldError{Key: key, Holder: seen.holder, Remaining: s.remaining(seen, r)}
}

func lost(key, why string) error {
	return fmt.Errorf("dynamostore: key %q: %s: %w", key, why, lockstore.ErrLost)
}

// noDate is an unknown outcome: the row is written, but nothing says for how
// long it may be trusted.
func noDate(key string) error {
	return fmt.Errorf("dynamostore: key %q: %w", key,
		errors.New("the reply has no Date header, so the lease cannot be trusted; something between here and DynamoDB removes it"))
}
