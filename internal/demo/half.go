package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// half is what was seen in one half of the demo. Money is in cents.
type half struct {
	title        string
	environments int
	amount       int64
	opening      int64
	closing      int64
	began        time.Time
	attempts     []attempt
	sections     []section // by start

	took            time.Duration // until the last answer
	succeeded, busy int
	overlaps        int             // sections that ran at the same time as another
	waits           []time.Duration // for the lock, sorted
	failure         string          // the first one
}

// attempt is one withdrawal as its client saw it.
type attempt struct {
	sent       time.Time
	answered   time.Time
	requestIDs []string // of all its tries
	busy       int      // 409s that were tried again
	failure    string   // "" when it was made
}

// section is one critical section: the time in which a function was between
// reading the balance and having written it.
type section struct {
	environment int
	requestID   string
	fence       int64
	start, end  time.Time
	waiting     time.Time // since when its client waited; zero when not known
	overlaps    bool      // another section ran at the same time
}

// sections reads the function's own report lines.
func sections(environment int, lines []string) []section {
	var all []section
	for _, line := range lines {
		var r struct {
			Message    string    `json:"message"`
			RequestID  string    `json:"requestId"`
			AcquiredAt time.Time `json:"acquired_at"`
			HoldMS     float64   `json:"hold_ms"`
			Fence      int64     `json:"fence"`
		}
		// Other lines are the function's own business.
		if json.Unmarshal([]byte(line), &r) != nil || r.Message != "lock" || r.AcquiredAt.IsZero() {
			continue
		}
		all = append(all, section{
			environment: environment,
			requestID:   r.RequestID,
			fence:       r.Fence,
			start:       r.AcquiredAt,
			end:         r.AcquiredAt.Add(time.Duration(r.HoldMS * float64(time.Millisecond))),
		})
	}
	return all
}

// finish counts.
func (h *half) finish() {
	slices.SortFunc(h.sections, func(a, b section) int { return a.start.Compare(b.start) })
	h.overlaps = markOverlaps(h.sections)

	sent := map[string]time.Time{}
	for _, a := range h.attempts {
		h.busy += a.busy
		h.took = max(h.took, a.answered.Sub(h.began))
		switch {
		case a.failure == "":
			h.succeeded++
		case h.failure == "":
			h.failure = a.failure
		}
		for _, id := range a.requestIDs {
			sent[id] = a.sent
		}
	}
	for i := range h.sections {
		s := &h.sections[i]
		s.waiting = sent[s.requestID]
		if s.fence > 0 && !s.waiting.IsZero() { // without a lock nobody waits for it
			h.waits = append(h.waits, max(0, s.start.Sub(s.waiting)))
		}
	}
	slices.SortFunc(h.waits, cmp.Compare)
}

// markOverlaps marks the sections, sorted by start, that ran at the same time
// as another, and returns how many these are.
func markOverlaps(sections []section) int {
	longest := 0 // the earlier section that ends last
	for i := 1; i < len(sections); i++ {
		if sections[i].start.Before(sections[longest].end) {
			sections[i].overlaps, sections[longest].overlaps = true, true
		}
		if sections[i].end.After(sections[longest].end) {
			longest = i
		}
	}
	n := 0
	for _, s := range sections {
		if s.overlaps {
			n++
		}
	}
	return n
}

// work is how long the sections take one after the other.
func (h half) work() time.Duration {
	var sum time.Duration
	for _, s := range h.sections {
		sum += s.end.Sub(s.start)
	}
	return sum
}

func (h half) expected() int64 { return h.opening - int64(h.succeeded)*h.amount }

// lost is how many withdrawals succeeded and left no trace in the balance.
func (h half) lost() int { return int((h.closing - h.expected()) / h.amount) }

// percentile is the nearest-rank percentile of the waits.
func (h half) percentile(p int) time.Duration {
	if len(h.waits) == 0 {
		return 0
	}
	return h.waits[max(0, (len(h.waits)*p+99)/100-1)]
}

// verdict is nil if the half is as it should be under a lock.
func (h half) verdict() error {
	var wrong []error
	if h.failure != "" {
		wrong = append(wrong, fmt.Errorf("%s, %d of %d withdrawals failed, the first with %s",
			h.title, len(h.attempts)-h.succeeded, len(h.attempts), h.failure))
	}
	if h.closing != h.expected() {
		wrong = append(wrong, fmt.Errorf("%s, %d updates were lost", h.title, h.lost()))
	}
	if h.overlaps > 0 {
		wrong = append(wrong, fmt.Errorf("%s, %d critical sections overlapped", h.title, h.overlaps))
	}
	if len(h.sections) < h.succeeded {
		wrong = append(wrong, fmt.Errorf("%s, %d withdrawals succeeded but only %d reported a critical section", h.title, h.succeeded, len(h.sections)))
	}
	return errors.Join(wrong...)
}
