package locallambda

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// zero is the start of every made-up phase.
var zero = time.Date(2026, 11, 21, 4, 31, 7, 0, time.UTC)

func at(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }

func made(key string, start, end int) section {
	return section{report: report{Key: key, Outcome: "ok", MaxHolders: 1}, start: at(start), end: at(end)}
}

func TestMarkOverlaps(t *testing.T) {
	for name, c := range map[string]struct {
		holders int      // who may be at work at once, as far as each is concerned
		writers []int    // of spans: those that have to be alone
		spans   [][2]int // milliseconds, sorted by start
		most    int      // at once
		marked  []bool
	}{
		"one after another":      {holders: 1, spans: [][2]int{{0, 10}, {10, 20}, {25, 30}}, most: 1, marked: []bool{false, false, false}},
		"two at once":            {holders: 1, spans: [][2]int{{0, 10}, {9, 20}, {20, 30}}, most: 2, marked: []bool{true, true, false}},
		"inside a long one":      {holders: 1, spans: [][2]int{{0, 100}, {10, 20}, {30, 40}, {100, 110}}, most: 2, marked: []bool{true, true, true, false}},
		"the same start":         {holders: 1, spans: [][2]int{{0, 10}, {0, 10}}, most: 2, marked: []bool{true, true}},
		"nothing of a long past": {holders: 1, spans: [][2]int{{0, 50}, {10, 20}, {60, 70}}, most: 2, marked: []bool{true, true, false}},
		"two of two":             {holders: 2, spans: [][2]int{{0, 10}, {5, 15}, {10, 20}}, most: 2, marked: []bool{false, false, false}},
		"three":                  {holders: 2, spans: [][2]int{{0, 10}, {5, 15}, {9, 20}, {15, 30}}, most: 3, marked: []bool{true, true, true, false}},
		"the first is no more":   {holders: 2, spans: [][2]int{{0, 10}, {0, 40}, {20, 30}, {25, 35}}, most: 3, marked: []bool{false, true, true, true}},
		"readers, a writer":      {holders: 64, writers: []int{2}, spans: [][2]int{{0, 20}, {5, 10}, {20, 30}, {30, 40}}, most: 2, marked: []bool{false, false, false, false}},
		"a writer beside two":    {holders: 64, writers: []int{2}, spans: [][2]int{{0, 20}, {5, 20}, {19, 30}, {40, 50}}, most: 3, marked: []bool{true, true, true, false}},
		"a reader beside one":    {holders: 64, writers: []int{0}, spans: [][2]int{{0, 20}, {19, 30}, {25, 40}}, most: 2, marked: []bool{true, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var all []section
			for i, s := range c.spans {
				one := made("a", s[0], s[1])
				if !slices.Contains(c.writers, i) {
					one.MaxHolders = c.holders
				}
				all = append(all, one, made(fmt.Sprint("another key ", i), s[0], s[1]))
			}
			assert.Equal(t, c.most, markOverlaps(all, nil))
			for i, s := range all {
				assert.Equal(t, i%2 == 0 && c.marked[i/2], s.overlaps, "section %d: only one of the same key counts", i)
			}
		})
	}
}

// Only the loss of a lease in a freeze is excused, and only what comes after the
// begin of the freeze.
func TestMarkOverlapsWithFreezes(t *testing.T) {
	frozen := func(environment, from, to int) fault {
		return fault{kind: freeze, environment: environment, from: at(from), to: at(to)}
	}
	for name, c := range map[string]struct {
		outcome        string
		faults         []fault
		next           [2]int // a section of the same key, elsewhere
		overlaps, late bool
	}{
		"the next holder has ended before the wake-up":       {"lost", []fault{frozen(0, 10, 90)}, [2]int{50, 60}, false, true},
		"the next holder works at the wake-up":               {"lost", []fault{frozen(0, 10, 90)}, [2]int{50, 95}, false, true},
		"the next holder comes after the wake-up":            {"lost", []fault{frozen(0, 10, 90)}, [2]int{92, 99}, false, true},
		"the next holder comes after the end":                {"lost", []fault{frozen(0, 10, 90)}, [2]int{100, 110}, false, false},
		"the next holder came before the freeze":             {"lost", []fault{frozen(0, 10, 90)}, [2]int{5, 20}, true, false},
		"frozen between the grant and its report":            {"lost", []fault{frozen(0, -1, 90)}, [2]int{50, 60}, false, true},
		"the freeze was another environment's":               {"lost", []fault{frozen(1, 10, 90)}, [2]int{50, 60}, true, false},
		"the freeze was over":                                {"lost", []fault{frozen(0, -20, -10)}, [2]int{50, 60}, true, false},
		"killed, not frozen":                                 {"lost", []fault{{kind: kill, from: at(10), to: at(90)}}, [2]int{50, 60}, true, false},
		"lost without a fault":                               {"lost", nil, [2]int{50, 60}, true, false},
		"frozen, and the guard says that it has the lease":   {"ok", []fault{frozen(0, 10, 90)}, [2]int{50, 60}, true, false},
		"frozen, and the guard says that the work has ended": {"error", []fault{frozen(0, 10, 90)}, [2]int{50, 60}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			first, next := made("a", 0, 100), made("a", c.next[0], c.next[1])
			first.Outcome, first.WorkOK, next.environment = c.outcome, c.outcome == "lost", 1
			all := []section{first, next}
			markOverlaps(all, c.faults)
			assert.Equal(t, []bool{c.overlaps, c.overlaps}, []bool{all[0].overlaps, all[1].overlaps})
			assert.Equal(t, []bool{c.late, false}, []bool{all[0].late(), all[1].late()})
		})
	}
	for seat, late := range map[[2]int]bool{{1, 2}: false, {0, 2}: true, {1, 1}: true} { // of the next one: its seat, and how many it allows
		first, next := made("a", 0, 100), made("a", 50, 60)
		first.Outcome, first.MaxHolders, first.WorkOK = "lost", 2, true
		next.Seat, next.MaxHolders = seat[0], seat[1]
		all := []section{first, next}
		markOverlaps(all, []fault{frozen(0, 10, 90)})
		assert.Equal(t, late, all[0].late(), seat)
		all[0].WorkOK = false
		assert.False(t, all[0].late(), "its work returned an error")
	}
}

func TestReports(t *testing.T) {
	r := newReports(3)
	r.begin(5)
	read := func(line string) { r.read([]byte(line)) }
	for _, line := range []string{
		`{"level":"INFO","message":"something else","outcome":"ok","acquired_at":"2026-11-21T04:31:07.05Z"}`,
		`{"level":"INFO","message":"lock"}`,
		`START RequestId: r-3`, ``,
	} {
		read(line)
	}
	assert.False(t, r.found)
	// Neither a busy run nor a lease that outlives its run has a critical section.
	read(`{"level":"INFO","message":"lock","requestId":"r-2","key":"account/7","outcome":"busy","wait_ms":1000,"hold_ms":0,"fence":0,"calls":3}`)
	read(`{"level":"INFO","message":"lock","requestId":"r-2","key":"account/7","outcome":"acquired","hold_ms":0,"fence":7,"acquired_at":"2026-11-21T04:31:07.05Z"}`)
	assert.True(t, r.found)
	read(`{"level":"INFO","message":"lock","requestId":"r-1","key":"account/7","outcome":"ok","hold_ms":20.25,"fence":7,"max_holders":3,"seat":2,"acquired_at":"2026-11-21T04:31:07.05Z"}`)
	read(`{"level":"WARN","msg":"lock","requestId":"r-4","key":"account/8","outcome":"lost","hold_ms":1,"fence":8,"work_ok":true,"acquired_at":"2026-11-21T04:31:07.05Z"}`)
	assert.Equal(t, []section{
		{
			report:      report{Message: "lock", Level: "INFO", RequestID: "r-1", Key: "account/7", Outcome: "ok", AcquiredAt: at(50), HoldMS: 20.25, Fence: 7, Seat: 2, MaxHolders: 3},
			environment: 3, event: 5, start: at(50), end: at(70).Add(250 * time.Microsecond),
		},
		{
			report:      report{Msg: "lock", Level: "WARN", RequestID: "r-4", Key: "account/8", Outcome: "lost", AcquiredAt: at(50), HoldMS: 1, Fence: 8, MaxHolders: 1, WorkOK: true},
			environment: 3, event: 5, start: at(50), end: at(51),
		},
	}, r.sections)
	assert.Equal(t, map[string]string{"account/8": "lost"}, r.said().lost)

	r.begin(6)
	read(`{"level":"INFO","message":"lock","requestId":"r-6","key":"account/8","outcome":"covered","wait_ms":2,"hold_ms":0,"fence":0,"calls":1,"state":"held","error":"another run waits"}`)
	require.Len(t, r.covered, 1)
	assert.Equal(t, []string{"r-6", "account/8"}, []string{r.covered[0].RequestID, r.covered[0].Key})
	assert.Equal(t, covered{report: r.covered[0].report, environment: 3, sent: r.sent, at: r.covered[0].at}, r.covered[0])
	assert.Equal(t, said{runs: 1, lost: map[string]string{}}, r.said(), "nothing is wrong")

	r.log.lost["account/8"] = "lost"
	read(`{"level":"INFO","message":"lock granted","requestId":"r-5","key":"account/8","fence":9}`)
	assert.True(t, r.holds())
	read(`{"level":"INFO","message":"lock","requestId":"r-5","key":"account/8","outcome":"ok","hold_ms":1,"fence":9,"acquired_at":"2026-11-21T04:31:09Z"}`)
	assert.False(t, r.holds())
	assert.Empty(t, r.said().lost, "it was repeated with success")
}

// madeUp is a phase of events that each had a busy answer first.
func madeUp(title string, spans ...[2]int) phase {
	p := phase{unlocked: title == "without the lock", environments: 2, began: zero, reported: true}
	for i, s := range spans {
		p.attempts = append(p.attempts, attempt{sent: at(s[0] - 10), answered: at(s[1] + 1000), busy: 1})
		one := made("account/7", s[0], s[1])
		one.environment, one.event, one.RequestID = i%2, i+1, fmt.Sprint("r-", i)
		if title == "with the lock" {
			one.Fence = int64(i + 1)
		}
		p.sections = append(p.sections, one)
	}
	p.finish()
	return p
}

// allow sets how many sections of a key may run at once.
func (p *phase) allow(n int) {
	for i := range p.sections {
		p.sections[i].MaxHolders = n
	}
	p.finish()
}

// Only the first section of an event has waited since the event was sent, and only for a lock.
func TestWaiting(t *testing.T) {
	p := madeUp("with the lock", [2]int{20, 40}, [2]int{40, 60})
	assert.Equal(t, at(10), p.sections[0].waiting, "the wait counts from the first try")
	p.sections[1].event, p.sections[1].waiting = 1, time.Time{}
	p.finish()
	assert.Zero(t, p.sections[1].waiting)

	p = madeUp("without the lock", [2]int{20, 40}, [2]int{30, 60})
	p.allow(lockstore.MaxHolders)
	assert.Zero(t, p.sections[0].waiting)
	assert.Equal(t, []int{2, 2}, []int{p.most, p.overlapping}, "so many are allowed only as without the lock")
	assert.Empty(t, p.withoutLock())
	p.allow(3)
	assert.Contains(t, p.withoutLock(), "WithMaxHolders")
}

// TestPrograms and TestRunsThatFail have the other verdicts.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		spans  [][2]int
		change func(p *phase)
		says   string // "" is nothing
	}{
		{[][2]int{{20, 40}, {40, 60}}, func(*phase) {}, ""},
		{[][2]int{{20, 40}, {39, 60}}, func(*phase) {}, "with the lock, 2 critical sections overlapped others of the same key, more than their lock allows"},
		{[][2]int{{20, 40}, {25, 60}, {30, 50}}, func(p *phase) { p.allow(3) }, ""},
		{[][2]int{{20, 40}, {40, 60}}, func(p *phase) { p.covered = []covered{{report: report{Key: "account/7"}, sent: at(39)}} }, ""},
		{[][2]int{{20, 40}, {40, 60}}, func(p *phase) {
			p.covered = []covered{{report: report{Key: "account/7", RequestID: "r-9"}, sent: at(41)}}
		},
			`with the lock, an event was covered, and no run for its key "account/7" that began later ended well: request r-9`},
		{[][2]int{{20, 40}, {40, 60}}, func(p *phase) {
			p.covered = []covered{{report: report{Key: "account/8", RequestID: "r-9"}, sent: at(10)}}
		},
			`with the lock, an event was covered, and no run for its key "account/8" that began later ended well: request r-9`},
		{[][2]int{{20, 40}, {40, 60}}, func(p *phase) { p.sections = nil }, "with the lock, no run got a lock, so nothing is known of overlaps"},
		{[][2]int{{20, 40}, {40, 60}}, func(p *phase) { p.planned, p.faults = 3, []fault{{}} }, "with the lock, only 1 of 3 faults found an event under way; send more events (-n)"},
	} {
		p := madeUp("with the lock", c.spans...)
		c.change(&p)
		p.finish()
		if err := p.verdict(); c.says == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, c.says)
		}
	}
	silent := phase{attempts: []attempt{{failed: "HTTP 500"}}}
	silent.finish()
	require.NotContains(t, silent.verdict().Error(), "no report line", "a function that does not work is told first")
}
