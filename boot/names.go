package boot

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
)

// asked are the variables that this process has read, and those of this package. A
// function that makes its guard without MustGuardFromEnv does not read the latter.
var asked = &names{all: map[string]bool{
	"LOCK_URL": true, "LOCK_TTL": true, "LOCK_MAX_HOLD": true, "LOCK_WAIT": true, "LOCK_MAX_HOLDERS": true, "LOCK_COALESCE": true, "LOCK_DEADLINE_MARGIN": true, "LOCK_SIGTERM": true, "LOCK_METRICS": true, "LOCK_LOG": true,
}}

func getenv(name string) string {
	asked.note(name)
	return os.Getenv(name)
}

type names struct {
	mu  sync.Mutex
	all map[string]bool
}

func (n *names) note(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all[name] = true
}

const prefix = "LOCK_"

// unknown returns an error if the name of a variable begins with LOCK_ and nobody has read
// this variable. The error does not show the value.
func (n *names) unknown(environ []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := slices.DeleteFunc(slices.Sorted(maps.Keys(n.all)), func(name string) bool { return !strings.HasPrefix(name, prefix) })
	for _, v := range slices.Sorted(slices.Values(environ)) {
		name, _, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(name, prefix) || n.all[name] {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int { return distance(name, a) - distance(name, b) })
		return fmt.Errorf("the environment variable %.40q is unknown; did you mean %s? Known: %s", name, nearest, strings.Join(known, ", "))
	}
	return nil
}

// distance is how many bytes must be inserted, removed or replaced to turn a into b
// (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
