package locallambda

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
)

func twoPhases() []phase {
	without := madeUp("without the lock", [2]int{20, 40}, [2]int{20, 40}, [2]int{30, 50}, [2]int{60, 80})
	without.rows, without.afterErr = []row{{"balance", "90.00"}, {"lost updates", "2"}}, errors.New("2 updates were lost")
	with := madeUp("with the lock", [2]int{20, 40}, [2]int{40, 60}, [2]int{70, 90}, [2]int{90, 110})
	with.rows = []row{{"balance", "80.00"}, {"lost updates", "0"}}
	return []phase{without, with}
}

// A good run has not all of these rows.
func TestTable(t *testing.T) {
	p := madeUp("with the lock", [2]int{20, 40}, [2]int{30, 50}, [2]int{60, 90}, [2]int{80, 100}, [2]int{85, 99})
	p.attempts[1].failed, p.attempts[2].failed, p.attempts[3].failed = "LockLost", "HTTP 500", "HTTP 500"
	p.attempts[0].sentAgain = 2
	p.sections[0].event = 0
	p.sections[4].Key = "a key of its own"
	p.sections[3].Key = p.sections[4].Key
	p.sections[2].Outcome = "lost"
	p.planned = 3
	p.covered = []covered{{report: report{Key: "account/7"}, sent: at(1)}}
	p.faults = []fault{{kind: kill, from: at(1)}, {kind: freeze, from: at(61), to: at(70)}, {kind: kill, from: at(2)}}
	p.finish()
	assert.Equal(t, `
                                without the lock       with the lock
  succeeded                               4 of 4              2 of 5
  busy, tried again                            4                   5
  covered by a later run                       0                   1
  failed: HTTP 500                             0                   2
  failed: LockLost                             0                   1
  frozen / killed                          0 / 0               1 / 2
  sent again after that                        0                   2
  critical sections                            4                   5
  keys                                         1                   2
  most at once, of one key                     3                   2
  overlapping sections                         3                   4
  leases lost                                  0                   1
    returned success late                      0                   0
  balance                                  90.00                   -
  lost updates                                 2                   -
  took                                         -               1.1 s
`, table([]phase{twoPhases()[0], p}))
}

// What nobody can see is written as escapes, and a line break makes no row of its own.
func TestHiddenCharacters(t *testing.T) {
	const hostile = "\x1b]0;owned\x07\u202ek\nall is well"
	p := madeUp("with the lock", [2]int{20, 40}, [2]int{30, 50}, [2]int{60, 70})
	for i := range p.sections {
		p.sections[i].RequestID = hostile
	}
	p.sections[0].Key, p.sections[1].Key = hostile, hostile
	p.attempts[0].failed, p.attempts[0].detail, p.attempts[0].wrote = hostile, hostile, []string{hostile[:10]}
	p.rows = []row{{hostile, hostile}}
	p.finish()
	var b bytes.Buffer
	out := exit.Writer{To: &b}
	fmt.Fprintf(out, "%v\n", p.verdict())
	fmt.Fprintf(out, "%s", table([]phase{p}))
	svg := timeline(hostile, []phase{p})
	for _, r := range b.String() + svg {
		assert.True(t, r >= ' ' && r != '\u202e' || r == '\n' || r == '\r', "%q", r)
	}
	assert.Contains(t, b.String(), `failed for good, the first with \u001b]0;owned\u0007\u202ek`)
	assert.NotContains(t, b.String(), "\nall is well")
	assert.Contains(t, svg, `\u001b]0;owned\u0007\u202ek`)
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

// An event that is covered is a dot on the lane of its environment.
func TestTimeline(t *testing.T) {
	phases := twoPhases()
	require.NotContains(t, timeline("withdraw", phases), "<circle")
	for i := range 5 {
		phases[1].covered = append(phases[1].covered, covered{report: report{RequestID: fmt.Sprint("c-", i), Key: "account/7"}, environment: 1, sent: at(10), at: at(50 + 10*i)})
	}
	svg := timeline("withdraw", phases)
	all := texts(t, svg)
	for _, want := range []string{
		"4 events for withdraw, 2 Lambda environments at once",
		"Without the lock: \n3 of 4 critical sections overlap",
		"balance: 90.00, lost updates: 2",
		"With the lock: \n0 of 4 critical sections overlap, 5 events are covered",
		"balance: 80.00, lost updates: 0",
		"Without the lock 3 of 4 critical sections overlap. With the lock 0 of 4 critical sections overlap, 5 events are covered.",
		"overlaps others of the same key", "waiting for the lock", "env 1", "env 2",
		"0 ms", "fence 4", "request r-3",
	} {
		assert.Contains(t, all, want)
	}
	legend := 1
	assert.Equal(t, phases[0].overlapping, strings.Count(svg, `<rect class="bad"`)-legend, "the red bars are what is counted")
	assert.Equal(t, 1+4, strings.Count(svg, `<rect class="good"`)-legend)
	assert.Equal(t, 4, strings.Count(svg, `<rect class="lane"`), "a lane for each environment in both phases")
	assert.Equal(t, 5, strings.Count(svg, `<circle class="covered"`)-legend)
	assert.Contains(t, svg, `<circle class="covered" cx="133.0" cy="403" r="3"><title>env 2, account/7, 50 ms, covered, request c-0</title></circle>`)
	assert.Contains(t, svg, "prefers-color-scheme: dark")
	assert.Equal(t, 1, strings.Count(svg, "http"), "the namespace is its only address: nothing is loaded")
	assert.NotContains(t, svg, "NaN")
}
