// Command dynamodb is the smallest function with locks in DynamoDB.
package main

import (
	"github.com/lambdalock/lambdalock/internal/size/probe"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

func main() { probe.Run(dynamostore.Opener) }
