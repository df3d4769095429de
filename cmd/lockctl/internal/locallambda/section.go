package locallambda

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// section is one critical section: the time from the grant of a lock until the
// work has ended, as the function itself reports it.
type section struct {
	report
	environment int
	event       int // its number; 0 is none: the function took a lock when it started
	start, end  time.Time

	waiting  time.Time // since when the client of its event waited; zero when not known
	until    time.Time // end; for a lease that was lost in a freeze, the begin of the freeze
	thawed   time.Time // the end of such a freeze
	overlaps bool      // more sections of the key than may ran at the same time
	next     *section  // the first one with its key and seat that began after such a freeze had begun, and before end
}

// report is a line of the guard, or of an adapter.
type report struct {
	Message    string    `json:"message"`
	Msg        string    `json:"msg"` // slog's own name
	RequestID  string    `json:"requestId"`
	Key        string    `json:"key"`
	Outcome    string    `json:"outcome"`
	AcquiredAt time.Time `json:"acquired_at"`
	HoldMS     float64   `json:"hold_ms"`
	Fence      int64     `json:"fence"`
	Seat       int       `json:"seat"`
	MaxHolders int       `json:"max_holders"` // how many sections of the key may run at once, as far as this one is concerned; missing if it is 1
	WorkOK     bool      `json:"work_ok"`     // its lease was lost, and its work returned no error

	Level          string `json:"level"`
	Error          string `json:"error"`
	MessageID      string `json:"messageId"`      // of sqsbatch
	SequenceNumber string `json:"sequenceNumber"` // of stream
}

// late says that the work returned no error though the lease was over and the next section had begun. What it wrote
// last may have come before the freeze or after it.
func (s section) late() bool { return s.WorkOK && s.next != nil }

// covered is an event that no run of its own did: another run of its key waited, and had not begun.
type covered struct {
	report
	environment int
	sent, at    time.Time // by the client; when its line was written
}

// workRan are the outcomes of a report whose work ran.
var workRan = []string{"ok", "error", "panic", "lost"}

// noLock are the outcomes of a report after which no event has been done: its work did not run, or was cut off.
var noLock = []string{"lost", "deadline", "invalid", "corrupt", "unavailable", "unknown", "panic"}

// reports reads the log lines of one environment. It is the io.Writer that a
// lambdatest.Environment writes each whole line to.
type reports struct {
	environment int

	mu       sync.Mutex
	found    bool // one report line at least
	sections []section
	covered  []covered
	granted  map[string]bool // keys, by the lines of LOCK_LOG=start
	event    int             // the number of the last one that was sent
	sent     time.Time       // when
	log      said
}

// said is what the function logged since the last event was sent.
type said struct {
	runs  int               // of the guard
	busy  string            // why a lock was busy, the first one; "" if none was
	cause string            // why a run of the guard failed otherwise, the first one
	items bool              // a batch's items failed
	item  string            // why one of them failed otherwise, the first one
	lost  map[string]string // outcomes of runs that lost their lock or got no answer about it, by key; without those that were repeated with success
}

func newReports(environment int) *reports {
	r := &reports{environment: environment}
	r.begin(0)
	return r
}

// begin forgets what was said before the event with this number.
func (r *reports) begin(event int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event = event
	r.log, r.granted, r.sent = said{lost: map[string]string{}}, map[string]bool{}, time.Now()
}

func (r *reports) said() said {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log
}

func (r *reports) Write(line []byte) (int, error) {
	r.read(line)
	return len(line), nil
}

func (r *reports) read(line []byte) {
	var report report
	if json.Unmarshal(line, &report) != nil {
		return // the function's own business
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch cmp.Or(report.Message, report.Msg) {
	case "message failed", "record failed":
		// The adapters log a busy lock as Info, because nothing is wrong then.
		text := fmt.Sprintf("item %q: %s", cmp.Or(report.MessageID, report.SequenceNumber), report.Error)
		if report.Level == slog.LevelInfo.String() {
			r.log.busy = cmp.Or(r.log.busy, text)
		} else {
			r.log.item = cmp.Or(r.log.item, text)
		}
		r.log.items = true
		return
	case "lock granted":
		r.granted[report.Key] = true
		return
	case "lock":
		delete(r.granted, report.Key)
	default:
		return
	}
	if report.Outcome == "" {
		return
	}
	r.found = true
	r.log.runs++
	switch report.Outcome {
	case "ok", "replayed":
		delete(r.log.lost, report.Key)
	case "acquired", "released":
	case "covered":
		r.covered = append(r.covered, covered{report: report, environment: r.environment, sent: r.sent, at: time.Now()})
	case "busy":
		r.log.busy = cmp.Or(r.log.busy, report.Error, "its lock is busy")
	default:
		r.log.cause = cmp.Or(r.log.cause, report.Error)
		if slices.Contains(noLock, report.Outcome) {
			r.log.lost[report.Key] = report.Outcome
		}
	}
	if report.AcquiredAt.IsZero() || !slices.Contains(workRan, report.Outcome) {
		return
	}
	report.MaxHolders = max(1, report.MaxHolders)
	end := report.AcquiredAt.Add(time.Duration(report.HoldMS * float64(time.Millisecond)))
	r.sections = append(r.sections, section{report: report, environment: r.environment, event: r.event, start: report.AcquiredAt, end: end})
}

// holds says that a lock was granted since the last event was sent, and its run has not ended.
func (r *reports) holds() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.granted) > 0
}

// markOverlaps marks the sections, sorted by start, that ran while more of the same key did than
// one of them allows. It returns the most of one key at once.
//
// The lease of a frozen process ends without the process. No lock can prevent what
// the process still does between its wake-up and the moment at which the guard
// says that the lease is lost: the fence has to refuse that. So the section of a
// lost lease ends with the freeze, and next says what came of it later.
func markOverlaps(sections []section, faults []fault) (most int) {
	for i := range sections {
		s := &sections[i]
		s.until, s.thawed, s.overlaps, s.next = s.end, time.Time{}, false, nil
		frozen := slices.IndexFunc(faults, func(f fault) bool {
			return f.kind == freeze && f.environment == s.environment && f.from.Before(s.end) && s.start.Before(f.to)
		})
		if frozen < 0 || s.Outcome != "lost" {
			continue
		}
		s.until, s.thawed = slices.MaxFunc([]time.Time{s.start, faults[frozen].from}, time.Time.Compare), faults[frozen].to
		next := slices.IndexFunc(sections, func(other section) bool {
			same := other.Seat == s.Seat || min(other.MaxHolders, s.MaxHolders) == 1
			return other.Key == s.Key && same && other.start.After(s.until) && other.start.Before(s.end)
		})
		if next >= 0 {
			s.next = &sections[next]
		}
	}
	running := map[string][]int{} // of each key, the sections that have begun and not ended
	for i := range sections {
		s := &sections[i]
		now := slices.DeleteFunc(running[s.Key], func(j int) bool { return !s.start.Before(sections[j].until) })
		now = append(now, i)
		limit := s.MaxHolders
		for _, j := range now {
			limit = min(limit, sections[j].MaxHolders)
		}
		for _, j := range now {
			sections[j].overlaps = sections[j].overlaps || len(now) > limit
		}
		running[s.Key], most = now, max(most, len(now))
	}
	return most
}
