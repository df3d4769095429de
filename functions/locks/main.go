// Command locks is the Lambda behind /locks/{key}: locks over HTTP.
package main

import (
	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockhttp"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
)

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener, elasticache.Opener)
	service := boot.Must(lockhttp.Open(g, boot.MustURLFromEnv("LOCK_TOKEN_SECRET"), boot.EnvVar))
	boot.Start(g, guard.WrapUnlocked(service.Handle))
}
