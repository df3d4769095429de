// Command redis is the smallest function with locks in Redis.
package main

import (
	"github.com/lambdalock/lambdalock/internal/size/probe"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func main() { probe.Run(redisstore.Opener) }
