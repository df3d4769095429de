package operate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// wakeTime is for all parked owners that one request has to wake.
const wakeTime = 3 * time.Second

// wakes gives the store wake-ups of the parked owners to whom a request hands the key over, as the guard has
// them. One that fails is a warning: what was asked for is done.
func (o *operator) wakes() {
	wake, store := o.Waker(), o.store
	one := func(ctx context.Context, key string, owner lockstore.Owner) error {
		address, err := store.TakeAddress(ctx, key, owner)
		if err == nil && address == "" {
			err = errors.New("the store has no address")
		}
		if err != nil {
			return err
		}
		return wake(ctx, address)
	}
	o.store = store.OnWake(func(ctx context.Context, key string, owners []lockstore.Owner) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTime)
		defer cancel()
		failed := make([]error, len(owners))
		var all sync.WaitGroup
		for i, owner := range owners {
			all.Go(func() { failed[i] = one(ctx, key, owner) })
		}
		all.Wait()
		for _, err := range failed {
			if err != nil {
				fmt.Fprintln(o.err, "lockctl: warning: a parked run has to ask for the key again, and was not woken:", err)
			}
		}
	})
}
