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
	for round := range rounds {
		for i := range contestants {
			// Nobody always runs first, or always behind the same one.
			who := (i + round) % len(contestants)
			if round%2 == 1 {
				who = len(contestants) - 1 - who
			}
			runtime.GC() // nobody pays for another's garbage
			start := time.Now()
			for range runs {
				contestants[who].run()
			}
			times[who] = append(times[who], time.Since(start)/time.Duration(runs))
		}
	}
	return times
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

// budget prints one line and fails the test when the value is over its budget.
func budget(t *testing.T, what string, value, limit float64, unit, note string) {
	t.Helper()
	verdict := "ok"
	if value > limit {
		verdict = "OVER"
		t.Errorf("%s is %.2f%s; want at most %.2f%s", what, value, unit, limit, unit)
	}
	line(what, fmt.Sprintf("%.2f%s", value, unit), fmt.Sprintf("%.2f", limit), verdict, note)
}

// note prints one line without a budget.
func note(what string, value float64, unit, note string) {
	line(what, fmt.Sprintf("%.2f%s", value, unit), "", "", note)
}

func line(what, value, limit, verdict, note string) {
	fmt.Println(strings.TrimRight(fmt.Sprintf("%-37s %7s %6s %-4s %s", what, value, limit, verdict, note), " "))
}
