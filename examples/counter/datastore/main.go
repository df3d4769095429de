// Command datastore is the function of package counter with locks in Google Cloud Datastore.
package main

import (
	"github.com/lambdalock/lambdalock/examples/counter"
	"github.com/lambdalock/lambdalock/lockstore/datastore"
)

func main() { counter.Run(datastore.Opener) }
