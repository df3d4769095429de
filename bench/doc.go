// Package bench compares what a lock costs here with what it costs elsewhere,
// and fails when a budget is missed:
//
//	cd bench && go test -run TestBudgets -v -count=1 .
//
// Everything that is compared runs in turns, round by round, in one process and
// against one server, and what counts is the median of the rounds' ratios. So a
// slow machine, or one with other work to do, slows all of them alike. Only the
// guard's own time is a number of its own.
//
// It is a module of its own because it needs other lock libraries, which must
// not reach the users of this one.
package bench
