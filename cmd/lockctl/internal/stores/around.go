package stores

import (
	"context"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Do sends one request to a driver.
type Do func(ctx context.Context, key string, r driver.Request) (driver.Answer, error)

// Around returns the store with around for its requests: it calls do, and sees the whole answer.
func Around(store *lockstore.Store, around func(do Do) Do) *lockstore.Store {
	return store.WrapDriver(func(d driver.Driver) driver.Driver { return surrounded{d, around(d.Do)} })
}

type surrounded struct {
	driver.Driver
	do Do
}

// Unwrap is for driver.As.
func (s surrounded) Unwrap() driver.Driver { return s.Driver }

// Do implements driver.Driver.
func (s surrounded) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return s.do(ctx, key, r)
}
