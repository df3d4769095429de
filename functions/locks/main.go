// Command locks is the Lambda behind /locks/{key}: locks over HTTP.
package main

import (
	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/lockhttp"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
)

func main() {
	wake := boot.Must(sfnwake.FromEnv(boot.EnvVar)) // state machines that wait for a key
	g := boot.MustGuardFromEnvWith(func(o *guard.Options) { o.Wake = wake }, dynamostore.Opener, redisstore.Opener, elasticache.Opener)
	service := boot.Must(lockhttp.Open(g, boot.MustURLFromEnv("LOCK_TOKEN_SECRET"), boot.EnvVar))
	boot.Start(g, guard.WrapUnlocked(service.Handle))
}
