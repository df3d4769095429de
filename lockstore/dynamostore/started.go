package dynamostore

import (
	"context"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// markStarted sends one request, and a second one if the local clock is ahead.
func (t *table) markStarted(ctx context.Context, key string, q driver.Request) (driver.Answer, error) {
	for range 2 {
		now := t.clock.read()
		w := write{update: "SET #begun = :sweep, #ttl = :sweep", condition: ifMine + ifNotOver + ifNotStarted, values: mine(q)}
		w.values[":now"], w.values[":sweep"] = millis(now), sweepTime(now.Add(lockstore.StartedFor))
		r, err := t.update(ctx, key, w)
		if err != nil || r.applied {
			return done, err
		}
		seen, err := t.names.decode(key, r.item)
		switch {
		case err != nil:
			return driver.Answer{}, err
		case seen.owner != q.Owner || seen.fence != q.Fence:
			return lost("this lease does not hold it"), nil
		case takeable(seen, r.date):
			return lost("the lease has expired"), nil
		case seen.started:
			return done, nil
		}
		// The local clock was ahead. The refusal has corrected it.
	}
	return lost("the lease has expired"), nil
}
