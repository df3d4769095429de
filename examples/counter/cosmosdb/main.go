// Command cosmosdb is the function of package counter with locks in Azure Cosmos DB.
package main

import (
	"github.com/lambdalock/lambdalock/examples/counter"
	"github.com/lambdalock/lambdalock/lockstore/cosmosstore"
)

func main() { counter.Run(cosmosstore.Opener) }
