package dynamostore

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/lib/tell"
)

// grant is an applied acquire that the caller does not know yet.
type grant struct {
	fence   driver.Fence
	expires time.Time
	before  driver.Fence // the fence in the old row, 0 without one; -1 when it is not known
	place   place        // in the queue
	lease   values       // the attributes of an arrival
}

// made says that the only lease of a row is this grant: the SDK may send a write twice.
func (g *grant) made(h *rules.Holder, o driver.Owner) bool {
	return h != nil && h.Owner == o && h.Fence == g.fence && h.End().Equal(g.expires) && !h.Revoked
}

// answerGrant answers an applied grant or renewal of a row as it was seen. A refusal is that of a correction, see correct.
func (t *table) answerGrant(ctx context.Context, key string, q driver.Request, seen row, next rules.State, r reply) (a driver.Answer, refusal *reply, err error) {
	i := (row{State: next}).holder(q.Owner)
	if i < 0 {
		return driver.Answer{}, nil, fmt.Errorf("dynamostore: key %q: a mistake in the store: a grant without a holder", key)
	}
	h := next.Holders[i]
	end := h.End().Truncate(time.Millisecond)
	if h.MaxHolders == 1 && q.Kind == driver.Acquire {
		q.TTL = max(q.TTL, h.TTL) // the rules give more to who extends a hand-over
		return t.correct(ctx, key, q, &grant{fence: h.Fence, expires: end, before: -1}, r)
	}
	if r.date.IsZero() {
		return driver.Answer{}, nil, noDate(key)
	}
	trust := q.TTL
	if i := seen.holder(q.Owner); i >= 0 && q.Kind == driver.Renew {
		old := seen.Holders[i]
		trust = max(trust, old.TTL, t.left(old.End(), r)) // of what was handed over the row has the TTL
	}
	return driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: trustedFor(trust, end, r.date) - margin}, nil, nil
}

// correct answers an applied grant of a key that nobody shares. If its end is wrong, because the local clock is or the
// request was slow, it is written again. If the row has changed meanwhile, that write is refused, and the refusal has the row.
func (t *table) correct(ctx context.Context, key string, q driver.Request, g *grant, r reply) (a driver.Answer, refusal *reply, err error) {
	if r.date.IsZero() {
		return driver.Answer{}, nil, noDate(key)
	}
	a = driver.Answer{Outcome: driver.Granted, Fence: g.fence, TTL: trustedFor(q.TTL, g.expires, r.date) - margin}
	if !t.mustCorrect(g, q.TTL, r.date) {
		return a, nil, nil
	}
	defer tell.Log(ctx, t.log, slog.LevelWarn, "dynamostore: the end of a lease is written a second time: it was too far from DynamoDB's time, because the local clock is wrong or the request was slow",
		slog.String("key", key), slog.Duration("correction", time.Duration(t.clock.offset.Load())))
	now, right := t.clock.read(), g.fence
	if g.before >= 0 {
		right = driver.NextFence(g.before, now) // one from a clock far ahead would cost every acquire until that time a second request
	}
	expires := t.expiresAt(now, q.TTL)
	r, err = t.moveEnd(ctx, key, g.fence, right, g.expires, expires)
	switch {
	case err != nil:
		return driver.Answer{}, nil, outcome(err, true)
	case !r.applied:
		return driver.Answer{}, &r, nil
	}
	after, _ := t.names.decode(key, r.item) // one that cannot be decoded is not remembered
	t.memory.remember(key, after, q.Owner)
	a.Fence, a.TTL = right, trustedFor(q.TTL, expires, r.date)-margin
	return a, nil, nil
}

// mustCorrect reports whether the end of a grant is so wrong that others would wait too
// long, or that the lease could be trusted for too short a time. Only the Date of the
// grant's own reply is used: with a later reading of the clock, a slow reply and a slow
// clock would look the same.
func (t *table) mustCorrect(g *grant, ttl time.Duration, date time.Time) bool {
	ahead := g.expires.Sub(date) > ttl+2*t.skew+dateStep
	behind := trustedFor(ttl, g.expires, date) < ttl/2
	return ahead || behind
}

// moveEnd writes another end, and another fence, of a lease that has not changed since.
func (t *table) moveEnd(ctx context.Context, key string, fence, right driver.Fence, ended, expires time.Time) (reply, error) {
	return t.update(ctx, key, write{
		becomes:    values{attrFence: fenceNumber(right), attrExpires: millis(expires), attrTTL: sweepTime(expires, right)},
		expects:    values{attrFence: fenceNumber(fence), attrExpires: millis(ended), attrStarted: nil},
		conditions: []string{"#owner <> :shared"},
		names:      []string{attrOwner},
		values:     values{":shared": text(sharedOwner)},
		returns:    types.ReturnValueAllNew,
	})
}

// correctTurn writes the end of a hand-over again if it is too early, because the request was slow. The
// request is done, whatever becomes of this. It makes no end earlier: whoever was handed the key may
// have seen the first end, trusts the lease, and is not told of another one.
func (t *table) correctTurn(ctx context.Context, key string, seen row, next rules.State, r reply) {
	h := (row{State: next}).alone()
	if h == nil || !h.HandedOver || h.Fence == seen.LastFence || r.date.IsZero() {
		return
	}
	end, right := t.end(seen, *h).Truncate(time.Millisecond), t.clock.read().Add(h.TTL).Truncate(time.Millisecond)
	if right.Sub(end) > dateStep+margin {
		_, _ = t.moveEnd(ctx, key, h.Fence, h.Fence, end, right)
	}
}

// confirmRepeat answers an owner that holds the lease already: the reply to an earlier
// call was lost. If nobody shares the key, it writes first (confirm). The TTL is what is left, counted from before this request.
func (t *table) confirmRepeat(ctx context.Context, key string, q driver.Request, h rules.Holder, r reply) (driver.Answer, error) {
	if r.date.IsZero() {
		return driver.Answer{}, noDate(key)
	}
	left := min(q.TTL, t.left(h.End(), r))
	if h.MaxHolders == 1 {
		if err := t.confirm(ctx, key, h); err != nil {
			return driver.Answer{}, outcome(err, true)
		}
	}
	return driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: left - margin}, nil
}

// confirm moves the end of a lease from an earlier call by 1 ms. That call may have
// begun to correct its fence, because of a wrong clock, by a request that is still on its
// way. That request is refused when it finds another end.
func (t *table) confirm(ctx context.Context, key string, h rules.Holder) error {
	r, err := t.update(ctx, key, write{
		becomes: values{attrExpires: millis(h.End().Add(time.Millisecond))},
		expects: values{attrOwner: ownerText(h.Owner), attrFence: fenceNumber(h.Fence), attrExpires: millis(h.End())},
		returns: types.ReturnValueAllNew,
	})
	if err != nil {
		return err
	}
	seen, err := t.names.decode(key, r.item)
	if err != nil {
		return err
	}
	t.memory.remember(key, seen, h.Owner)
	// A later end of the same grant is good too: the SDK sent this write twice, or
	// another repeat or a renewal moved the end.
	if now := seen.alone(); now == nil || now.Owner != h.Owner || now.Fence != h.Fence || !now.End().After(h.End()) {
		return fmt.Errorf("dynamostore: key %q: the lease changed during the repeat, outcome unknown", key)
	}
	return nil
}

// noDate is an unknown outcome: the row is written, but without a Date header the time
// of trust is not known.
func noDate(key string) error {
	return fmt.Errorf("dynamostore: key %q: the reply has no Date header, so the lease cannot be trusted; something between here and DynamoDB removes it", key)
}
