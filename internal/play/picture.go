package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/page"
	"github.com/lambdalock/lambdalock/lockstore"
)

// shownTime is what a picture shows at most.
const shownTime = 2 * time.Minute

// picture is what the page shows of the world at one moment. Times are milliseconds since 1970.
type picture struct {
	Start  int64          `json:"start"`
	Idle   bool           `json:"idle"` // nothing is left to do for any event
	Set    settings       `json:"set"`
	Keys   page.Snapshot  `json:"keys"`
	Lanes  []lane         `json:"lanes"`  // the environments, and then the parked events
	Frozen []bool         `json:"frozen"` // of each environment
	Slow   []bool         `json:"slow"`
	Facts  map[string]int `json:"facts"`
	Story  []line         `json:"story"` // the last 200 lines
}

// lane and span are those of page.js.
type lane struct {
	Name  string `json:"name"`
	Spans []span `json:"spans"`
}

type span struct {
	From  int64   `json:"from"`
	To    int64   `json:"to"`
	Kind  string  `json:"kind"`
	Text  string  `json:"text"`
	Level float64 `json:"level"`
}

func (w *world) picture() picture {
	now := time.Now()
	var all []lockstore.Status
	// A listing of memstore does not fail.
	_ = w.store.List(context.Background(), "", func(p lockstore.Page) error {
		all = append(all, p.Keys...)
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	p := picture{
		Start: w.start.UnixMilli(), Idle: w.idle(), Set: w.set, Story: w.story[max(0, len(w.story)-200):], Facts: w.facts(now),
		Keys: page.Of(all, now, 100, func(s string) string { return s }),
	}
	for _, e := range w.environments {
		p.Lanes = append(p.Lanes, lane{fmt.Sprintf("env %d", e.lane+1), []span{}})
		p.Frozen, p.Slow = append(p.Frozen, e.ice != nil), append(p.Slow, e.slow)
	}
	since := now.Add(-shownTime)
	for _, r := range w.runs {
		if r.ended.IsZero() || r.ended.After(since) {
			p.Lanes[r.lane].Spans = append(p.Lanes[r.lane].Spans, r.spans(now)...)
		}
	}
	for _, f := range w.faults {
		if f.to.IsZero() || f.to.After(since) {
			p.Lanes[f.lane].Spans = append(p.Lanes[f.lane].Spans, span{f.from.UnixMilli(), first(f.to, now).UnixMilli(), f.kind, f.kind, 0})
		}
	}
	if w.set.Lock == parked {
		p.Lanes = append(p.Lanes, lane{parked, w.parkedSpans(now)})
	}
	return p
}

// facts are what the page counts.
func (w *world) facts(now time.Time) map[string]int {
	all := map[string]int{
		"events":   len(w.events), // that have come
		"runs":     0,             // whose work began
		"overlaps": 0,             // of them, those beside which more were at work than may be
		"most":     w.most,        // runs of one key at work at once
		"covered":  0,             // events
		"wanted":   0,             // invoices of events that were answered as done or covered
		"stored":   0,             // invoices, by the resource
		"unserved": 0,             // events that were answered in another way
		"refused":  w.refused,     // writes with an old fence
		"paidWait": 0,             // milliseconds that environments have waited
	}
	count := func(what string, is bool) {
		if is {
			all[what]++
		}
	}
	for _, r := range w.runs {
		all["paidWait"] += int(first(r.began, r.ended, now).Sub(r.came).Milliseconds())
		count("runs", !r.began.IsZero())
		count("overlaps", r.overlaps)
		done, covered := r.outcome == "done", r.outcome == "LockCovered"
		count("covered", covered)
		count("wanted", covered || done && !r.reads)
		count("unserved", r.outcome != "" && r.outcome != parked && !done && !covered)
	}
	for _, e := range w.resource {
		all["stored"] += e.stored
	}
	return all
}

// first is the first of these times that has come.
func first(times ...time.Time) time.Time {
	return times[slices.IndexFunc(times, func(t time.Time) bool { return !t.IsZero() })]
}

// spans are the wait of a run, its work, and what it does after its context was cancelled.
func (r *run) spans(now time.Time) (all []span) {
	text := fmt.Sprintf("event %d, %s", r.number, keys[r.key])
	if r.fence != 0 {
		text += fmt.Sprintf(", fence %d, seat %d", r.fence, r.seat)
	}
	text += ": " + cmp.Or(r.outcome, "under way")
	add := func(kind string, from, to time.Time) {
		all = append(all, span{from.UnixMilli(), to.UnixMilli(), kind, text, 0})
	}
	add("wait", r.came, first(r.began, r.ended, now))
	if !r.began.IsZero() {
		kind := "held"
		if r.overlaps {
			kind = "overlap"
		}
		add(kind, r.began, first(r.lost, r.stopped, now))
	}
	if !r.lost.IsZero() {
		add("lost", r.lost, first(r.stopped, now))
	}
	return all
}

// parkedSpans says how many events are parked, over the time.
func (w *world) parkedSpans(now time.Time) []span {
	type step struct{ at, change int64 }
	steps, all := []step{}, []span{}
	for _, r := range w.runs {
		if r.outcome == parked {
			steps = append(steps, step{r.ended.UnixMilli(), 1}, step{max(r.ended.UnixMilli(), first(r.woken, now).UnixMilli()), -1})
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.change, a.change)) })
	count, most := int64(0), int64(1)
	for i, s := range steps {
		count += s.change
		if most = max(most, count); count > 0 {
			all = append(all, span{s.at, steps[i+1].at, "wait", fmt.Sprintf("%d parked events, for which no environment waits", count), float64(count)})
		}
	}
	for i := range all {
		all[i].Level /= float64(most)
	}
	return all
}
