package locallambda

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func twoPhases() []phase {
	without := madeUp("without the lock", [2]int{20, 40}, [2]int{20, 40}, [2]int{30, 50}, [2]int{60, 80})
	without.rows, without.afterErr = []row{{"balance", "90.00"}, {"lost updates", "2"}}, errors.New("2 updates were lost")
	with := madeUp("with the lock", [2]int{20, 40}, [2]int{40, 60}, [2]int{70, 90}, [2]int{90, 110})
	with.rows = []row{{"balance", "80.00"}, {"lost updates", "0"}}
	return []phase{without, with}
}

func TestTable(t *testing.T) {
	const want = `
                                without the lock       with the lock
  succeeded                               4 of 4              4 of 4
  busy, tried again                            4                   4
  critical sections                            4                   4
  keys                                         1                   1
  most at once, of one key                     3                   1
  overlapping sections                         3                   0
  balance                                  90.00               80.00
  lost updates                                 2                   0
  wait p50                                     -               10 ms
  wait p99                                     -               10 ms
  hold p50                                 20 ms               20 ms
  hold p99                                 20 ms               20 ms
  sum of all work                          0.1 s               0.1 s
  took                                     1.1 s               1.1 s
`
	assert.Equal(t, want, table(twoPhases(), false))

	colored := table(twoPhases(), true)
	assert.Contains(t, colored, red+"                   3"+reset+green+"                   0"+reset)
	assert.Contains(t, colored, red+"                   2"+reset+green+"                   0"+reset)
	assert.Equal(t, want, regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(colored, ""))
	for line := range strings.Lines(want) {
		assert.LessOrEqual(t, len(line), 81)
	}
}

// TestTableOfSeveral counts the most at once, and what was beyond the number.
func TestTableOfSeveral(t *testing.T) {
	phases := twoPhases()
	for i := range phases {
		phases[i].allow(2)
	}
	assert.Contains(t, table(phases, false), `
  most at once, of one key                     3                   1
    allowed at once                            2                   2
  overlapping sections                         3                   0
`)
	svg := timeline("withdraw", phases)
	all := texts(t, svg)
	for _, want := range []string{"no more of the same key than its lock allows", "beside more", "3 of 4 critical sections beside more than their lock allows", "0 of 4 critical sections beside more than their lock allows"} {
		assert.Contains(t, all, want)
	}
}

// What nobody can see is written as escapes, and a line break makes no row of its own.
func TestHiddenCharacters(t *testing.T) {
	const hostile = "\x1b]0;owned\x07\u202ek\nall is well"
	p := madeUp("with the lock", [2]int{20, 40}, [2]int{30, 50}, [2]int{60, 70})
	for i := range p.sections {
		p.sections[i].requestID, p.attempts[i].requestIDs = hostile, []string{hostile}
	}
	p.sections[0].key, p.sections[1].key = hostile, hostile
	p.attempts[0].failed, p.attempts[0].detail, p.attempts[0].wrote = hostile, hostile, []string{hostile[:10]}
	p.rows = []row{{hostile, hostile}}
	p.finish()
	var b bytes.Buffer
	out := &printer{out: &b, terminal: true}
	out.printf("%v\n", p.verdict())
	out.progress("%s", hostile[:10])
	out.clear()
	out.colored(table([]phase{p}, false))
	svg := timeline(hostile, []phase{p})
	for _, r := range b.String() + svg {
		assert.True(t, r >= ' ' && r != '\u202e' || r == '\n' || r == '\r', "%q", r)
	}
	assert.Contains(t, b.String(), `failed for good, the first with \u001b]0;owned\u0007\u202ek`)
	assert.NotContains(t, b.String(), "\nall is well")
	assert.Contains(t, svg, `\u001b]0;owned\u0007\u202ek`)
}

// TestTableOfTroubles has the rows that a good run has not.
func TestTableOfTroubles(t *testing.T) {
	p := madeUp("with the lock", [2]int{20, 40}, [2]int{30, 50}, [2]int{60, 90}, [2]int{80, 100}, [2]int{85, 99})
	p.attempts[1].failed, p.attempts[2].failed, p.attempts[3].failed = "LockLost", "HTTP 500", "HTTP 500"
	p.attempts[0].sentAgain = 2
	p.sections[0].requestID = "another's"
	p.sections[4].key = "a key that is too long for its column"
	p.sections[3].key = p.sections[4].key
	p.sections[2].outcome = "lost"
	p.planned = 3
	p.faults = []fault{{kind: kill, from: at(1)}, {kind: freeze, from: at(61), to: at(70)}, {kind: kill, from: at(2)}}
	p.finish()
	const want = `
                                   with the lock
  succeeded                               2 of 5
  busy, tried again                            5
  failed: HTTP 500                             2
  failed: LockLost                             1
  frozen / killed                          1 / 2
  sent again after that                        2
  critical sections                            5
  keys                                         2
  answered without work                        1
  most at once, of one key                     2
  overlapping sections                         4
    a key that is too long …                   2
    account/7                                  2
  leases lost                                  1
    ended beside the next                      0
    returned success late                      0
  wait p50                                 10 ms
`
	assert.True(t, strings.HasPrefix(table([]phase{p}, false), want), table([]phase{p}, false))
}

// TestTableWithoutReports claims nothing about sections that nobody reported.
func TestTableWithoutReports(t *testing.T) {
	unknown := phase{title: "without the lock", attempts: make([]attempt, 2)}
	unknown.finish()
	text := table([]phase{unknown, madeUp("with the lock", [2]int{20, 40})}, true)
	assert.Contains(t, text, "overlapping sections                         -"+green+"                   0"+reset)
	assert.Contains(t, text, "sum of all work                              -               0.0 s")
}

func TestPrinter(t *testing.T) {
	t.Run("terminal", func(t *testing.T) {
		var b bytes.Buffer
		p := &printer{out: &b, terminal: true}
		p.progress("working %d", 12)
		p.progress("short")
		p.done("finished")
		assert.Equal(t, "\rworking 12\rshort     \r     \rfinished\n", b.String())
		b.Reset()
		p.progress("%s", strings.Repeat("x", 200))
		assert.Len(t, b.String(), 79, "a line that is longer than the terminal could not be written again")
	})
	t.Run("pipe", func(t *testing.T) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer r.Close()
		p := newPrinter(w, false, false)
		p.progress("working")
		p.done("finished")
		require.NoError(t, w.Close())
		var b bytes.Buffer
		_, err = b.ReadFrom(r)
		require.NoError(t, err)
		assert.Equal(t, "finished\n", b.String())
		assert.False(t, p.color)
	})
	t.Run("NO_COLOR", func(t *testing.T) {
		device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as a terminal is
		require.NoError(t, err)
		defer device.Close()
		assert.True(t, newPrinter(device, false, false).color)
		assert.False(t, newPrinter(device, false, true).color)
		assert.False(t, newPrinter(device, true, false).color)
	})
}

func TestCut(t *testing.T) {
	assert.Equal(t, "short", cut("short", 200))
	assert.Equal(t, 200, len([]rune(cut(strings.Repeat("ü", 300), 200))))
}

func TestSeconds(t *testing.T) {
	assert.Equal(t, "1.5 s", seconds(1500*time.Millisecond))
	assert.Equal(t, "2 ms", milliseconds(1600*time.Microsecond))
}

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

// A picture has a bar for each section, and no more of them at once than the sections were.
func TestTimelineOfSeveral(t *testing.T) {
	p := madeUp("with the lock", [2]int{0, 40}, [2]int{10, 50}, [2]int{20, 60}, [2]int{40, 80}, [2]int{50, 90})
	p.allow(3)
	bars := regexp.MustCompile(`<rect class="good" x="([\d.]+)" y="\d+" width="([\d.]+)" height="16"`).FindAllStringSubmatch(timeline("slow", []phase{p}), -1)
	require.Len(t, bars, 5)
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		return n
	}
	most := 0
	for _, at := range bars {
		now, start := 0, number(at[1])
		for _, b := range bars {
			if x := number(b[1]); x <= start && start < x+number(b[2])-0.15 { // both are rounded to 0.1
				now++
			}
		}
		most = max(most, now)
	}
	assert.Equal(t, p.most, most)
	assert.Equal(t, 3, most)
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
