package storetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// summary counts what was skipped. A suite that skips in silence looks as good
// as one that checks everything.
type summary struct {
	mu             sync.Mutex
	cases, skipped int
	lacks          map[string]bool
}

// add counts a case that has ended. c is nil if its harness was never opened.
func (s *summary) add(c *check, skipped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cases++
	if !skipped {
		return
	}
	s.skipped++
	lacks := "harness" // open skipped
	if c != nil {
		lacks = c.lacks
	}
	if s.lacks == nil {
		s.lacks = map[string]bool{}
	}
	s.lacks["no "+lacks] = true
}

func (s *summary) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("storetest: %d of %d cases skipped", s.skipped, s.cases)
	if s.skipped > 0 {
		text += ": " + strings.Join(slices.Sorted(maps.Keys(s.lacks)), ", ")
	}
	return text
}
