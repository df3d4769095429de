package locallambda

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// madeUp is a phase of events that each had a busy answer first.
func madeUp(title string, spans ...[2]int) phase {
	p := phase{title: title, environments: 2, maxHolders: 1, began: zero, reported: true}
	for i, s := range spans {
		id := fmt.Sprint("r-", i)
		p.attempts = append(p.attempts, attempt{sent: at(s[0] - 10), answered: at(s[1] + 1000), requestIDs: []string{"busy-" + id, id}, busy: 1})
		one := made("account/7", s[0], s[1])
		one.environment, one.requestID = i%2, id
		if title == "with the lock" {
			one.fence = int64(i + 1)
		}
		p.sections = append(p.sections, one)
	}
	p.finish()
	return p
}

func TestPhaseCounts(t *testing.T) {
	p := madeUp("with the lock", [2]int{20, 40}, [2]int{30, 50}, [2]int{60, 90})
	assert.Equal(t, 3, p.succeeded)
	assert.Equal(t, 3, p.busy)
	assert.Equal(t, 2, p.overlapping())
	assert.Equal(t, map[string]int{"account/7": 2}, p.overlaps)
	assert.Equal(t, 1, p.keys)
	assert.Equal(t, []time.Duration{10 * time.Millisecond, 10 * time.Millisecond, 10 * time.Millisecond}, p.waits, "the wait counts from the first try")
	assert.Equal(t, 20*time.Millisecond, percentile(p.holds, 50))
	assert.Equal(t, 70*time.Millisecond, p.work())
	assert.Equal(t, 1090*time.Millisecond, p.took, "until the last answer")
	assert.Empty(t, madeUp("without the lock", [2]int{20, 40}).waits, "without a lock nobody waits for it")

	p = madeUp("with the lock", [2]int{20, 40}, [2]int{40, 60})
	p.sections[1].requestID = "r-0"
	p.finish()
	assert.Len(t, p.waits, 1, "the second section of an event has not waited since the event was sent")
}

func TestPercentile(t *testing.T) {
	assert.Zero(t, percentile(nil, 99))
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(i+1))
	}
	assert.EqualValues(t, 100, percentile(all, 50))
	assert.EqualValues(t, 198, percentile(all, 99))
	assert.EqualValues(t, 1, percentile(all[:1], 50))
}

func TestVerdict(t *testing.T) {
	good := madeUp("with the lock", [2]int{20, 40}, [2]int{40, 60})
	require.NoError(t, good.verdict())

	require.EqualError(t, madeUp("with the lock", [2]int{20, 40}, [2]int{39, 60}).verdict(), "with the lock, 2 critical sections overlapped another of the same key; if the function uses WithMaxHolders(N), give --max-holders N")

	several := madeUp("with the lock", [2]int{20, 40}, [2]int{25, 60}, [2]int{30, 50})
	several.maxHolders = 3
	several.finish()
	require.NoError(t, several.verdict())
	several.maxHolders = 2
	several.finish()
	require.EqualError(t, several.verdict(), "with the lock, 3 critical sections ran while more than 2 of the same key did")

	failed := good
	failed.attempts = append(failed.attempts, attempt{failed: "HTTP 500", detail: "no"}, attempt{failed: "LockLost", detail: "gone"})
	failed.finish()
	require.EqualError(t, failed.verdict(), "with the lock, 2 of 4 events failed for good, the first with HTTP 500: no")

	refused := good
	refused.afterErr = errors.New("--after: exit status 1: 3 updates were lost")
	require.EqualError(t, refused.verdict(), "with the lock, --after: exit status 1: 3 updates were lost")

	few := good
	few.planned, few.faults = 3, []fault{{}}
	require.EqualError(t, few.verdict(), "with the lock, only 1 of 3 faults found an event under way; send more events (-n)")

	silent := good
	silent.reported = false
	require.ErrorContains(t, silent.verdict(), "no report line was found in what the function wrote")
	silent.attempts = []attempt{{failed: "HTTP 500"}}
	silent.finish()
	require.NotContains(t, silent.verdict().Error(), "no report line", "a function that does not work is told first")
}

func TestWorstKeys(t *testing.T) {
	one := phase{counts: counts{keys: 3, overlaps: map[string]int{"a": 2, "b": 7, "c": 2}}}
	two := phase{counts: counts{keys: 2, overlaps: map[string]int{"d": 4}}}
	assert.Equal(t, []string{"b", "d", "a"}, worst([]phase{one, two}, 3))
	one.keys, one.overlaps = 1, map[string]int{"b": 7}
	assert.Empty(t, worst([]phase{one}, 3), "the total says it already")
}

// The line that a build without a lock should log is one that is read.
func TestNoSections(t *testing.T) {
	r := &reports{}
	for line := range strings.Lines(phase{}.withoutLock()) {
		_, err := r.Write([]byte(line))
		require.NoError(t, err)
	}
	require.Len(t, r.sections, 1)
	assert.Equal(t, "account/7", r.sections[0].key)
	assert.Equal(t, 12500*time.Microsecond, r.sections[0].end.Sub(r.sections[0].start))
	p := phase{reported: true}
	p.finish()
	assert.Contains(t, p.withoutLock(), "no critical sections overlapped this time")
}
