package casstore

import (
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore/casstore/internal/entry"
)

// lastStamp is the service's time as this process knows it: a stamp, and when it was seen.
type lastStamp struct{ stamp, at time.Time }

// clockAt is the stamp of v if the call has written v, else a guess of the time now.
// For a write that is still to come Late is entry.ThisWrite: later than everything.
func (s *store) clockAt(v view) rules.Clock {
	if v.own {
		late := v.written.Add(s.codec.Blur())
		if begins := v.begins(); begins.After(late) {
			late = begins // a lease of this stamp begins there: its begin is rounded up
		}
		return rules.Clock{Early: v.written, Late: late, Sure: true}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	least, most := passed(s.clock.at)
	return rules.Clock{Early: s.clock.stamp.Add(most), Late: entry.ThisWrite, Fences: s.clock.stamp.Add(least)}
}

// passed is the time since at, by the clock that shows less and by the one that shows more. The monotonic clock stands still
// while Lambda freezes the process, so leases end by the larger time. The wall clock may be set ahead, so
// fences are of the smaller time: a fence that is far ahead would fall if the entry were lost.
func passed(at time.Time) (least, most time.Duration) {
	now := time.Now()
	monotonic, wall := now.Sub(at), now.Round(0).Sub(at.Round(0))
	return max(0, min(monotonic, wall)), max(monotonic, wall)
}

// learn notes a stamp of the service. If began is not zero, the stamp is from a moment since began;
// otherwise it may be old. A stamp changes the known time only if it proves that time wrong, or if the two clocks
// have gone apart: so an old stamp in a slow reply cannot set the clock back.
func (s *store) learn(stamp, began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.clock.stamp
	least, most := passed(s.clock.at)
	if !known.IsZero() {
		known = known.Add(most)
	}
	justNow := !began.IsZero()
	// The known time is too early, or too late.
	_, since := passed(began)
	behind, ahead := stamp.After(known), justNow && !known.Before(stamp.Add(since+s.kv.ClockResolution()))
	if !stamp.IsZero() && (behind && (justNow || !known.IsZero()) || ahead || justNow && most-least > farAhead) {
		s.clock = lastStamp{stamp, time.Now()}
	}
}

func (s *store) knowsTime() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.clock.stamp.IsZero()
}

// maxRemembered bounds the memory of own last writes. For a key that is not remembered a call reads first.
const maxRemembered = 1024

// remember keeps what the next write may rest on, but no result.
func (s *store) remember(key string, v view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for old := range s.writes {
		if len(s.writes) < maxRemembered {
			break
		}
		delete(s.writes, old) // any: a miss costs a read
	}
	if delete(s.writes, key); v.Closed.For == 0 {
		s.writes[key] = v
	}
}

func (s *store) remembered(key string) (view, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.writes[key]
	return v, ok
}

func (s *store) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.writes, key)
}
