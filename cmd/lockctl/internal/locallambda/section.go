package locallambda

import (
	"bytes"
	"cmp"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// section is one critical section: the time from the grant of a lock until the
// work has ended, as the function itself reports it.
type section struct {
	environment int
	requestID   string
	key         string
	outcome     string
	fence       int64
	seat        int
	start, end  time.Time

	waiting  time.Time // since when the client of its event waited; zero when not known
	parked   []parked  // the parts of this wait without a running function
	until    time.Time // end; for a lease that was lost in a freeze, the begin of the freeze
	thawed   time.Time // the end of such a freeze
	overlaps bool      // more sections of the key than may ran at the same time
	beside   bool      // it ran on after such a freeze, at the same time as another section with its key and seat
}

// workRan are the outcomes of a report whose work ran.
var workRan = []string{"ok", "error", "panic", "lost"}

// reports reads the log lines of one environment. It is the io.Writer that a
// lambdatest.Environment writes each whole line to.
type reports struct {
	environment int

	mu       sync.Mutex
	found    bool // one report line at least
	sections []section
	log      said
}

// said is what the function logged about its failures since the last event was sent.
type said struct {
	busy  bool            // a lock was busy
	cause string          // why a run of the guard failed otherwise, the first one
	items map[string]item // of a batch, by message id or sequence number
}

// item is why an item of a batch failed.
type item struct {
	busy  bool
	cause string
}

// begin forgets what was said before the next event.
func (r *reports) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = said{}
}

func (r *reports) said() said {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log
}

func (r *reports) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(`"lock"`)) || bytes.Contains(line, []byte(` failed"`)) {
		r.read(line)
	}
	return len(line), nil
}

func (r *reports) read(line []byte) {
	var report struct {
		Message    string    `json:"message"`
		Msg        string    `json:"msg"` // slog's own name
		RequestID  string    `json:"requestId"`
		Key        string    `json:"key"`
		Outcome    string    `json:"outcome"`
		AcquiredAt time.Time `json:"acquired_at"`
		HoldMS     float64   `json:"hold_ms"`
		Fence      int64     `json:"fence"`
		Seat       int       `json:"seat"`

		Level          string `json:"level"`
		Error          string `json:"error"`
		MessageID      string `json:"messageId"`      // of sqsbatch
		SequenceNumber string `json:"sequenceNumber"` // of stream
	}
	if json.Unmarshal(line, &report) != nil {
		return // the function's own business
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch cmp.Or(report.Message, report.Msg) {
	case "message failed", "record failed":
		if r.log.items == nil {
			r.log.items = map[string]item{}
		}
		// The adapters log a busy lock as Info, because nothing is wrong then.
		r.log.items[cmp.Or(report.MessageID, report.SequenceNumber)] = item{report.Level == slog.LevelInfo.String(), report.Error}
		return
	case "lock":
	default:
		return
	}
	if report.Outcome == "" {
		return
	}
	r.found = true
	switch report.Outcome {
	case "busy":
		r.log.busy = true
	case "ok":
	default:
		r.log.cause = cmp.Or(r.log.cause, report.Error)
	}
	if report.AcquiredAt.IsZero() || !slices.Contains(workRan, report.Outcome) {
		return
	}
	end := report.AcquiredAt.Add(time.Duration(report.HoldMS * float64(time.Millisecond)))
	r.sections = append(r.sections, section{
		environment: r.environment,
		requestID:   report.RequestID,
		key:         report.Key,
		outcome:     report.Outcome,
		fence:       report.Fence,
		seat:        report.Seat,
		start:       report.AcquiredAt,
		end:         end,
	})
}

// lastKey is the key of the newest section.
func (r *reports) lastKey() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sections) == 0 {
		return ""
	}
	return r.sections[len(r.sections)-1].key
}

// markOverlaps marks the sections, sorted by start, that ran while more than limit of the same
// key did. It returns the most of one key at once.
//
// The lease of a frozen process ends without the process. No lock can prevent what
// the process still does between its wake-up and the moment at which the guard
// says that the lease is lost: the fence has to refuse that. So the section of a
// lost lease ends with the freeze, and beside says what came of it later.
func markOverlaps(sections []section, faults []fault, limit int) (most int) {
	for i := range sections {
		s := &sections[i]
		s.until, s.thawed, s.overlaps = s.end, time.Time{}, false
		for _, f := range faults {
			during := f.from.Before(s.end) && s.start.Before(f.to)
			if during && f.kind == freeze && f.environment == s.environment && s.outcome == "lost" {
				s.until, s.thawed = later(s.start, f.from), f.to
				break
			}
		}
	}
	running := map[string][]int{} // of each key, the sections that have begun and not ended
	for i := range sections {
		s := &sections[i]
		now := slices.DeleteFunc(running[s.key], func(j int) bool { return !s.start.Before(sections[j].until) })
		now = append(now, i)
		for _, j := range now {
			sections[j].overlaps = sections[j].overlaps || len(now) > limit
		}
		running[s.key], most = now, max(most, len(now))
	}
	for i := range sections {
		s := &sections[i]
		s.beside = !s.thawed.IsZero() && slices.ContainsFunc(sections, func(other section) bool {
			return other.key == s.key && other.seat == s.seat && other.start.After(s.until) && other.start.Before(s.end) && s.thawed.Before(other.until)
		})
	}
	return most
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
