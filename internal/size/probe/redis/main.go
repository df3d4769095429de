// Command redis is the smallest function with locks in Redis.
package main

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func main() {
	g := boot.MustGuardFromEnv(redisstore.Opener)
	boot.Start(g, guard.Wrap(g, key, handle))
}

type task struct {
	Account string `json:"account"`
}

func key(_ context.Context, in task) (string, error) {
	return lockstore.Key("account", in.Account), nil
}

func handle(_ context.Context, lock guard.Lock, _ task) (string, error) { return lock.Key, nil }
