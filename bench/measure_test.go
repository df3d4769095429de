package bench

import (
	"math"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A lock that is a tenth slower is over its limit in each contest, and the error says
// what else ran. A lock that was only disturbed is within its limit the next time. Time
// is virtual.
func TestMeasure(t *testing.T) {
	const work = 100 * time.Microsecond
	slower := func(int) time.Duration { return work / 10 }
	for name, c := range map[string]struct {
		extra    func(contest int) time.Duration // what ours takes longer
		others   []time.Duration                 // processor time of others in each contest
		value    float64
		contests int
		excuse   string
	}{
		"as fast":        {extra: func(int) time.Duration { return 0 }, value: 1, contests: 1},
		"a tenth slower": {extra: slower, value: 1.1, contests: 3, excuse: ", in a contest that nothing disturbed"},
		"a tenth slower, and disturbed twice": {
			extra: slower, others: []time.Duration{time.Hour, 0, time.Hour}, value: 1.1, contests: 3,
			excuse: ", in a contest that nothing disturbed",
		},
		"a tenth slower, and always disturbed": {
			extra: slower, others: []time.Duration{time.Hour, 25200 * time.Microsecond, time.Hour}, value: 1.1, contests: 3,
			excuse: "not judged, because it was disturbed (at best: other processes had 1.00 of",
		},
		"slower once": {extra: func(contest int) time.Duration { return work / time.Duration(contest*contest*contest) / 5 }, value: 1.025, contests: 2},
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
				if math.Abs(outcomes[0].value-c.value) > 0.001 || len(loads) != c.contests {
					t.Errorf("%v after %d contests; want %v after %d", outcomes[0].value, len(loads), c.value, c.contests)
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
