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

// waking returns the store with wake-ups of the parked owners to whom a request hands the key over, as the guard has
// them. One that fails is a warning: what was asked for is done.
func (o *operator) waking(store *lockstore.Store) *lockstore.Store {
	wake := o.Waker()
	return store.OnWake(func(ctx context.Context, key string, owners []lockstore.Owner) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTime)
		defer cancel()
		errs := make([]error, len(owners))
		var all sync.WaitGroup
		for i, owner := range owners {
			all.Go(func() {
				address, err := store.TakeAddress(ctx, key, owner)
				switch {
				case err != nil:
					errs[i] = err
				case address == "":
					errs[i] = errors.New("the store has no address")
				default:
					errs[i] = wake(ctx, address)
				}
			})
		}
		all.Wait()
		for _, err := range errs {
			if err != nil {
				fmt.Fprintln(o.err, "lockctl: warning: a parked run has to ask for the key again, and was not woken:", err)
			}
		}
	})
}
