package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/internal/lanes"
)

// addressEnd is how the name of an address ends. The rest of it is the name of the owner's list.
const addressEnd = "\naddress"

// PutAddress implements driver.Parker, by one request, and by a second one if it replaces an address. A server that is out of
// memory refuses it, as it refuses a grant.
func (s *server) PutAddress(ctx context.Context, key string, owner driver.Owner, text driver.HiddenBytes, d time.Duration) error {
	var was driver.HiddenBytes
	for range 4 {
		c, err := s.sendAddress(ctx, key, driver.Request{Kind: driver.Acquire, Owner: owner, Result: text, TTL: d}, was)
		if err != nil || c.text[0] == done {
			return err
		}
		was = driver.HiddenBytes(c.text[1:])
	}
	return fmt.Errorf("redisstore: key %q: not applied: others have replaced the address of the parked owner meanwhile: %w", key, lockstore.ErrUnavailable)
}

// TakeAddress implements driver.Parker. If its reply is lost, so is the address.
func (s *server) TakeAddress(ctx context.Context, key string, owner driver.Owner) (driver.HiddenBytes, error) {
	c, err := s.sendAddress(ctx, key, driver.Request{Kind: driver.Leave, Owner: owner}, nil)
	switch {
	case err != nil:
		return nil, err
	case len(c.text) > 1:
		return driver.HiddenBytes(c.text[1:]), nil
	case c.state.Load()&ambiguous != 0:
		return nil, fmt.Errorf("redisstore: key %q: outcome unknown: a reply was lost, and the address of the parked owner is gone", key)
	}
	return nil, nil
}

// sendAddress stores the Result of r for its TTL, or takes what is there. It has the priority of the kind of r, see package lanes. The address is beside the
// list of its owner, on the same node of a cluster.
func (s *server) sendAddress(ctx context.Context, key string, r driver.Request, was driver.HiddenBytes) (*call, error) {
	if err := s.lanes.Enter(ctx, lanes.Of(r)); err != nil {
		return nil, fmt.Errorf("redisstore: key %q: %w", key, err)
	}
	defer s.lanes.Leave()
	c := &call{Owner: r.Owner, key: key}
	if err := s.send(ctx, c, s.list(key, r.Owner)+addressEnd, "", "address", secret{r.Result}, millis(r.TTL), secret{was}); err != nil {
		return nil, err
	}
	switch {
	case c.text == string(foreign):
		return nil, errForeign(key, "")
	case c.text != string(done) && !strings.HasPrefix(c.text, string(address)):
		return nil, c.unreadable(fmt.Errorf("an answer of the unknown kind %.1q", c.text))
	}
	return c, nil
}
