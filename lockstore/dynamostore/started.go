package dynamostore

import (
	"context"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// markStarted sends one request, and a second one if the local clock is ahead.
func (t *table) markStarted(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	now := t.clock.read()
	w := write{set: []string{"#begun = :sweep"}, ttl: ":sweep", condition: ifMine + ifNotOver + ifNotStarted, values: mine(q)}
	w.values[":now"], w.values[":sweep"] = millis(now), sweepTime(now.Add(lockstore.StartedFor))
	r, err := t.update(ctx, key, w)
	if err != nil || r.applied {
		return done, err
	}
	seen, err := t.names.decode(key, r.item)
	switch h := seen.alone(); {
	case err != nil:
		return driver.Answer{}, err
	case h != nil && h.Owner == q.Owner && h.Fence == q.Fence && h.Started && !h.Revoked && !takeable(h.End(), r.date):
		return done, nil
	}
	return t.change(ctx, key, q, seen, r, r.ambiguous)
}
