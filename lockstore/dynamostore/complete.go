package dynamostore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/internal/rules"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// completing is a write that closes the key until opens, and stores a result. condition names the
// lease.
//
// The row of a completed key has an owner that nobody is. So everything that holds for a row
// with an owner holds for it, and the next acquire after its end is a takeover.
func completing(condition string, given values, fence driver.Fence, result []byte, opens time.Time) write {
	w := write{
		set:       []string{"#released = #owner", "#ended = :fence", "#how = :completed", "#owner = :closed", "#expires = :opens"},
		remove:    []string{"#queue", "#begun", "#handed"},
		ttl:       ":ttl",
		condition: condition,
		values:    given,
	}
	w.values[":completed"] = integer(int64(rules.Completed))
	w.values[":closed"] = text(closedOwner)
	w.values[":opens"] = millis(opens)
	w.values[":ttl"] = sweepTime(opens.Add(idleRow), fence) // a day more: the clock of the writer may be off
	if len(result) > 0 {
		w.set = append(w.set, "#kept = :kept", "#stored = :stored")
		w.values[":kept"] = &types.AttributeValueMemberB{Value: result}
		w.values[":stored"] = integer(int64(len(result)))
	}
	return w
}

// complete sends one request, and a second one if the local clock is wrong. So the key is
// closed for at least q.TTL, and for at most q.TTL + 2 skew + 2 s. After an unknown outcome, the
// same request again is done if the first one was applied: then the end is by the local clock
// of the first one, whose error nothing corrects.
func (t *table) complete(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	opens := t.expiresAt(t.clock.read(), q.TTL)
	w := completing(ifMine, mine(q), q.Fence, q.Result, opens)
	w.oldRow = true // it says who is parked
	r, err := t.update(ctx, key, w)
	if err != nil {
		return driver.Answer{}, err
	}
	if r.applied {
		a, err := t.correctEnd(ctx, key, q, opens, r)
		a.Wake = t.parkedIn(key, r.item)
		return a, err
	}
	seen, err := t.names.decode(key, r.item)
	if err != nil {
		return driver.Answer{}, err
	}
	_, changed, a := t.decide(seen, r, q)
	if !changed && a.Outcome == driver.Done && seen.Closed.End().Equal(opens) {
		// The SDK sent this write twice, and the first one was applied. Nobody knows any more who was parked.
		return t.correctEnd(ctx, key, q, opens, r)
	}
	return t.change(ctx, key, q, seen, r, r.ambiguous)
}

// correctEnd writes the end of a complete again if the clock that wrote it was wrong, as the
// reply r shows.
func (t *table) correctEnd(ctx context.Context, key string, q driver.Request, opens time.Time, r reply) (driver.Answer, error) {
	wanted := t.expiresAt(t.clock.correct(r.sent), q.TTL)
	if wanted.Sub(opens).Abs() <= min(max(t.skew, margin), q.TTL/4) {
		return done, nil
	}
	r, err := t.moveEnd(ctx, key, q.Fence, q.Fence, opens, wanted, wanted.Add(idleRow))
	if err != nil || r.applied {
		return done, outcome(err, true)
	}
	seen, err := t.names.decode(key, r.item)
	if err == nil && seen.LastFence == q.Fence && seen.Closed.End().Equal(wanted) {
		return done, nil // the SDK sent this write twice
	}
	return driver.Answer{}, fmt.Errorf("dynamostore: key %q: completed, but not for its time: the local clock is wrong, and the row has changed since", key)
}

// parkedIn are the parked owners of the row before a write that has closed the key. Some may have joined after the
// row was read.
func (t *table) parkedIn(key string, item values) []driver.Owner {
	before, _ := t.names.decode(key, item) // the write's condition says that it is sound
	return slices.DeleteFunc(rules.Parked(before.Queue), func(o driver.Owner) bool { return before.holder(o) >= 0 })
}
