// Package bench compares what a lock costs here with what it costs elsewhere,
// and fails when a budget is missed:
//
//	cd bench && go test -v -count=1 -timeout 30m .
//
// Everything that is compared runs in turns, round by round, in one process and
// against one server, and what counts is the median of the rounds' ratios. So a
// slow machine slows all of them alike. Only the guard's own time is a number of
// its own.
//
// Other work on the machine still moves a ratio by a tenth. So each contest prints
// how much processor time other processes had meanwhile, and other machines on the
// same hardware. A contest with a figure over its budget is held again, up to three
// times, and the lowest value of each figure counts: what disturbs is rarely the
// same each time, a slower lock is slower each time. A figure that stays over fails
// the run. If every contest was disturbed the error says so, and by how much.
//
// It is a module of its own because it needs other lock libraries, which must
// not reach the users of this one.
package bench
