package main

import (
	"slices"
	"time"
)

// situation is one that has an address: the name behind the #.
type situation struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Text  string `json:"text"` // what there is to see

	environments int
	think        time.Duration
	lock         string
	events       int
	over         time.Duration // in which the events come
	fault        string        // of the environment of the first event
}

// situations are those of the page, in its order. Up to three may hold the key in the fifth.
var situations = []situation{
	{"without", "Without the lock", "40 events for one key, and 8 environments. Each run reads the last number, works for about 0.2 s, and stores an invoice under the next number. " +
		"Runs that overlap are red: they take the same number, and overwrite the invoice of another.",
		8, 200 * time.Millisecond, off, 40, 20 * time.Millisecond, ""},
	{"with", "With the lock", "The same 40 events. A run begins when the run before it has released the lock, in the order of arrival. No invoice is overwritten. " +
		"Thin lines are environments that wait.",
		8, 200 * time.Millisecond, "on", 40, 20 * time.Millisecond, ""},
	{"freeze", "A freeze, and the fence", "The work of environment 1 hangs for 9 s in a call, after its last look at its context and before its write. Timers run on. So its context is cancelled a quarter of a " +
		"second before its lease of 5 s ends: its bar is amber from then on. Only then the next run begins. When environment 1 goes on, its write has an old fence, and the resource " +
		"refuses it. In an environment that Lambda freezes the timers stand still, too: there the context is cancelled when it goes on.",
		3, 800 * time.Millisecond, "on", 3, 600 * time.Millisecond, freeze},
	{"kill", "A kill", "Environment 1 is killed at work, and releases nothing. The others wait until its lease of 5 s is over. Then they go on, in the order of arrival.",
		3, 800 * time.Millisecond, "on", 3, 600 * time.Millisecond, kill},
	{"holders", "At most three at once", "Up to three runs hold the key, each on a seat of its own. A fourth waits until one of them releases its seat.",
		8, 600 * time.Millisecond, holders, 24, 400 * time.Millisecond, ""},
	{"readers", "A writer among readers", "One event of six writes, the others read. Readers are at work side by side. A writer waits for the readers before it, and is alone. Readers that come later wait behind it.",
		8, 600 * time.Millisecond, readers, 18, 3 * time.Second, ""},
	{"coalesce", "One waits for all", "200 events for one key come within 3 s. One run works, and one waits. An event that finds a run waiting ends at once: the run that waits has not begun, and does what " +
		"this event asks for, too. So a few runs do the work of 200 events.",
		8, 500 * time.Millisecond, coalesce, 200, 3 * time.Second, ""},
	{"parked", "A wait that nobody pays for", "12 events for one key, and 3 environments. An event that finds the key held parks: its invocation ends, and its environment is free. The run that releases the lock " +
		"wakes the next event. Compare the waiting that is paid for with that of the second situation.",
		3, 700 * time.Millisecond, parked, 12, time.Second, ""},
}

// open begins the situation with this name, or the first one if none has it.
func open(name string) (w *world, known bool) {
	i := slices.IndexFunc(situations, func(s situation) bool { return s.Name == name })
	s := situations[max(i, 0)]
	w = newWorld(s.environments, s.think, settings{s.lock, 3, 1})
	w.locked(func() { w.send(s.events, s.over, s.fault) })
	return w, i >= 0
}
