// Command both is the smallest function with locks in DynamoDB or in Redis, as the environment says.
package main

import (
	"github.com/lambdalock/lambdalock/internal/size/probe"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func main() { probe.Run(dynamostore.Opener, redisstore.Opener) }
