package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// summary counts the skipped cases.
type summary struct {
	mu      sync.Mutex
	cases   int
	missing []string // one for each skipped case
}

// add counts a case that has ended. missing is why it was skipped, "" if it has run.
func (s *summary) add(missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cases++
	if missing != "" {
		s.missing = append(s.missing, "no "+missing)
	}
}

func (s *summary) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("storetest: %d of %d cases skipped", len(s.missing), s.cases)
	if len(s.missing) > 0 {
		reasons := slices.Sorted(slices.Values(s.missing))
		text += ": " + strings.Join(slices.Compact(reasons), ", ")
	}
	return text
}
