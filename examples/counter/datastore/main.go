// Command datastore is the smallest function with locks in Google Cloud Datastore. Its test runs it in
// several environments. The resource that it guards stands behind COUNTER_URL: a number that
// each task makes one larger.
package main

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/fencednumber"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/datastore"
)

func main() {
	g := boot.MustGuardFromEnv(datastore.Opener)
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
