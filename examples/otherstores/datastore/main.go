// Command datastore is the function of package otherstores with locks in Google Cloud Datastore.
package main

import (
	"github.com/lambdalock/lambdalock/examples/otherstores"
	"github.com/lambdalock/lambdalock/lockstore/datastore"
)

func main() { otherstores.Run(datastore.Opener) }
