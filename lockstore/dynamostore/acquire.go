package dynamostore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// ifNotEnded refuses an owner whose mark is in the row.
const ifNotEnded = " AND #released <> :me AND #abandoned <> :me"

// grantWrites is how many writes one grant may take: the first write, the write that
// follows its refusal, and two more if other owners change the row meanwhile.
const grantWrites = 4

// grant is an applied acquire that the caller does not know yet.
type grant struct {
	fence    driver.Fence
	expires  time.Time
	date     time.Time
	before   driver.Fence // the fence in the old row, 0 without one
	since    time.Time    // since when the key was free in the old row; zero when that is not known
	restores bool         // before is known, and the client has sent one attempt
	byPlace  bool         // the owner had a place, which the grant ended
}

// acquire sends one request if the key is free. It sends a second one for a takeover, for
// the same acquire again, for a fence ahead of the clock, and if another owner took and
// released the key meanwhile. Once per call, a grant with a wrong end is released and
// acquired again with the corrected time: two requests more.
func (t *table) acquire(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	answer, made, err := t.grant(ctx, key, q)
	if made == nil || !t.mustCorrect(made, q.TTL) {
		return answer, err
	}
	cmp.Or(t.log, slog.Default()).LogAttrs(ctx, slog.LevelWarn, "dynamostore: the lease is acquired a second time: its end was too far from DynamoDB's time, because the local clock is wrong or the request was slow",
		slog.String("key", key), slog.Duration("correction", time.Duration(t.clock.offset.Load())))
	if err := t.undo(ctx, key, q.Owner, made); err != nil {
		return driver.Answer{}, outcome(err, true)
	}
	answer, _, err = t.grant(ctx, key, q)
	return answer, err
}

// grant writes until the key is granted or the answer is certain. The grant that it returns
// is nil unless this call has made it.
func (t *table) grant(ctx context.Context, key string, q driver.Request) (driver.Answer, *grant, error) {
	var refused *driver.Answer // then the next write takes a place in the queue
	ambiguous := false
	at := t.sightOf(q.Owner)
	for range grantWrites {
		w, g := t.granting(q, at)
		if refused != nil {
			w = joining(q.Owner)
		}
		r, err := t.update(ctx, key, w)
		switch {
		case err != nil && refused != nil && errors.Is(err, lockstore.ErrUnavailable):
			return *refused, nil, nil // without a place
		case err != nil: // it may have a place
			return driver.Answer{}, nil, outcome(err, ambiguous)
		}
		ambiguous = ambiguous || r.ambiguous && refused == nil
		seen, err := t.names.decode(key, r.item)
		switch {
		case r.applied && refused != nil:
			if err == nil {
				refused.Position = len(seen.queue) + 1
				refused.Status.Waiting = refused.Position
			}
			return *refused, nil, nil
		case r.applied:
			g.before, g.since, g.restores = seen.fence, seen.since(), err == nil && r.sentOnce
			return granted(key, q, g, r)
		case err != nil:
			return driver.Answer{}, nil, err
		case refused == nil && seen.owner == q.Owner && seen.fence == g.fence && seen.expires.Equal(g.expires):
			// The SDK sent this write twice, and the first one was applied.
			return granted(key, q, g, r)
		case seen.owner == q.Owner:
			answer, err := t.answerRepeat(ctx, key, q, seen, r)
			return answer, nil, err
		case seen.ended(q.Owner):
			return lost("this acquisition has ended"), nil, nil
		}
		status := t.status(seen, r)
		if status.State.Done() || status.State == driver.InDoubt {
			return driver.Answer{Outcome: driver.Refused, Status: status}, nil, nil
		}
		refused = refusal(q.Owner, seen, status, r.date)
		if refused != nil && (!q.Join || !seen.joins(q.Owner)) {
			return *refused, nil, nil
		}
		if at = nil; len(r.item) > 0 {
			at = &sight{seen, r.date}
		}
	}
	// Each time the row had changed before the next write.
	return driver.Answer{Outcome: driver.Refused, Status: driver.Status{State: driver.Reserved}}, nil, nil
}

// granting is the write that grants the key, and its grant. A key that was not seen must be
// free, nobody may wait for it, and the fence in its row must be smaller than the local time:
// it may be a new key. A row of another program has no number as its fence, and is refused.
// A row that was seen must be free, or under the lease or the result that is over. It is the
// same if its fence is; only a renewal changes just the end.
func (t *table) granting(q driver.Request, at *sight) (write, *grant) {
	now := t.clock.read()
	g := &grant{fence: driver.Fence(now.UnixMicro()), expires: t.expiresAt(now, q.TTL)}
	w := write{
		update: "SET #owner = :me, #fence = :fence, #expires = :expires, #holder = :holder, #ttl = :ttl REMOVE #freed",
		values: values{
			":me":      ownerText(q.Owner),
			":expires": millis(g.expires),
			":holder":  text(q.Holder),
			":ttl":     sweepTime(g.expires),
		},
		oldRow: true,
	}
	if at == nil {
		at, w.makesRow = &sight{}, true
		w.condition = "#fence < :fence AND attribute_not_exists(#owner)"
		t.clock.noteFence(g.fence)
	} else {
		g.fence = lockstore.NextFence(at.fence, now)
		w.condition = "#fence = :seen AND attribute_not_exists(#owner)"
		w.values[":seen"] = fenceNumber(at.fence)
	}
	if at.owner != "" {
		w.condition = "#fence = :seen AND #owner = :theirs AND #expires = :ended AND attribute_not_exists(#begun)"
		w.values[":theirs"], w.values[":ended"] = ownerText(at.owner), millis(at.expires)
	}
	if at.owner == closedOwner {
		w.update += ", #kept, #stored"
	}
	w.values[":fence"] = fenceNumber(g.fence)
	g.byPlace = at.place(q.Owner) >= 0
	at.passing(&w, q.Owner)
	w.condition += ifNotEnded
	return w, g
}

// refusal says why the owner has to wait. It is nil if the key may be granted to the owner as
// the row was seen.
func refusal(owner driver.Owner, seen row, status driver.Status, date time.Time) *driver.Answer {
	if !status.State.Taken() {
		status.State, status.Remaining = driver.Reserved, seen.untilTurn(owner, date)
		if status.Remaining <= 0 {
			return nil
		}
	}
	return &driver.Answer{Outcome: driver.Refused, Status: status, Position: seen.place(owner) + 1}
}

// granted is the answer to an applied acquire.
func granted(key string, q driver.Request, g *grant, r reply) (driver.Answer, *grant, error) {
	if r.date.IsZero() {
		return driver.Answer{}, nil, noDate(key)
	}
	g.date = r.date
	return driver.Answer{Outcome: driver.Granted, Fence: g.fence, TTL: trustedFor(q.TTL, g.expires, g.date) - margin}, g, nil
}

// answerRepeat answers an owner that holds the lease already: the reply to an earlier
// call was lost. The TTL is what is left, counted from before this request.
func (t *table) answerRepeat(ctx context.Context, key string, q driver.Request, seen row, r reply) (driver.Answer, error) {
	if r.date.IsZero() {
		return driver.Answer{}, noDate(key)
	}
	if takeable(seen, r.date) {
		return lost("the lease has expired"), nil
	}
	left := min(q.TTL, t.left(seen.expires, r))
	if err := t.confirm(ctx, key, seen); err != nil {
		return driver.Answer{}, outcome(err, true)
	}
	return driver.Answer{Outcome: driver.Granted, Fence: seen.fence, TTL: left - margin}, nil
}

// confirm moves the end of a lease from an earlier call by 1 ms. That call may have
// begun to undo its grant, because of a wrong clock, by a request that is still on its
// way. That request is refused when it finds another end.
func (t *table) confirm(ctx context.Context, key string, seen row) error {
	r, err := t.update(ctx, key, write{
		update:    "SET #expires = :expires",
		condition: "#owner = :me AND #fence = :fence AND #expires = :ended",
		values: values{
			":me":      ownerText(seen.owner),
			":fence":   fenceNumber(seen.fence),
			":ended":   millis(seen.expires),
			":expires": millis(seen.expires.Add(time.Millisecond)),
		},
	})
	if err != nil || r.applied {
		return err
	}
	now, err := t.names.decode(key, r.item)
	if err != nil {
		return err
	}
	// A later end of the same grant is good too: the SDK sent this write twice, or
	// another repeat or a renewal moved the end.
	if now.owner != seen.owner || now.fence != seen.fence || !now.expires.After(seen.expires) {
		return fmt.Errorf("dynamostore: key %q: the lease changed during the repeat, outcome unknown", key)
	}
	return nil
}

// mustCorrect reports whether the end of a grant is so wrong that others would wait too
// long, or that the lease could be trusted for too short a time. Only the Date of the
// grant's own reply is used: with a later reading of the clock, a slow reply and a slow
// clock would look the same.
func (t *table) mustCorrect(g *grant, ttl time.Duration) bool {
	ahead := g.expires.Sub(g.date) > ttl+2*t.skew+dateStep
	behind := trustedFor(ttl, g.expires, g.date) < ttl/2
	return ahead || behind
}

// undo releases a grant that the caller does not know, and puts the old fence back. A
// fence from a clock far ahead would cost every acquire until that time a second
// request.
func (t *table) undo(ctx context.Context, key string, owner driver.Owner, g *grant) error {
	now := t.clock.read()
	since := g.since // nobody's turn moves
	if since.IsZero() {
		since = now
	}
	before := g.before
	if !g.restores {
		before = g.fence // the reply with the old fence was lost, and no smaller fence is safe
	}
	w := write{
		update:    "SET #fence = :before",
		condition: "#owner = :me AND #fence = :fence AND #expires = :expires",
		values: values{
			":me":      ownerText(owner),
			":fence":   fenceNumber(g.fence),
			":expires": millis(g.expires),
			":before":  fenceNumber(before),
			":now":     millis(since),
			":ttl":     sweepTime(now),
		},
	}
	if g.byPlace {
		// The owner is the first in line again, for its next request.
		w.update += ", #queue = list_append(:mine, if_not_exists(#queue, :empty))"
		w.values[":mine"], w.values[":empty"] = list(owner), list()
	}
	w.update += freed
	// If refused, the lease was so short that another owner has taken the key over.
	_, err := t.update(ctx, key, w)
	return err
}

// noDate is an unknown outcome: the row is written, but without a Date header the time
// of trust is not known.
func noDate(key string) error {
	return fmt.Errorf("dynamostore: key %q: the reply has no Date header, so the lease cannot be trusted; something between here and DynamoDB removes it", key)
}
