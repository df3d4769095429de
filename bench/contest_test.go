package bench

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// contestant is something that can be done again and again.
type contestant struct {
	name string
	run  func()
}

// contest lets the contestants run in turns and returns the time of one run in
// each round, for each contestant.
func contest(rounds, runs int, contestants ...contestant) [][]time.Duration {
	times := make([][]time.Duration, len(contestants))
	for _, c := range contestants {
		for range runs {
			c.run() // connections are made, scripts loaded, tables grown
		}
	}
	inTurns(rounds, len(contestants), func(who int) {
		start := time.Now()
		for range runs {
			contestants[who].run()
		}
		times[who] = append(times[who], time.Since(start)/time.Duration(runs))
	})
	return times
}

// inTurns runs each of n contestants once in each round.
func inTurns(rounds, n int, run func(who int)) {
	for round := range rounds {
		for i := range n {
			// No contestant always runs first, or always after the same other.
			who := (i + round) % n
			if round%2 == 1 {
				who = n - 1 - who
			}
			runtime.GC() // no contestant pays for the garbage of another
			run(who)
		}
	}
}

// ratio is the median of the rounds' ratios.
func ratio(a, b []time.Duration) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = float64(a[i]) / float64(b[i])
	}
	return median(ratios)
}

func median[T float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func micro(times []time.Duration) time.Duration { return median(times).Round(100 * time.Nanosecond) }

// figure is one result of a contest and the most that it may be.
type figure struct {
	what  string
	limit float64 // 0 is none
	unit  string
	of    func(times [][]time.Duration) (value float64, note string)
}

// compare is the ratio of one contestant to another.
func compare(a, b int) func([][]time.Duration) (float64, string) {
	return func(times [][]time.Duration) (float64, string) {
		return ratio(times[a], times[b]), fmt.Sprintf("%v : %v", micro(times[a]), micro(times[b]))
	}
}

// rounds is how often the contestants of a contest take turns, and contests how often a contest is run.
const (
	rounds   = 15
	contests = 3
)

// outcome is the highest value of a figure.
type outcome struct {
	value float64
	note  string
}

// measure runs a contest a few times. Of each figure the highest value counts.
func measure(run func() [][]time.Duration, usage func() (usage, error), figures []figure) ([]outcome, []load) {
	highest := make([]outcome, len(figures))
	var loads []load
	for len(loads) < contests {
		before, err := usage()
		times := run()
		after, err2 := usage()
		if err != nil || err2 != nil {
			loads = append(loads, load{})
		} else {
			loads = append(loads, before.until(after))
		}
		for i, f := range figures {
			if value, note := f.of(times); len(loads) == 1 || value > highest[i].value {
				highest[i] = outcome{value, note}
			}
		}
	}
	return highest, loads
}

// judge runs a contest and prints its figures. A figure over its limit fails the
// test, also on a machine that was busy; then the error says so.
func judge(t *testing.T, run func() [][]time.Duration, figures ...figure) {
	t.Helper()
	outcomes, loads := measure(run, readUsage, figures)
	for i, f := range figures {
		budget(t, f.what, outcomes[i].value, f.limit, f.unit, outcomes[i].note, loads...)
	}
	for i, l := range loads {
		fmt.Printf("  contest %d of %d: %v\n", i+1, contests, l)
	}
}

// budget prints one line and fails the test when the value is over its limit. The
// loads are those of the contests that it was measured in, if it is a time.
func budget(t *testing.T, what string, value, limit float64, unit, note string, loads ...load) {
	t.Helper()
	if limit == 0 {
		line(what, fmt.Sprintf("%.2f%s", value, unit), "", "", note)
		return
	}
	verdict := "ok"
	if busiest(loads).disturbs() {
		verdict = "ok?" // what else ran may have slowed the others
	}
	if value > limit {
		verdict = "OVER"
		t.Errorf("%s is %.2f%s; want at most %.2f%s%s", what, value, unit, limit, unit, excuse(loads))
	}
	line(what, fmt.Sprintf("%.2f%s", value, unit), fmt.Sprintf("%.2f", limit), verdict, note)
}

// excuse is the rest of an error about a figure that was measured in contests.
func excuse(loads []load) string {
	switch b := busiest(loads); {
	case len(loads) == 0:
		return ""
	case b.disturbs():
		return fmt.Sprintf("; it was disturbed (at worst: %v); run it again on a quiet machine", b)
	default:
		return fmt.Sprintf(", and nothing disturbed it (at worst: %v)", b)
	}
}

func line(what, value, limit, verdict, note string) {
	row(what, value, limit, verdict, note)
	fmt.Println(strings.TrimRight(fmt.Sprintf("%-37s %7s %6s %-4s %s", what, value, limit, verdict, note), " "))
}
