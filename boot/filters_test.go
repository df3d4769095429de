package boot

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/lockstore"
)

// events are, for each metric filter of template.yaml, the reports that its alarm is for; those of "none" are for no alarm.
var events = map[string][]guard.Report{
	"none": {
		{Outcome: guard.OutcomeOK, Calls: 2, WaitTime: time.Hour, HoldTime: time.Hour, QueuePosition: 3, OwnersWoken: 2},
		{Outcome: guard.OutcomeBusy, KeyState: lockstore.Held, HeldFor: time.Minute, OldestWait: time.Minute},
		{Outcome: guard.OutcomeCovered, KeyState: lockstore.Held, HeldFor: time.Minute},
		{Outcome: guard.OutcomeError, Err: errors.New("own")},
		{Outcome: guard.OutcomePanic},
		{Outcome: guard.OutcomeDeadline, ReleaseErr: errors.New("cut off")},
	},
	"LockLost":   {{Outcome: guard.OutcomeLost}},
	"LockFailed": {{Outcome: guard.OutcomeUnavailable}, {Outcome: guard.OutcomeUnknown}, {Outcome: guard.OutcomeCorrupt}},
	"LockQueue":  {{Outcome: guard.OutcomeBusy, MissedTurns: 2}, {Outcome: guard.OutcomeBusy, NoPlace: true}},
	"LockWake":   {{Outcome: guard.OutcomeOK, WakeErr: errors.New("no right")}},
	"LockCalls":  {{Outcome: guard.OutcomeOK, FailedCalls: 3}},
	"LockHeld": { // HeldMinutes is 1 or more
		{Outcome: guard.OutcomeBusy, KeyState: lockstore.Held, HeldFor: time.Hour},
		{Outcome: guard.OutcomeBusy, KeyState: lockstore.Held, HeldFor: time.Minute + time.Millisecond},
	},
	"LockWaited": { // by a parked owner, or by a client that asks again and again
		{Outcome: guard.OutcomeBusy, OldestWait: time.Hour},
		{Outcome: guard.OutcomeBusy, OldestWait: time.Minute + time.Millisecond},
	},
	"LockDoubt": {{Outcome: "doubt"}, {Outcome: "noresult"}, {Outcome: guard.OutcomeOK, CompleteErr: errors.New("too large")}},
}

// metricFilter is a resource of the type AWS::Logs::MetricFilter.
type metricFilter struct {
	FilterPattern         string
	MetricTransformations []struct{ MetricNamespace, MetricName, MetricValue string }
}

var term = regexp.MustCompile(`\$\.(\w+) (=|!=|>|IS) ("[^"]*"|[\w.]+)`)

// matches says whether the pattern matches a line. A pattern is made of terms, && and || and parentheses.
func (f metricFilter) matches(line map[string]any) (bool, error) {
	var wrong error
	text := term.ReplaceAllStringFunc(strings.Trim(f.FilterPattern, "{ }"), func(found string) string {
		part := term.FindStringSubmatch(found)
		value, is := line[part[1]]
		want := strings.Trim(part[3], `"`)
		switch part[2] {
		case "=":
			text, isText := value.(string)
			is = is && isText && (want == "*" || text == want)
		case "!=":
			is = is && value != want
		case ">":
			n, isNumber := value.(float64)
			least, err := strconv.ParseFloat(want, 64)
			wrong = errors.Join(wrong, err)
			is = is && isNumber && n > least
		case "IS":
			is = is && want == "TRUE" && value == true
		}
		return fmt.Sprint(is)
	})
	came, err := types.Eval(token.NewFileSet(), nil, token.NoPos, text) // Go has the same words
	if err = errors.Join(wrong, err); err != nil {
		return false, err
	}
	return constant.BoolVal(came.Value), nil
}

// TestFiltersOfAlarms: each filter of template.yaml matches the lines of its events, and no other line. So a filter with a
// field that no line has fails.
func TestFiltersOfAlarms(t *testing.T) {
	text, err := os.ReadFile("../template.yaml")
	require.NoError(t, err)
	lines := map[string][]map[string]any{} // of the events
	for of, reports := range events {
		for _, r := range reports {
			var line map[string]any
			require.NoError(t, json.Unmarshal([]byte(reportLine(t, "App", r)), &line))
			lines[of] = append(lines[of], line)
		}
	}
	late := maps.Clone(lines["LockLost"][0]) // a caller of the lock service
	late["service"] = "LocksFunction"
	lines["none"] = append(lines["none"], late)
	parsed, err := template.Parse(text, nil)
	require.NoError(t, err)
	filters := []string{"none"}
	for name, r := range parsed.Resources {
		if r.Type != "AWS::Logs::MetricFilter" {
			continue
		}
		filters = append(filters, name)
		var f metricFilter
		require.NoError(t, r.Decode(&f))
		want := cmp.Or(map[string]string{"LockCalls": "$.failed_calls", "LockHeld": "$.held_ms", "LockWaited": "$.oldest_wait_ms"}[name], "1")
		require.Equal(t, want, f.MetricTransformations[0].MetricValue, name)
		for of, all := range lines {
			for _, l := range all {
				is, err := f.matches(l)
				require.NoError(t, err, name)
				require.Equal(t, of == name, is, "%s matches %v", name, l)
				if value, field := strings.CutPrefix(f.MetricTransformations[0].MetricValue, "$."); field && is {
					require.IsType(t, 0.0, l[value], "%s: %s is a number", name, value)
				}
			}
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(events)), filters, "each filter has its events in this test")
	t.Run("the line of sfnlock", func(t *testing.T) {
		source, err := os.ReadFile("../functions/sfnlock/sfnlock.go")
		require.NoError(t, err)
		for _, said := range regexp.MustCompile(`\$\.message = ("[^"]+")`).FindAllStringSubmatch(string(text), -1) {
			require.True(t, said[1] == `"lock"` || strings.Contains(string(source), said[1]), said[1])
		}
	})
}

// TestGraphsHaveMetrics: each graph of the dashboard is of a metric that the lines have.
func TestGraphsHaveMetrics(t *testing.T) {
	parsed, err := template.Read("../template.yaml", nil)
	require.NoError(t, err)
	var made struct {
		AWS struct {
			CloudWatchMetrics []struct {
				Namespace  string
				Dimensions [][]string
				Metrics    []struct{ Name string }
			}
		} `json:"_aws"`
	}
	require.NoError(t, json.Unmarshal([]byte(reportLine(t, "stack", guard.Report{})), &made))
	m, graphs := made.AWS.CloudWatchMetrics[0], 0
	for _, r := range parsed.Resources {
		var board struct{ DashboardBody string }
		if r.Type != "AWS::CloudWatch::Dashboard" {
			continue
		}
		require.NoError(t, r.Decode(&board))
		require.True(t, json.Valid([]byte(board.DashboardBody)))
		searches := regexp.MustCompile(`SEARCH\('\{\\"(.*?)\\",(.*?)\} MetricName=\\"(\w+)\\"'`).FindAllStringSubmatch(board.DashboardBody, -1)
		require.Equal(t, strings.Count(board.DashboardBody, "SEARCH("), len(searches))
		for _, s := range searches {
			graphs++
			require.Equal(t, []string{m.Namespace, strings.Join(m.Dimensions[0], ",")}, s[1:3])
			require.Contains(t, m.Metrics, struct{ Name string }{s[3]})
		}
	}
	require.Positive(t, graphs)
}

// reportLine is the line of a report, as a function with this value of LOCK_METRICS writes it.
func reportLine(t *testing.T, namespace string, r guard.Report) string {
	t.Helper()
	var out bytes.Buffer
	guard.LogReports(logger(&out, &url.URL{Scheme: "dynamodb"}, namespace, new(firstInvocation)))(t.Context(), r)
	return out.String()
}
