// Package bench compares what a lock costs here with what it costs elsewhere,
// and fails when a budget is missed:
//
//	go test -v -count=1 -timeout 30m .                                  make bench
//	go test -v -count=1 -timeout 30m . -keep ../docs/benchmarks.md      make bench KEEP=1
//
// The locks that are compared run in turns, round by round, in one process and against
// one server. The median of the rounds' ratios counts. So a slow machine slows all of
// them in the same way. Only the time of a script in the server is not a ratio.
//
// A contest has 15 rounds and is run three times, and the highest value of each figure counts. So run it on a
// machine that does nothing else: other work changes a ratio by a tenth. The control is our own lock, a tenth
// slower: a contest that does not show it shows nothing. The longest wait, and the peers' waits, are
// reported and have no budget.
//
// The package is a module of its own because it needs other lock libraries, which must
// not reach the users of this library.
package bench
