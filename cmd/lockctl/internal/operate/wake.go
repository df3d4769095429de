package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// wakeTime is for all parked owners that one request has to wake.
const wakeTime = 3 * time.Second

// waking is the driver of a store that wakes the parked owners to whom a request hands the key over, as the
// guard does for runs.
type waking struct {
	driver.Driver
	store *lockstore.Store
	wake  func(context.Context, lockstore.Address) error
	err   io.Writer
}

func wakes(s *stores.Settings, store *lockstore.Store, err io.Writer) *lockstore.Store {
	return store.WrapDriver(func(d driver.Driver) driver.Driver { return &waking{d, store, s.Waker(), err} })
}

// Unwrap returns the driver that is wrapped.
func (w *waking) Unwrap() driver.Driver { return w.Driver }

// Do is Do of the driver that is wrapped. A wake-up that fails is a warning: what was asked for is done.
func (w *waking) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	a, err := w.Driver.Do(ctx, key, r)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTime)
	defer cancel()
	var all sync.WaitGroup
	failed := make([]error, len(a.Wake))
	for i, owner := range a.Wake {
		all.Go(func() { failed[i] = w.one(ctx, key, owner) })
	}
	all.Wait()
	for _, err := range failed {
		if err != nil {
			fmt.Fprintln(w.err, "lockctl: warning: a parked run has to ask for the key again, and was not woken:", err)
		}
	}
	return a, err
}

func (w *waking) one(ctx context.Context, key string, owner lockstore.Owner) error {
	address, err := w.store.TakeAddress(ctx, key, owner)
	if err == nil && address == "" {
		err = errors.New("the store has no address")
	}
	if err != nil {
		return err
	}
	return w.wake(ctx, address)
}
