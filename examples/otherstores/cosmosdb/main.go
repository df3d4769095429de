// Command cosmosdb is the function of package otherstores with locks in Azure Cosmos DB.
package main

import (
	"github.com/lambdalock/lambdalock/examples/otherstores"
	"github.com/lambdalock/lambdalock/lockstore/cosmosstore"
)

func main() { otherstores.Run(cosmosstore.Opener) }
