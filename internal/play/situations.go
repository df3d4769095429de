package main

import (
	"slices"
	"time"
)

// situation is one that has an address: the name behind the #. index.html says what there is to see.
type situation struct {
	name         string
	environments int
	think        time.Duration // the work takes so long on average
	lock         string
	events       int
	over         time.Duration // in which the events come
	fault        string        // of the environment of the first event
}

var situations = []situation{
	{"without", 8, 200 * time.Millisecond, off, 40, 20 * time.Millisecond, ""},
	{"with", 8, 200 * time.Millisecond, "on", 40, 20 * time.Millisecond, ""},
	{"freeze", 3, 800 * time.Millisecond, "on", 3, 600 * time.Millisecond, freeze},
	{"kill", 3, 800 * time.Millisecond, "on", 3, 600 * time.Millisecond, kill},
	{"holders", 8, 600 * time.Millisecond, holders, 24, 400 * time.Millisecond, ""},
	{"readers", 8, 600 * time.Millisecond, readers, 18, 3 * time.Second, ""},
	{"coalesce", 8, 500 * time.Millisecond, coalesce, 200, 3 * time.Second, ""},
	{"parked", 3, 700 * time.Millisecond, parked, 12, time.Second, ""},
}

// open begins the situation with this name, or the first one if none has it.
func open(name string) *world {
	i := slices.IndexFunc(situations, func(s situation) bool { return s.name == name })
	w := newWorld(situations[max(i, 0)])
	w.locked(func() { w.send(w.situation.events, w.situation.over) })
	return w
}
