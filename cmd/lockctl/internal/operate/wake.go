package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// wakeTime is for all parked owners that one request has to wake.
const wakeTime = 3 * time.Second

// waking returns the store with wake-ups of the parked owners to whom a request hands the key over, as the guard has
// them. One that fails is a warning: what was asked for is done.
func (o *operator) waking(store *lockstore.Store) *lockstore.Store {
	wake := o.Waker()
	return store.OnWake(func(ctx context.Context, key string, owners []lockstore.Owner) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTime)
		defer cancel()
		woken := make(chan error)
		for _, owner := range owners {
			go func() {
				address, err := store.TakeAddress(ctx, key, owner)
				if err == nil && address == "" {
					err = errors.New("the store has no address")
				}
				if err == nil {
					err = wake(ctx, address)
				}
				woken <- err
			}()
		}
		for range owners {
			if err := <-woken; err != nil {
				fmt.Fprintln(o.err, "lockctl: warning: a parked run has to ask for the key again, and was not woken:", err)
			}
		}
	})
}
