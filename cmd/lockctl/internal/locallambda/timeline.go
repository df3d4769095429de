package locallambda

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

// Sizes of the picture, in its own units.
const (
	pictureWidth = 1200
	leftMargin   = 84
	rightMargin  = 28
	plotWidth    = pictureWidth - leftMargin - rightMargin
	laneHeight   = 26
	barHeight    = 16
	headHeight   = 118 // title and legend
	panelHead    = 68  // a panel's own title, and its rows of --after
	panelFoot    = 58  // its axis and the space below
	ticks        = 8   // at the axis
)

// timeline draws the phases: a lane for each environment, a bar for each critical
// section.
func timeline(function string, phases []phase) string {
	p := &picture{span: time.Millisecond}
	height := headHeight
	var described []string
	for _, of := range phases {
		height += of.panelHeight()
		p.span = max(p.span, of.took)
		described = append(described, upperFirst(of.title())+" "+of.summary()+".")
	}
	last := phases[len(phases)-1]
	title := fmt.Sprintf("%d events for %s, %d Lambda environments at once", len(last.attempts), function, last.environments)
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="t d">`+"\n", pictureWidth, height)
	p.printf("<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n%s", escape(title), escape(strings.Join(described, " ")), style)
	p.rect("page", 0, 0, pictureWidth, height, "")
	p.text(leftMargin, 42, "h1", title)
	p.text(leftMargin, 66, "sub", "Each lane is one environment, a process of its own. Each bar is one critical section: from the start (with the lock: its grant) to the end of the work.")
	p.legend(slices.ContainsFunc(phases, func(of phase) bool { return len(of.covered) > 0 }))
	top := headHeight
	for _, of := range phases {
		p.panel(top, of)
		top += of.panelHeight()
	}
	p.printf("</svg>\n")
	return p.String()
}

// style makes the picture stand alone, on light and on dark pages. The two
// kinds of bars differ in lightness too, for eyes that do not tell red from
// green.
const style = `<style>
svg { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
svg { background: #ffffff; } .page { fill: #ffffff; } .lane { fill: #f3f5f8; } .grid { fill: #dde2ea; } .axis { fill: #8a94a6; }
text { fill: #1d2433; } .sub, .tick, .env { fill: #5a6579; } .tick, .env { font-size: 12px; } .env { text-anchor: end; } .tick { text-anchor: middle; }
.h1 { font-size: 22px; font-weight: 650; } .h2 { font-size: 16px; font-weight: 650; }
.good { fill: #2a7f9e; } .bad { fill: #d1242f; fill-opacity: .82; } .lost { fill: #b7791f; } .frozen { fill: #7c5cbf; fill-opacity: .3; } .killed { fill: #1d2433; } .wait { fill: #b9c2d0; } .covered { fill: #2e8b57; } .verdict-bad { fill: #c01c28; } .verdict-good { fill: #1f6f8b; }
@media (prefers-color-scheme: dark) {
svg { background: #12161f; } .page { fill: #12161f; } .lane { fill: #1b212d; } .grid { fill: #2b3342; } .axis { fill: #6b768a; }
text { fill: #e8ecf3; } .sub, .tick, .env { fill: #9aa5b8; }
.good { fill: #5cc0e0; } .bad { fill: #ff5c66; } .lost { fill: #e0a94a; } .frozen { fill: #b39ddb; fill-opacity: .35; } .killed { fill: #e8ecf3; } .wait { fill: #465064; } .covered { fill: #7bd8a4; } .verdict-bad { fill: #ff7b83; } .verdict-good { fill: #7fd0ea; }
}
</style>
`

type picture struct {
	strings.Builder
	span time.Duration // until the last answer: one scale for all panels, so that bars can be compared
}

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

func (p *picture) text(x, y int, class, s string) {
	p.printf(`<text x="%d" y="%d" class="%s">%s</text>`+"\n", x, y, class, escape(s))
}

// rect draws all that is no text and no dot.
func (p *picture) rect(class string, x float64, y int, width float64, height int, inside string) {
	p.printf(`<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d">%s</rect>`+"\n", class, x, y, width, height, inside)
}

func (p *picture) legend(dots bool) {
	x, y := leftMargin, 92
	for _, l := range [...]struct{ class, text string }{
		{"good", "alone, or as its lock allows"}, {"bad", "overlaps others of the same key"}, {"wait", "waiting for the lock"},
		{"lost", "its lease was lost"}, {string(freeze), string(freeze)}, {string(kill), string(kill)},
	} {
		p.rect(l.class, float64(x), y-11, 24, 12, "")
		p.text(x+32, y, "sub", l.text)
		x += 32 + 7*len(l.text) + 24
	}
	if dots { // on a line of its own
		p.dot(leftMargin+12, y+15, "")
		p.text(leftMargin+32, y+20, "sub", "an event that is covered: it has no run of its own, because a run that begins later does its work, too")
	}
}

// dot draws an event that is covered.
func (p *picture) dot(x float64, y int, title string) {
	p.printf(`<circle class="covered" cx="%.1f" cy="%d" r="3"><title>%s</title></circle>`+"\n", x, y, escape(title))
}

func (p phase) panelHeight() int { return panelHead + p.environments*laneHeight + panelFoot }

func (p phase) summary() string {
	if !p.reported {
		return "nothing is known of critical sections"
	}
	text := fmt.Sprintf("%d of %d critical sections overlap", p.overlapping, len(p.sections))
	if len(p.covered) > 0 {
		text += fmt.Sprintf(", %d events are covered", len(p.covered))
	}
	return text
}

func (p *picture) panel(top int, of phase) {
	class := "verdict-good"
	if of.verdict() != nil {
		class = "verdict-bad"
	}
	p.printf(`<text x="%d" y="%d" class="h2">%s: <tspan class="%s">%s</tspan></text>`+"\n", leftMargin, top+28, escape(upperFirst(of.title())), class, escape(of.summary()))
	var rows []string
	for _, r := range of.rows {
		rows = append(rows, r.name+": "+r.value)
	}
	p.text(leftMargin, top+50, "sub", cut(strings.Join(rows, ", "), 200))

	x := func(t time.Time) float64 {
		return leftMargin + plotWidth*float64(t.Sub(of.began))/float64(p.span)
	}
	lane := func(environment int) int { return top + panelHead + environment*laneHeight }
	bottom := lane(of.environments)
	for i := range of.environments {
		p.rect("lane", leftMargin, lane(i)+2, plotWidth, laneHeight-4, "")
		p.text(leftMargin-12, lane(i)+laneHeight/2+4, "env", fmt.Sprintf("env %d", i+1))
	}
	for i := range ticks {
		at := p.span * time.Duration(i) / ticks
		p.rect("grid", x(of.began.Add(at)), lane(0), 1, bottom-lane(0), "")
		p.text(int(x(of.began.Add(at))), bottom+20, "tick", milliseconds(at))
	}
	p.rect("axis", leftMargin, bottom, plotWidth, 1, "")

	// The title is what a mouse shows.
	bar := func(class string, environment int, from, to time.Time, height int, title string) {
		p.rect(class, x(from), lane(environment)+(laneHeight-height)/2, max(1.2, x(to)-x(from)), height, "<title>"+escape(title)+"</title>")
	}
	for _, s := range of.sections {
		if !s.waiting.IsZero() && s.start.Sub(s.waiting) > p.span/1000 {
			bar("wait", s.environment, s.waiting, s.start, 2, "")
		}
		class := "good"
		switch {
		case s.overlaps:
			class = "bad"
		case s.Outcome == "lost":
			class = "lost"
		}
		title := fmt.Sprintf("env %d, %s, %s to %s, fence %d, seat %d, %s, request %s",
			s.environment+1, s.Key, milliseconds(s.start.Sub(of.began)), milliseconds(s.end.Sub(of.began)), s.Fence, s.Seat, s.Outcome, s.RequestID)
		bar(class, s.environment, s.start, s.until, barHeight, title)
		if !s.thawed.IsZero() {
			bar(class, s.environment, s.thawed, s.end, barHeight, title) // its end may be before
		}
	}
	for _, c := range of.covered {
		p.dot(x(c.at), lane(c.environment)+laneHeight/2, fmt.Sprintf("env %d, %s, %s, covered, request %s", c.environment+1, c.Key, milliseconds(c.at.Sub(of.began)), c.RequestID))
	}
	for _, f := range of.faults {
		title := fmt.Sprintf("%s, %s to %s", f.kind, milliseconds(f.from.Sub(of.began)), milliseconds(f.to.Sub(of.began)))
		bar(string(f.kind), f.environment, f.from, f.to, laneHeight-2, title)
	}
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(exit.Visible(s))) // a Builder never fails
	return b.String()
}
