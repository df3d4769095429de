package run

import (
	"context"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// send sends one request to a driver.
type send func(ctx context.Context, key string, r driver.Request) (driver.Answer, error)

// wrap returns the store with around for its requests: it calls do, and sees the whole answer.
func wrap(store *lockstore.Store, around func(do send) send) *lockstore.Store {
	return store.WrapDriver(func(d driver.Driver) driver.Driver { return surrounded{d, around(d.Do)} })
}

type surrounded struct {
	driver.Driver
	do send
}

// Unwrap is for driver.As.
func (s surrounded) Unwrap() driver.Driver { return s.Driver }

// Do implements driver.Driver.
func (s surrounded) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return s.do(ctx, key, r)
}
