package main

import (
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTimeline(t *testing.T) {
	without, with := halves()
	svg := timeline(without, with)

	d := xml.NewDecoder(strings.NewReader(svg))
	var texts []string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "the picture is well-formed XML")
		if c, ok := token.(xml.CharData); ok && strings.TrimSpace(string(c)) != "" {
			texts = append(texts, string(c))
		}
	}
	all := strings.Join(texts, "\n")
	for _, want := range []string{
		"4 withdrawals from one account, 2 Lambda environments at once",
		"Without a lock: \n2 of 4 updates lost, 3 critical sections overlap",
		"With lambdalock: \n0 of 4 updates lost, 0 critical sections overlap",
		"overlaps another", "waiting for the lock", "env 1", "env 2",
		"0 ms", "10 ms", "fence 4", "request r-3",
	} {
		assert.Contains(t, all, want)
	}
	legend := 1
	assert.Equal(t, without.overlaps, strings.Count(svg, `<rect class="bad"`)-legend, "the red bars are what is counted")
	assert.Equal(t, 1+4, strings.Count(svg, `<rect class="good"`)-legend)
	assert.Equal(t, 4, strings.Count(svg, `<rect class="lane"`), "a lane for each environment in both halves")
	assert.Contains(t, svg, "prefers-color-scheme: dark")
	assert.Equal(t, 1, strings.Count(svg, "http"), "the namespace is its only address: nothing is loaded")
	assert.NotContains(t, svg, "NaN")
}

// TestTimelineHasOneScale: the same work is as wide in both halves, however long
// they took.
func TestTimelineHasOneScale(t *testing.T) {
	svg := timeline(madeUp("without a lock", 0, [2]int{0, 20}), madeUp("with lambdalock", 0, [2]int{0, 20}, [2]int{80, 100}))
	bars := regexp.MustCompile(`<rect class="good" x="([\d.]+)" y="\d+" width="([\d.]+)" height="16"`).FindAllStringSubmatch(svg, -1)
	require.Len(t, bars, 3)
	for i, x := range []string{"84.0", "84.0", "954.4"} {
		assert.Equal(t, []string{x, "217.6"}, bars[i][1:], "bar %d", i)
	}
}

func TestTimelineOfNothing(t *testing.T) {
	svg := timeline(half{title: "without a lock", environments: 1, amount: 1}, half{title: "with lambdalock", environments: 1, amount: 1})
	require.NoError(t, xml.Unmarshal([]byte(svg), &struct{ XMLName xml.Name }{}))
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
