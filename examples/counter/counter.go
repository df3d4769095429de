// Package counter is the smallest function: each task makes a number one larger. Its folders have the
// mains, one for each store that is a module of its own. The number stands behind COUNTER_URL.
package counter

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/examples/counter/internal/fencednumber"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Run is the function with locks in one store.
func Run(opener lockstore.SchemeOpener) {
	g := boot.MustGuardFromEnv(opener)
	boot.Start(g, guard.Wrap(g, key, handle(boot.MustURLFromEnv("COUNTER_URL").String())))
}

type task struct {
	Account string `json:"account"`
}

// key names what is locked.
func key(_ context.Context, in task) (string, error) {
	return lockstore.Key("account", in.Account), nil
}

// handle is where the work stands. Every write takes the fence of the lock, so that a write
// that comes too late is refused.
func handle(resource string) guard.Handler[task, int64] {
	return func(ctx context.Context, lock guard.Lock, _ task) (int64, error) {
		return fencednumber.Add(ctx, resource, lock.Fence)
	}
}
