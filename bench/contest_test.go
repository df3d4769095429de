package bench

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
)

// contestant is something that can be done again and again.
type contestant func()

// contest lets the contestants run in turns and returns the time of one run in
// each round, for each contestant.
func contest(rounds, runs int, contestants ...contestant) [][]time.Duration {
	times := make([][]time.Duration, len(contestants))
	for _, c := range contestants {
		for range runs {
			c() // connections are made, scripts loaded, tables grown
		}
	}
	inTurns(rounds, len(contestants), func(who int) {
		start := time.Now()
		for range runs {
			contestants[who]()
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

// compare is the ratio of one contestant to another: the median of the rounds' ratios.
func compare(a, b int) func([][]time.Duration) (float64, string) {
	return func(times [][]time.Duration) (float64, string) {
		ratios := make([]float64, len(times[a]))
		for i := range ratios {
			ratios[i] = float64(times[a][i]) / float64(times[b][i])
		}
		return median(ratios), fmt.Sprintf("%v : %v", micro(times[a]), micro(times[b]))
	}
}

// rounds is how often the contestants of a contest take turns, and contests how often a contest is run.
const (
	rounds   = 15
	contests = 3
)

// judge runs a contest a few times and prints its figures. Of each the highest value counts.
func judge(t *testing.T, run func() [][]time.Duration, figures ...figure) {
	t.Helper()
	values, notes := make([]float64, len(figures)), make([]string, len(figures))
	for range contests {
		times := run()
		for i, f := range figures {
			if value, note := f.of(times); value > values[i] {
				values[i], notes[i] = value, note
			}
		}
	}
	for i, f := range figures {
		budget(t, f.what, values[i], f.limit, f.unit, notes[i])
	}
}

// budget prints one line and fails the test when the value is over its limit.
func budget(t *testing.T, what string, value, limit float64, unit, note string) {
	t.Helper()
	bound, verdict := "", ""
	if limit > 0 {
		bound, verdict = fmt.Sprintf("%.2f", limit), "ok"
		if value > limit {
			verdict = "OVER"
			t.Errorf("%s is %.2f%s; want at most %.2f%s", what, value, unit, limit, unit)
		}
	}
	row(what, fmt.Sprintf("%.2f%s", value, unit), bound, verdict, note)
}

// fatal ends the test at an error. It is in what is measured, so it does nothing else.
func fatal(t *testing.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}
