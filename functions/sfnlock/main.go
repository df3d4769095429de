// Command sfnlock is the Lambda behind the states of a Step Functions state machine
// that hold a lock; see sfnlock.go, and payout.asl.json for a machine.
package main

import (
	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

func main() {
	wake := boot.Must(sfnwake.FromEnv(boot.EnvVar))
	g := boot.MustGuardFromEnvWith(func(o *guard.Options) { o.Wake = wake }, dynamostore.Opener, redisstore.Opener, elasticache.Opener, zkstore.Opener)
	boot.Start(g, guard.WrapUnlocked(handler(g, wake)))
}
