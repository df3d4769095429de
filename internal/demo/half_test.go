package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// zero is the start of every made-up half.
var zero = time.Date(2026, 11, 21, 4, 31, 7, 0, time.UTC)

func at(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }

func TestMarkOverlaps(t *testing.T) {
	for name, c := range map[string]struct {
		spans  [][2]int // milliseconds, sorted by start
		count  int
		marked []bool
	}{
		"none":                   {nil, 0, nil},
		"one":                    {[][2]int{{0, 10}}, 0, []bool{false}},
		"one after another":      {[][2]int{{0, 10}, {10, 20}, {25, 30}}, 0, []bool{false, false, false}},
		"two at once":            {[][2]int{{0, 10}, {9, 20}, {20, 30}}, 2, []bool{true, true, false}},
		"a chain":                {[][2]int{{0, 10}, {5, 15}, {12, 20}}, 3, []bool{true, true, true}},
		"inside a long one":      {[][2]int{{0, 100}, {10, 20}, {30, 40}, {100, 110}}, 3, []bool{true, true, true, false}},
		"the same start":         {[][2]int{{0, 10}, {0, 10}}, 2, []bool{true, true}},
		"a long one ends last":   {[][2]int{{0, 50}, {10, 20}, {45, 60}}, 3, []bool{true, true, true}},
		"nothing of a long past": {[][2]int{{0, 50}, {10, 20}, {60, 70}}, 2, []bool{true, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var all []section
			for _, s := range c.spans {
				all = append(all, section{start: at(s[0]), end: at(s[1])})
			}
			assert.Equal(t, c.count, markOverlaps(all))
			for i, s := range all {
				assert.Equal(t, c.marked[i], s.overlaps, "section %d", i)
			}
		})
	}
}

func TestSectionsReadsReportLines(t *testing.T) {
	got := sections(3, []string{
		`{"timestamp":"2026-11-21T04:31:07.1Z","level":"INFO","message":"lock","requestId":"r-1","key":"account/7","outcome":"ok","wait_ms":1.5,"hold_ms":20.25,"fence":7,"requests":2,"acquired_at":"2026-11-21T04:31:07.05Z"}`,
		`{"level":"INFO","message":"lock","requestId":"r-2","key":"account/7","outcome":"busy","wait_ms":1000,"hold_ms":0,"fence":0,"requests":3}`,
		`{"level":"INFO","message":"something else","acquired_at":"2026-11-21T04:31:07.05Z"}`,
		`START RequestId: r-3`,
		``,
	})
	require.Len(t, got, 1, "a busy run has no critical section")
	assert.Equal(t, section{environment: 3, requestID: "r-1", fence: 7, start: at(50), end: at(70).Add(250 * time.Microsecond)}, got[0])
}

// madeUp is a half of 4 withdrawals of 5.00 whose closing balance is wrong by
// lost of them.
func madeUp(title string, lost int, spans ...[2]int) half {
	h := half{title: title, environments: 2, amount: 500, opening: 10_000, began: zero}
	for i, s := range spans {
		id := fmt.Sprint("r-", i)
		h.attempts = append(h.attempts, attempt{sent: at(s[0] - 10), answered: at(s[1] + 1000), requestIDs: []string{"busy-" + id, id}, busy: 1})
		h.sections = append(h.sections, section{environment: i % 2, requestID: id, start: at(s[0]), end: at(s[1])})
		if title == "with lambdalock" {
			h.sections[i].fence = int64(i + 1)
		}
	}
	h.closing = h.opening - int64(len(spans)-lost)*h.amount
	h.finish()
	return h
}

func TestHalfCounts(t *testing.T) {
	h := madeUp("with lambdalock", 1, [2]int{20, 40}, [2]int{30, 50}, [2]int{60, 90})
	assert.Equal(t, 3, h.succeeded)
	assert.Equal(t, 3, h.busy)
	assert.Equal(t, 2, h.overlaps)
	assert.EqualValues(t, 8_500, h.expected())
	assert.Equal(t, 1, h.lost())
	assert.Equal(t, 10*time.Millisecond, h.percentile(50), "the wait counts from the first try")
	assert.Equal(t, 70*time.Millisecond, h.work())
	assert.Equal(t, 1090*time.Millisecond, h.took, "until the last answer")
	assert.Empty(t, madeUp("without a lock", 1, [2]int{20, 40}).waits, "without a lock nobody waits for it")
}

func TestPercentile(t *testing.T) {
	var h half
	assert.Zero(t, h.percentile(99))
	for i := range 200 {
		h.waits = append(h.waits, time.Duration(i+1))
	}
	assert.EqualValues(t, 100, h.percentile(50))
	assert.EqualValues(t, 198, h.percentile(99))
	h.waits = h.waits[:1]
	assert.EqualValues(t, 1, h.percentile(50))
}

func TestVerdict(t *testing.T) {
	good := madeUp("with lambdalock", 0, [2]int{20, 40}, [2]int{40, 60})
	require.NoError(t, good.verdict())

	require.EqualError(t, madeUp("with lambdalock", 1, [2]int{20, 40}, [2]int{40, 60}).verdict(), "with lambdalock, 1 updates were lost")
	require.EqualError(t, madeUp("with lambdalock", 0, [2]int{20, 40}, [2]int{39, 60}).verdict(), "with lambdalock, 2 critical sections overlapped")
	require.Error(t, madeUp("with lambdalock", -1, [2]int{20, 40}, [2]int{40, 60}).verdict(), "a withdrawal made twice is as wrong as a lost one")

	failed := good
	failed.attempts = append(failed.attempts, attempt{failure: "status 500: no"})
	failed.finish()
	require.ErrorContains(t, failed.verdict(), "1 of 3 withdrawals failed, the first with status 500: no")

	silent := good
	silent.sections = silent.sections[:1]
	require.ErrorContains(t, silent.verdict(), "only 1 reported a critical section")
}
