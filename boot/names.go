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
		return fmt.Errorf("the environment variable %.40q is unknown; want one of %s", name, strings.Join(known, ", "))
	}
	return nil
}
