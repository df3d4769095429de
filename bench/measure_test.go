package bench

import (
	"math"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A lock that is a tenth slower in one contest of three is over its limit, and the error says
// what else ran. Time is virtual.
func TestMeasure(t *testing.T) {
	const work = 100 * time.Microsecond
	for name, c := range map[string]struct {
		extra  func(contest int) time.Duration // what ours takes longer
		others []time.Duration                 // processor time of others in each contest
		value  float64
		excuse string
	}{
		"as fast":             {extra: func(int) time.Duration { return 0 }, value: 1},
		"a tenth slower":      {extra: func(int) time.Duration { return work / 10 }, value: 1.1, excuse: ", and nothing disturbed it"},
		"a tenth slower once": {extra: func(contest int) time.Duration { return time.Duration(contest/contests) * work / 10 }, value: 1.1, excuse: ", and nothing disturbed it"},
		"disturbed once": {
			extra: func(int) time.Duration { return work / 10 }, others: []time.Duration{0, 100 * time.Hour, 0}, value: 1.1,
			excuse: "; it was disturbed (at worst: other processes had",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all time.Duration
				n, others := 0, c.others
				outcomes, loads := measure(func() [][]time.Duration {
					if n++; len(others) > 0 {
						all, others = all+others[0], others[1:]
					}
					return contest(5, 20, contestant{"ours", func() { pass(work + c.extra(n)) }},
						contestant{"theirs", func() { pass(work) }})
				}, func() (usage, error) {
					return usage{at: time.Now(), all: all}, nil
				}, []figure{{"ours : theirs", 1.05, "x", compare(0, 1)}})
				if math.Abs(outcomes[0].value-c.value) > 0.001 || len(loads) != contests {
					t.Errorf("%v after %d contests; want %v after %d", outcomes[0].value, len(loads), c.value, contests)
				}
				if !strings.Contains(excuse(loads), c.excuse) {
					t.Errorf("%q does not say %q", excuse(loads), c.excuse)
				}
			})
		})
	}
}

// What this process uses is its own, and no load.
func TestReadUsage(t *testing.T) {
	before, err := readUsage()
	if err != nil {
		t.Skip(err) // not on Linux
	}
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const busy = 100 * time.Millisecond
	for start := used(); used() < start+busy; {
	}
	after, err := readUsage()
	if err != nil {
		t.Fatal(err)
	}
	if ours := after.ours - before.ours; ours < busy-4*tick || after.all < before.all+ours-busy/2 {
		t.Errorf("this process had %v of %v; want about %v", ours, after.all-before.all, busy)
	}
}

// pass lets d of virtual time pass.
func pass(d time.Duration) { <-time.After(d) }
