// Command zookeeper is the smallest function with locks in ZooKeeper.
package main

import (
	"github.com/lambdalock/lambdalock/internal/size/probe"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

func main() { probe.Run(zkstore.Opener) }
