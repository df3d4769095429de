package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// addressEnd is how the name of an address ends. The rest of it is the name of the owner's list.
const addressEnd = "\naddress"

// PutAddress implements driver.Parker, by one request, and by a second one if it replaces an address. A server that is out of
// memory refuses it, as it refuses a grant.
func (s *server) PutAddress(ctx context.Context, key string, owner driver.Owner, text driver.HiddenBytes, d time.Duration) error {
	var was driver.HiddenBytes
	for range 4 {
		r, err := s.sendAddress(ctx, driver.Request{Kind: driver.Acquire}, key, owner, text, d, was)
		switch {
		case err != nil || r.code == done:
			return err
		case r.code != address:
			return unexpected(key, r.code)
		}
		was = r.result
	}
	return fmt.Errorf("redisstore: key %q: not applied: others have replaced the address of the parked owner meanwhile: %w", key, lockstore.ErrUnavailable)
}

// TakeAddress implements driver.Parker. If its reply is lost, so is the address.
func (s *server) TakeAddress(ctx context.Context, key string, owner driver.Owner) (driver.HiddenBytes, error) {
	r, err := s.sendAddress(ctx, driver.Request{Kind: driver.Leave}, key, owner, nil, 0, nil)
	switch {
	case err != nil:
		return nil, err
	case r.code != address:
		return nil, unexpected(key, r.code)
	case len(r.result) > 0:
		return r.result, nil
	case r.ambiguous:
		return nil, fmt.Errorf("redisstore: key %q: outcome unknown: a reply was lost, and the address of the parked owner is gone", key)
	}
	return nil, nil
}

// sendAddress sends the script of an address. It has the priority of the request like, see lanes. The address is beside the
// list of its owner, on the same node of a cluster.
func (s *server) sendAddress(ctx context.Context, like driver.Request, key string, owner driver.Owner, address driver.HiddenBytes, d time.Duration, was driver.HiddenBytes) (reply, error) {
	if err := s.lanes.enter(ctx, like); err != nil {
		return reply{}, fmt.Errorf("redisstore: key %q: %w", key, err)
	}
	defer s.lanes.leave()
	r, err := s.send(ctx, addressScript, key, s.list(key, owner)+addressEnd, "", owner, secret(address), millis(d), secret(was))
	if err == nil && r.code == foreign {
		err = errForeign(key, nil, r.damage)
	}
	return r, err
}

func unexpected(key string, c code) error {
	return fmt.Errorf("redisstore: key %q: unexpected answer %q, outcome unknown", key, c)
}
