package main

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"
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
	panelFoot    = 58  // its axis and the space below
)

// timeline draws both halves: a lane for each environment, a bar for each
// critical section.
func timeline(without, with half) string {
	p := &picture{}
	height := headHeight + p.panelHeight(without) + p.panelHeight(with)
	total := len(with.attempts)
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="t d">`+"\n", pictureWidth, height)
	p.printf("<title id=\"t\">%d withdrawals from one account by %d Lambda environments, without and with a lock</title>\n", total, with.environments)
	p.printf("<desc id=\"d\">Without a lock %d critical sections overlap another and %d updates are lost. With lambdalock %d overlap and %d are lost.</desc>\n",
		without.overlaps, without.lost(), with.overlaps, with.lost())
	p.b.WriteString(style)
	p.printf("<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", pictureWidth, height)
	p.text(leftMargin, 42, "h1", fmt.Sprintf("%d withdrawals from one account, %d Lambda environments at once", total, with.environments))
	p.text(leftMargin, 66, "sub", "Each lane is one environment, a process of its own. Each bar is one critical section: read the balance, call a payment provider, write the balance.")
	p.legend(leftMargin, 92)
	span := max(without.span(), with.span()) // one scale, so that bars can be compared
	p.panel(headHeight, span, without)
	p.panel(headHeight+p.panelHeight(without), span, with)
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
.good { fill: #2a7f9e; } .bad { fill: #d1242f; fill-opacity: .82; } .wait { stroke: #b9c2d0; stroke-width: 2; } .verdict-bad { fill: #c01c28; } .verdict-good { fill: #1f6f8b; }
@media (prefers-color-scheme: dark) {
svg { background: #12161f; } .page { fill: #12161f; } .lane { fill: #1b212d; } .grid { stroke: #2b3342; } .axis { stroke: #6b768a; }
text { fill: #e8ecf3; } .sub, .tick, .env { fill: #9aa5b8; }
.good { fill: #5cc0e0; } .bad { fill: #ff5c66; } .wait { stroke: #465064; } .verdict-bad { fill: #ff7b83; } .verdict-good { fill: #7fd0ea; }
}
</style>
`

type picture struct{ b strings.Builder }

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

func (p *picture) text(x, y int, class, s string) {
	p.printf(`<text x="%d" y="%d" class="%s">%s</text>`+"\n", x, y, class, escape(s))
}

func (p *picture) legend(x, y int) {
	for _, l := range []struct{ class, text string }{
		{"good", "alone"}, {"bad", "overlaps another"}, {"wait", "waiting for the lock"},
	} {
		if l.class == "wait" {
			p.printf(`<line class="wait" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", x, y-5, x+24, y-5)
		} else {
			p.printf(`<rect class="%s" x="%d" y="%d" width="24" height="12" rx="2"/>`+"\n", l.class, x, y-11)
		}
		p.text(x+32, y, "sub", l.text)
		x += 32 + 7*len(l.text) + 32
	}
}

func (p *picture) panelHeight(h half) int { return panelHead + h.environments*laneHeight + panelFoot }

func (p *picture) panel(top int, span time.Duration, h half) {
	verdict, class := fmt.Sprintf("%d of %d updates lost", h.lost(), h.succeeded), "verdict-good"
	if h.lost() != 0 || h.overlaps > 0 {
		class = "verdict-bad"
	}
	p.printf(`<text x="%d" y="%d" class="h2">%s: <tspan class="%s">%s, %d critical sections overlap</tspan> <tspan class="sub" font-weight="400">in %s</tspan></text>`+"\n",
		leftMargin, top+28, escape(upperFirst(h.title)), class, escape(verdict), h.overlaps, seconds(h.took))

	x := func(t time.Time) float64 {
		return leftMargin + plotWidth*float64(t.Sub(h.began))/float64(span)
	}
	lanes := top + panelHead
	bottom := lanes + h.environments*laneHeight
	for i := range h.environments {
		y := lanes + i*laneHeight
		p.printf(`<rect class="lane" x="%d" y="%d" width="%d" height="%d" rx="3"/>`+"\n", leftMargin, y+2, plotWidth, laneHeight-4)
		p.text(leftMargin-12, y+laneHeight/2+4, "env", fmt.Sprintf("env %d", i+1))
	}
	step := tickStep(span)
	for t := time.Duration(0); t <= span; t += step {
		at := x(h.began.Add(t))
		p.printf(`<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n", at, lanes, at, bottom)
		p.printf(`<text class="tick" x="%.1f" y="%d">%s</text>`+"\n", at, bottom+20, tickLabel(t, step))
	}
	p.printf(`<line class="axis" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", leftMargin, bottom, leftMargin+plotWidth, bottom)

	for _, s := range h.sections {
		middle := lanes + s.environment*laneHeight + laneHeight/2
		start := x(s.start)
		// Without a lock nobody waits: a late start is the machine's own.
		if s.fence > 0 && !s.waiting.IsZero() && s.start.Sub(s.waiting) > span/1000 {
			p.printf(`<line class="wait" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n", x(s.waiting), middle, start, middle)
		}
		class := "good"
		if s.overlaps {
			class = "bad"
		}
		p.printf(`<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="1.5"><title>%s</title></rect>`+"\n",
			class, start, middle-barHeight/2, max(1.2, x(s.end)-start), barHeight, escape(s.describe(h.began)))
	}
}

// span is the time until the last section ends.
func (h half) span() time.Duration {
	span := time.Millisecond
	for _, s := range h.sections {
		span = max(span, s.end.Sub(h.began))
	}
	return span
}

func (s section) describe(began time.Time) string {
	text := fmt.Sprintf("env %d, %s to %s", s.environment+1, milliseconds(s.start.Sub(began)), milliseconds(s.end.Sub(began)))
	if s.fence > 0 {
		text += fmt.Sprintf(", fence %d", s.fence)
	}
	if s.overlaps {
		text += ", overlaps another"
	}
	return text + ", request " + s.requestID
}

// tickStep is 1, 2 or 5 times a power of ten, for 5 to 12 ticks.
func tickStep(span time.Duration) time.Duration {
	step := time.Millisecond
	for {
		for _, f := range []time.Duration{1, 2, 5} {
			if span/(step*f) <= 11 {
				return step * f
			}
		}
		step *= 10
	}
}

func tickLabel(t, step time.Duration) string {
	if step < 100*time.Millisecond {
		return fmt.Sprintf("%d ms", t.Milliseconds())
	}
	if step < time.Second {
		return fmt.Sprintf("%.1f s", t.Seconds())
	}
	return fmt.Sprintf("%.0f s", t.Seconds())
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}
