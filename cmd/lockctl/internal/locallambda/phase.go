package locallambda

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// phase is what was seen of the function: as without the lock, or with it.
type phase struct {
	unlocked     bool // so many may hold a key that nobody waits
	environments int
	fenced       bool // the data refuses late writes
	began        time.Time
	attempts     []attempt // by number of the event
	faults       []fault
	planned      int       // faults that were asked for
	sections     []section // by start
	covered      []covered
	reported     bool  // there was a report line
	rows         []row // of --after
	afterErr     error // what the exit status of --after says

	counts
}

// counts are made of the rest of a phase.
type counts struct {
	took                       time.Duration // until the last answer
	succeeded, busy, sentAgain int
	unavailable                int
	failures                   map[string]int // by type
	failure                    string         // the first one
	unasked                    int            // events that succeeded without a line of the guard
	keys                       int
	most                       int       // sections of one key at once
	ownLimit                   bool      // as without the lock, the function limits the holders of a key all the same
	overlapping                int       // sections that overlap another
	lost                       int       // sections whose lease was lost
	late                       []section // of these, those that returned no error after the next had begun
}

// attempt is one event as its client saw it.
type attempt struct {
	sent, answered time.Time
	busy           int               // busy answers, after which it was tried again
	unavailable    int               // the same, because the store was not available
	sentAgain      int               // tries after a fault
	failed         string            // the type of its failure; "" when it succeeded
	detail         string            // of its failure
	unasked        bool              // it succeeded, and its last answer came without a line of the guard
	lost           map[string]string // it succeeded; outcomes of runs without their lock, by key
	wrote          []string          // what its environment wrote last before the failure
}

func (a attempt) failure() string {
	text := a.failed
	if a.detail != "" {
		text += ": " + a.detail
	}
	text = strings.ReplaceAll(text, "\n", "\n  ")
	for _, line := range a.wrote {
		text += "\n  log: " + line
	}
	return text
}

// row is a row of the table that --after wrote.
type row struct{ name, value string }

// fault is what was done to an environment.
type fault struct {
	kind        faultKind
	environment int
	from, to    time.Time
}

// faultKind is what has become of the environment.
type faultKind string

const (
	freeze faultKind = "frozen"
	kill   faultKind = "killed"
)

// title names the phase in messages, in the table and in the picture.
func (p phase) title() string {
	if p.unlocked {
		return "without the lock"
	}
	return "with the lock"
}

func (p *phase) finish() {
	slices.SortFunc(p.sections, func(a, b section) int { return a.start.Compare(b.start) })
	ownLimit := false
	for i := range p.sections { // as without the lock, what is counted is what the lock would forbid
		switch s := &p.sections[i]; {
		case !p.unlocked:
		case s.MaxHolders == lockstore.MaxHolders:
			s.MaxHolders = 1
		default:
			ownLimit = true
		}
	}
	most := markOverlaps(p.sections, p.faults)

	p.counts = counts{most: most, ownLimit: ownLimit, failures: map[string]int{}}
	for _, a := range p.attempts {
		p.busy += a.busy
		p.unavailable += a.unavailable
		p.sentAgain += a.sentAgain
		p.took = max(p.took, a.answered.Sub(p.began))
		if a.unasked {
			p.unasked++
		}
		if a.failed == "" {
			p.succeeded++
		} else {
			p.failures[a.failed]++
			p.failure = cmp.Or(p.failure, a.failure())
		}
	}
	keys, seen := map[string]bool{}, map[int]bool{}
	for i := range p.sections {
		s := &p.sections[i]
		keys[s.Key] = true
		if s.overlaps {
			p.overlapping++
		}
		if s.Outcome == "lost" {
			p.lost++
		}
		if s.late() {
			p.late = append(p.late, *s)
		}
		// As without the lock nobody waits for it, and a later section of an event has
		// not waited since the event was sent.
		if s.event > 0 && !p.unlocked && !seen[s.event] {
			s.waiting = p.attempts[s.event-1].sent
		}
		seen[s.event] = true
	}
	p.keys = len(keys)
}

// undone says that no run of the key began after a covered event was sent, and ended well.
func (p phase) undone(c covered) bool {
	return !slices.ContainsFunc(p.sections, func(s section) bool { return s.Key == c.Key && s.Outcome == "ok" && s.start.After(c.sent) })
}

func (p phase) failed() int { return len(p.attempts) - p.succeeded }

func (p phase) done(kind faultKind) int {
	n := 0
	for _, f := range p.faults {
		if f.kind == kind {
			n++
		}
	}
	return n
}

const noReports = `no report line was found in what the function wrote, so nobody knows whether critical sections overlapped.
Let the function log each run of the guard as JSON, at the level INFO, as boot.MustGuardFromEnv does; with a guard of your own
set guard.Options.Observe to guard.LogReports(slog.New(slog.NewJSONHandler(os.Stdout, nil)))`

// withoutLock says why the phase without the lock does not show what the lock is for, if that is so.
func (p phase) withoutLock() string {
	switch {
	case p.ownLimit:
		return "The function itself says how many may hold a key (WithMaxHolders), so it had its lock in both phases.\n"
	case p.reported && p.overlapping == 0:
		return "Without the lock no critical sections overlapped this time: try again, or send more events.\n"
	}
	return ""
}

// remark says why a run shows nothing about a lock, if that is so.
func (p phase) remark() string {
	if n := len(p.sections); n > 1 && p.keys == n {
		return "Each critical section had a key of its own, so no two runs could meet: look at the event and at the key.\n"
	}
	return ""
}

func (s section) String() string {
	return fmt.Sprintf("event %d, request %s (key %q, fence %d)", s.event, s.RequestID, s.Key, s.Fence)
}

// verdict is nil if the phase is as it should be under a lock.
func (p phase) verdict() error {
	var wrong []error
	says := func(format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("%s, "+format, append([]any{p.title()}, args...)...))
	}
	if p.failed() > 0 {
		says("%d of %d events failed for good, the first with %s", p.failed(), len(p.attempts), p.failure)
	}
	if p.overlapping > 0 {
		says("%d critical sections overlapped others of the same key, more than their lock allows", p.overlapping)
	}
	if len(p.late) > 0 && !p.fenced {
		first := p.late[0]
		says("%d late: a run returned success though its lease was over and the next run of its key had begun, so its last write may have come too late; if the data refuses such writes by their fence, give --fenced\n  %s returned %s after the grant of %s",
			len(p.late), first, milliseconds(first.end.Sub(first.next.start)), first.next)
	}
	if i := slices.IndexFunc(p.attempts, func(a attempt) bool { return len(a.lost) > 0 }); i >= 0 {
		key := slices.Sorted(maps.Keys(p.attempts[i].lost))[0]
		says("event %d was answered with success, but the last run for the key %q has the outcome %s in its log line: the answer has to be an error", i+1, key, p.attempts[i].lost[key])
	}
	if i := slices.IndexFunc(p.covered, p.undone); i >= 0 {
		says("an event was covered, and no run for its key %q that began later ended well: request %s", p.covered[i].Key, p.covered[i].RequestID)
	}
	if p.afterErr != nil {
		says("%w", p.afterErr)
	}
	if len(p.faults) < p.planned {
		says("only %d of %d faults found an event under way; send more events (-n)", len(p.faults), p.planned)
	}
	switch {
	case p.succeeded == 0:
	case !p.reported:
		wrong = append(wrong, errors.New(noReports))
	case p.unasked > 0:
		first := slices.IndexFunc(p.attempts, func(a attempt) bool { return a.unasked })
		says("%d of %d events were answered with success without a line of the guard in the log, the first is event %d: it asked for no lock, or its line is not logged", p.unasked, len(p.attempts), first+1)
	case len(p.sections) == 0:
		says("no run got a lock, so nothing is known of overlaps")
	}
	return errors.Join(wrong...)
}
