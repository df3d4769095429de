// Package bench compares what a lock costs here with what it costs elsewhere,
// and fails when a budget is missed:
//
//	cd bench && go test -v -count=1 -timeout 30m .
//
// The locks that are compared run in turns, round by round, in one process and against
// one server. The median of the rounds' ratios counts. So a slow machine slows all of
// them in the same way. Only the guard's own time is not a ratio.
//
// Other work on the machine still changes a ratio by a tenth. So each contest prints
// how much processor time other processes had, and other machines on the same
// hardware. A contest with a figure over its budget is repeated, up to three times, and
// the lowest value of each figure counts: a disturbance is rarely the same each time, a
// slower lock is slower each time. A figure that stays over its budget fails the run.
// If every contest was disturbed, the error says so, and by how much.
//
// The package is a module of its own because it needs other lock libraries, which must
// not reach the users of this library.
package bench
