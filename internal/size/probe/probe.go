// Package probe is the smallest function with a lock. Its folders have the mains, whose binaries are measured.
package probe

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Run is the function with these stores.
func Run(openers ...lockstore.SchemeOpener) {
	g := boot.MustGuardFromEnv(openers...)
	boot.Start(g, guard.Wrap(g, key, handle))
}

type task struct {
	Account string `json:"account"`
}

func key(_ context.Context, in task) (string, error) {
	return lockstore.Key("account", in.Account), nil
}

func handle(_ context.Context, lock guard.Lock, _ task) (string, error) { return lock.Key, nil }
