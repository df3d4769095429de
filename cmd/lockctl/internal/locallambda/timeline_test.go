package locallambda

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// texts are those of a picture, which has to be well-formed XML.
func texts(t *testing.T, svg string) string {
	t.Helper()
	var all []string
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return strings.Join(all, "\n")
		}
		require.NoError(t, err)
		if c, ok := token.(xml.CharData); ok && strings.TrimSpace(string(c)) != "" {
			all = append(all, string(c))
		}
	}
}

func TestTimeline(t *testing.T) {
	phases := twoPhases()
	svg := timeline("withdraw", phases)
	all := texts(t, svg)
	for _, want := range []string{
		"4 events for withdraw, 2 Lambda environments at once",
		"Without the lock: \n3 of 4 critical sections overlap",
		"balance: 90.00, lost updates: 2",
		"With the lock: \n0 of 4 critical sections overlap",
		"balance: 80.00, lost updates: 0",
		"Without the lock 3 of 4 critical sections overlap. With the lock 0 of 4 critical sections overlap.",
		"overlaps another", "waiting for the lock", "env 1", "env 2",
		"0 ms", "10 ms", "fence 4", "request r-3",
	} {
		assert.Contains(t, all, want)
	}
	for _, absent := range []string{">frozen<", ">killed<", ">its lease was lost<"} {
		assert.NotContains(t, svg, absent)
	}
	legend := 1
	assert.Equal(t, phases[0].overlapping(), strings.Count(svg, `<rect class="bad"`)-legend, "the red bars are what is counted")
	assert.Equal(t, 1+4, strings.Count(svg, `<rect class="good"`)-legend)
	assert.Equal(t, 4, strings.Count(svg, `<rect class="lane"`), "a lane for each environment in both phases")
	assert.Contains(t, svg, "prefers-color-scheme: dark")
	assert.Equal(t, 1, strings.Count(svg, "http"), "the namespace is its only address: nothing is loaded")
	assert.NotContains(t, svg, "NaN")
}

func TestTimelineShowsFaults(t *testing.T) {
	p := madeUp("with the lock", [2]int{0, 100}, [2]int{50, 60}, [2]int{110, 120})
	p.sections[0].outcome = "lost"
	p.attempts[2].failed = "HTTP 500"
	p.faults = []fault{{kind: freeze, environment: 0, from: at(10), to: at(90)}, {kind: kill, environment: 1, from: at(105), to: at(106)}}
	p.finish()
	svg := timeline("withdraw", []phase{p})
	all := texts(t, svg)
	for _, want := range []string{"its lease was lost", "frozen, 10 ms to 90 ms", "killed", "lost, request r-0", "0 of 3 critical sections overlap, 1 events failed"} {
		assert.Contains(t, all, want)
	}
	legend := 1
	assert.Equal(t, 2, strings.Count(svg, `<rect class="lost"`)-legend, "before the freeze and after it, nothing in between")
	assert.Equal(t, 1, strings.Count(svg, `<rect class="frozen"`)-legend)
	assert.Equal(t, 1, strings.Count(svg, `<path class="killed"`)-legend)
	assert.Zero(t, strings.Count(svg, `<rect class="bad"`)-legend)
}

// A parked wait is dotted, and what is between it and the event, or its run, is not.
func TestTimelineShowsParkedRuns(t *testing.T) {
	p := madeUp("with the lock", [2]int{10, 20}, [2]int{100, 120})
	p.attempts[1].sent = at(5)
	p.attempts[1].parked = []parked{{from: at(15), to: at(60)}, {from: at(65), to: at(95), woken: true}}
	p.finish()
	svg := timeline("payout", []phase{p})
	all := texts(t, svg)
	assert.Contains(t, all, "parked: no function runs")
	assert.Contains(t, all, "parked for account/7, 15 ms to 60 ms, not woken\n")
	assert.Contains(t, all, "parked for account/7, 65 ms to 95 ms\n")
	var lines []string
	for _, l := range regexp.MustCompile(`<line class="(wait|parked)" x1="([\d.]+)" y1="\d+" x2="([\d.]+)"`).FindAllStringSubmatch(svg, -1)[2:] { // behind the legend
		lines = append(lines, strings.Join(l[1:], " "))
	}
	x := func(ms int) string { return fmt.Sprintf("%.1f", leftMargin+float64(plotWidth)*float64(ms)/120) }
	assert.Equal(t, []string{
		"wait " + x(0) + " " + x(10),
		"wait " + x(5) + " " + x(15), "parked " + x(15) + " " + x(60), "wait " + x(60) + " " + x(65), "parked " + x(65) + " " + x(95), "wait " + x(95) + " " + x(100),
	}, lines)
	assert.Contains(t, table([]phase{p}, false), "parked / of these woken                  2 / 1\n")
	assert.NotContains(t, timeline("payout", twoPhases()), "parked: ")
	assert.NotContains(t, table(twoPhases(), false), "parked")
}

// TestTimelineHasOneScale: the same work is as wide in both phases, however long
// they took.
func TestTimelineHasOneScale(t *testing.T) {
	svg := timeline("f", []phase{madeUp("without the lock", [2]int{0, 20}), madeUp("with the lock", [2]int{0, 20}, [2]int{80, 100})})
	bars := regexp.MustCompile(`<rect class="good" x="([\d.]+)" y="\d+" width="([\d.]+)" height="16"`).FindAllStringSubmatch(svg, -1)
	require.Len(t, bars, 3)
	for i, x := range []string{"84.0", "84.0", "954.4"} {
		assert.Equal(t, []string{x, "217.6"}, bars[i][1:], "bar %d", i)
	}
}

func TestTimelineOfNothing(t *testing.T) {
	svg := timeline(`<&">`, []phase{{title: "without the lock", environments: 1}, {title: "with the lock", environments: 1}})
	assert.Contains(t, texts(t, svg), "nothing is known of critical sections")
	assert.NotContains(t, svg, "NaN")
}

func TestTicks(t *testing.T) {
	for span, want := range map[time.Duration]string{
		time.Millisecond:        "1 ms",
		80 * time.Millisecond:   "10 ms",
		590 * time.Millisecond:  "50 ms",
		4800 * time.Millisecond: "0.5 s",
		11 * time.Second:        "1 s",
		12 * time.Second:        "2 s",
		5 * time.Minute:         "50 s",
	} {
		step := tickStep(span)
		label := tickLabel(step, step)
		assert.Equal(t, want, label, "%v", span)
		assert.LessOrEqual(t, int(span/step), 11)
	}
}
