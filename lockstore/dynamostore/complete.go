package dynamostore

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// completing is the rest of a write that closes the key until opens, and stores a result. set is
// the beginning of its update.
//
// The row of a completed key has an owner that nobody is. So everything that holds for a row
// with an owner holds for it, and the next acquire after its end is a takeover.
func (w *write) completing(set string, result []byte, opens time.Time) {
	w.update = set + ", #owner = :closed, #expires = :opens, #ttl = :ttl"
	w.values[":closed"] = text(closedOwner)
	w.values[":opens"] = millis(opens)
	w.values[":ttl"] = sweepTime(opens.Add(idleRow)) // a day more: the clock of the writer may be off
	if len(result) > 0 {
		w.update += ", #kept = :kept, #stored = :stored"
		w.values[":kept"] = &types.AttributeValueMemberB{Value: result}
		w.values[":stored"] = integer(int64(len(result)))
	}
	w.update += " REMOVE #queue, #begun"
}

// complete sends one request, and a second one if the local clock is wrong. So the key is
// closed for at least q.TTL, and for at most q.TTL + 2 skew + 2 s. After an unknown outcome, the
// same request again is done if the first one was applied: then the end is by the local clock
// of the first one, whose error nothing corrects.
func (t *table) complete(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	opens := t.expiresAt(t.clock.read(), q.TTL)
	w := write{condition: ifMine, values: mine(q)}
	w.completing("SET #released = :me", q.Result, opens)
	r, err := t.update(ctx, key, w)
	if err != nil {
		return driver.Answer{}, err
	}
	if r.applied {
		return t.correctEnd(ctx, key, q, opens, r)
	}
	seen, err := t.names.decode(key, r.item)
	switch {
	case err != nil:
		return driver.Answer{}, err
	case seen.released == q.Owner && seen.owner == closedOwner && !seen.resolved:
		if !seen.expires.Equal(opens) {
			return done, nil // by an earlier call
		}
		// The SDK sent this write twice, and the first one was applied.
		return t.correctEnd(ctx, key, q, opens, r)
	case r.ambiguous:
		return driver.Answer{}, replyLost(key)
	case seen.released == q.Owner:
		return lost("this lease was released"), nil
	default:
		return lost("this lease does not hold it"), nil
	}
}

// correctEnd writes the end of a complete again if the clock that wrote it was wrong, as the
// reply r shows.
func (t *table) correctEnd(ctx context.Context, key string, q driver.Request, opens time.Time, r reply) (driver.Answer, error) {
	wanted := t.expiresAt(t.clock.correct(r.sent), q.TTL)
	if wanted.Sub(opens).Abs() <= min(max(t.skew, margin), q.TTL/4) {
		return done, nil
	}
	r, err := t.update(ctx, key, write{
		update:    "SET #expires = :opens, #ttl = :ttl",
		condition: "#owner = :closed AND #fence = :fence AND #expires = :ended",
		values: values{
			":closed": text(closedOwner),
			":fence":  fenceNumber(q.Fence),
			":ended":  millis(opens),
			":opens":  millis(wanted),
			":ttl":    sweepTime(wanted.Add(idleRow)),
		},
	})
	if err != nil || r.applied {
		return done, outcome(err, true)
	}
	seen, err := t.names.decode(key, r.item)
	if err == nil && seen.owner == closedOwner && seen.fence == q.Fence && seen.expires.Equal(wanted) {
		return done, nil // the SDK sent this write twice
	}
	return driver.Answer{}, fmt.Errorf("dynamostore: key %q: completed, but not for its time: the local clock is wrong, and the row has changed since", key)
}
