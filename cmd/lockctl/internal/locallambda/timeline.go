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
	panelHead    = 46  // a panel's own title
	rowsHeight   = 22  // its rows of --after
	panelFoot    = 58  // its axis and the space below
)

// timeline draws the phases: a lane for each environment, a bar for each critical
// section.
func timeline(function string, phases []phase) string {
	p := &picture{}
	height, span := headHeight, time.Millisecond // one scale, so that bars can be compared
	var described []string
	for _, of := range phases {
		height += p.panelHeight(of)
		span = max(span, of.span())
		described = append(described, upperFirst(of.title)+" "+of.summary()+".")
	}
	last := phases[len(phases)-1]
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="t d">`+"\n", pictureWidth, height)
	title := fmt.Sprintf("%d events for %s, %d Lambda environments at once", len(last.attempts), function, last.environments)
	p.printf("<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n", escape(title), escape(strings.Join(described, " ")))
	p.b.WriteString(style)
	p.printf("<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", pictureWidth, height)
	p.text(leftMargin, 42, "h1", title)
	p.text(leftMargin, 66, "sub", "Each lane is one environment, a process of its own. Each bar is one critical section: from the start (with the lock: its grant) to the end of the work.")
	p.legend(leftMargin, 92, phases)
	top := headHeight
	for _, of := range phases {
		p.panel(top, span, of)
		top += p.panelHeight(of)
	}
	p.b.WriteString("</svg>\n")
	return p.b.String()
}

// style makes the picture stand alone, on light and on dark pages. The two
// kinds of bars differ in lightness too, for eyes that do not tell red from
// green.
const style = `<style>
svg { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
svg { background: #ffffff; } .page { fill: #ffffff; } .lane { fill: #f3f5f8; } .grid { stroke: #dde2ea; } .axis { stroke: #8a94a6; }
text { fill: #1d2433; } .sub, .tick, .env { fill: #5a6579; } .tick, .env { font-size: 12px; } .env { text-anchor: end; } .tick { text-anchor: middle; }
.h1 { font-size: 22px; font-weight: 650; } .h2 { font-size: 16px; font-weight: 650; }
.good { fill: #2a7f9e; } .bad { fill: #d1242f; fill-opacity: .82; } .lost { fill: #b7791f; } .frozen { fill: #7c5cbf; fill-opacity: .3; } .killed { stroke: #1d2433; stroke-width: 2.5; } .wait { stroke: #b9c2d0; stroke-width: 2; } .verdict-bad { fill: #c01c28; } .verdict-good { fill: #1f6f8b; }
@media (prefers-color-scheme: dark) {
svg { background: #12161f; } .page { fill: #12161f; } .lane { fill: #1b212d; } .grid { stroke: #2b3342; } .axis { stroke: #6b768a; }
text { fill: #e8ecf3; } .sub, .tick, .env { fill: #9aa5b8; }
.good { fill: #5cc0e0; } .bad { fill: #ff5c66; } .lost { fill: #e0a94a; } .frozen { fill: #b39ddb; fill-opacity: .35; } .killed { stroke: #e8ecf3; } .wait { stroke: #465064; } .verdict-bad { fill: #ff7b83; } .verdict-good { fill: #7fd0ea; }
}
</style>
`

type picture struct{ b strings.Builder }

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

func (p *picture) text(x, y int, class, s string) {
	p.printf(`<text x="%d" y="%d" class="%s">%s</text>`+"\n", x, y, class, escape(s))
}

// legend explains what is in the picture.
func (p *picture) legend(x, y int, phases []phase) {
	has := func(is func(phase) bool) bool { return slices.ContainsFunc(phases, is) }
	good, bad := "alone", "overlaps another of the same key"
	if has(phase.several) {
		good, bad = "no more of the same key than its lock allows", "beside more"
	}
	for _, l := range []struct {
		class, text string
		shown       bool
	}{
		{"good", good, true},
		{"bad", bad, true},
		{"wait", "waiting for the lock", true},
		{"lost", "its lease was lost", has(func(p phase) bool { return p.lost > 0 })},
		{"frozen", "frozen", has(func(p phase) bool { return p.done(freeze) > 0 })},
		{"killed", "killed", has(func(p phase) bool { return p.done(kill) > 0 })},
	} {
		switch {
		case !l.shown:
			continue
		case l.class == "wait":
			p.printf(`<line class="%s" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", l.class, x, y-5, x+24, y-5)
		case l.class == "killed":
			p.cross(float64(x+12), y-5)
		default:
			p.printf(`<rect class="%s" x="%d" y="%d" width="24" height="12" rx="2"/>`+"\n", l.class, x, y-11)
		}
		p.text(x+32, y, "sub", l.text)
		x += 32 + 7*len(l.text) + 24
	}
}

// cross is the end of a process.
func (p *picture) cross(x float64, y int) {
	p.printf(`<path class="killed" d="M%.1f %dl10 10m0 -10l-10 10"/>`+"\n", x-5, y-5)
}

func (p *picture) panelHeight(of phase) int {
	height := panelHead + of.environments*laneHeight + panelFoot
	if len(of.rows) > 0 {
		height += rowsHeight
	}
	return height
}

// summary is what became of a phase.
func (p phase) summary() string {
	text := fmt.Sprintf("%d of %d critical sections overlap", p.overlapping, len(p.sections))
	if p.several() {
		text = fmt.Sprintf("%d of %d critical sections beside more than their lock allows", p.overlapping, len(p.sections))
	}
	if !p.reported {
		text = "nothing is known of critical sections"
	}
	if n := p.failed(); n > 0 {
		text += fmt.Sprintf(", %d events failed", n)
	}
	if n := len(p.late); n > 0 && !p.fenced {
		text += fmt.Sprintf(", %d returned success late", n)
	}
	return text
}

func (p *picture) panel(top int, span time.Duration, of phase) {
	class := "verdict-good"
	if of.overlapping > 0 || of.failed() > 0 || len(of.late) > 0 && !of.fenced {
		class = "verdict-bad"
	}
	p.printf(`<text x="%d" y="%d" class="h2">%s: <tspan class="%s">%s</tspan> <tspan class="sub" font-weight="400">in %s</tspan></text>`+"\n",
		leftMargin, top+28, escape(upperFirst(of.title)), class, escape(of.summary()), seconds(of.took))
	lanes := top + panelHead
	if len(of.rows) > 0 {
		var texts []string
		for _, r := range of.rows {
			texts = append(texts, r.name+": "+r.value)
		}
		class := "sub"
		if of.afterErr != nil {
			class = "verdict-bad"
		}
		p.text(leftMargin, top+50, class, cut(strings.Join(texts, ", "), 200))
		lanes += rowsHeight
	}

	x := func(t time.Time) float64 {
		return leftMargin + plotWidth*float64(t.Sub(of.began))/float64(span)
	}
	bottom := lanes + of.environments*laneHeight
	for i := range of.environments {
		y := lanes + i*laneHeight
		p.printf(`<rect class="lane" x="%d" y="%d" width="%d" height="%d" rx="3"/>`+"\n", leftMargin, y+2, plotWidth, laneHeight-4)
		p.text(leftMargin-12, y+laneHeight/2+4, "env", fmt.Sprintf("env %d", i+1))
	}
	for i := range ticks {
		t := span * time.Duration(i) / ticks
		at := x(of.began.Add(t))
		p.printf(`<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n", at, lanes, at, bottom)
		p.printf(`<text class="tick" x="%.1f" y="%d">%s</text>`+"\n", at, bottom+20, milliseconds(t))
	}
	p.printf(`<line class="axis" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", leftMargin, bottom, leftMargin+plotWidth, bottom)

	for _, s := range of.sections {
		middle := lanes + s.environment*laneHeight + laneHeight/2
		if !s.waiting.IsZero() && s.start.Sub(s.waiting) > span/1000 {
			p.printf(`<line class="wait" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n", x(s.waiting), middle, x(s.start), middle)
		}
		class := "good"
		switch {
		case s.overlaps:
			class = "bad"
		case s.outcome == "lost":
			class = "lost"
		}
		bar := func(from, to time.Time) {
			p.printf(`<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="1.5"><title>%s</title></rect>`+"\n",
				class, x(from), middle-barHeight/2, max(1.2, x(to)-x(from)), barHeight, escape(s.describe(of.began)))
		}
		bar(s.start, s.until)
		if !s.thawed.IsZero() {
			bar(s.thawed, s.end) // which may be before
		}
	}
	for _, f := range of.faults {
		y := lanes + f.environment*laneHeight
		if f.kind == kill {
			p.cross(x(f.from), y+laneHeight/2)
			continue
		}
		p.printf(`<rect class="frozen" x="%.1f" y="%d" width="%.1f" height="%d"><title>frozen, %s to %s</title></rect>`+"\n",
			x(f.from), y+1, max(1.2, x(f.to)-x(f.from)), laneHeight-2, milliseconds(f.from.Sub(of.began)), milliseconds(f.to.Sub(of.began)))
	}
}

// span is the time until the last section, or fault, ends.
func (p phase) span() time.Duration {
	span := time.Millisecond
	for _, s := range p.sections {
		span = max(span, s.end.Sub(p.began))
	}
	for _, f := range p.faults {
		span = max(span, f.to.Sub(p.began))
	}
	return span
}

func (s section) describe(began time.Time) string {
	text := fmt.Sprintf("env %d, %s, %s to %s, fence %d, seat %d, %s", s.environment+1, s.key, milliseconds(s.start.Sub(began)), milliseconds(s.end.Sub(began)), s.fence, s.seat, s.outcome)
	if s.overlaps {
		text += ", overlaps another"
	}
	if s.late() {
		text += fmt.Sprintf(", returned success %s after the next had begun", milliseconds(s.end.Sub(s.next.start)))
	}
	return text + ", request " + s.requestID
}

// ticks is how many times stand at the axis.
const ticks = 8

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(exit.Visible(s))) // a Builder never fails
	return b.String()
}
