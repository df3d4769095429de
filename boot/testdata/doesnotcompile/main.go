// Command unlocked does not compile: its last call gives boot.Start a handler without a lock.
package main

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
)

func main() {
	var g *guard.Guard
	key := func(context.Context, string) (string, error) { return "k", nil }
	handle := func(_ context.Context, in string) (string, error) { return in, nil }
	boot.Start(g, guard.Wrap(g, key, guard.WithoutFence(handle)))
	boot.Start(g, guard.WrapUnlocked(handle))
	boot.Start(g, handle)
}
