package dynamostore

import (
	"context"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// release answers a Release; only Do calls it. It sends one write that frees a key for which nobody waits. If that is refused, change answers for the row that
// the refusal has brought: somebody waits, several share the key, or the lease is over. If somebody is known to wait, or the key is shared, it goes on with
// readAndChange.
func (t *table) release(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	seen, ok := t.memory.of(key)
	if h := seen.alone(); ok && (h == nil || h.Owner == q.Owner && len(seen.Queue) > 0) {
		return t.readAndChange(ctx, key, q)
	}
	r, err := t.update(ctx, key, t.releaseWrite(q))
	if err != nil {
		return driver.Answer{}, err
	}
	if r.applied {
		t.memory.forget(key, q.Owner)
		return done, nil
	}
	if seen, err = t.names.decode(key, r.item); err != nil {
		return driver.Answer{}, outcome(err, r.ambiguous)
	}
	return t.change(ctx, key, q, seen, r, r.ambiguous)
}

// releaseWrite is the write that frees a key for which nobody waits. The row and its fence stay. It sends nothing; release calls it.
func (t *table) releaseWrite(q driver.Request) write {
	owner, fence := text(q.Owner), integer(q.Fence) // never sharedOwner
	return write{
		becomes: values{
			attrEnded: owner, attrEndedFence: fence, attrHow: nil, attrLastFence: fence, attrQueue: list(), attrTTL: sweepTime(t.clock.read(), q.Fence),
			attrOwner: nil, attrFence: nil, attrExpires: nil, attrHandedOver: nil, attrStarted: nil, attrText: nil,
		},
		expects:    values{attrOwner: owner, attrFence: fence, attrRevoked: nil},
		conditions: []string{sound, "#queue[0] = :me", "attribute_not_exists(#queue[2])"},
		values:     values{":me": owner, ":last": integer(maxMilli)},
	}
}
