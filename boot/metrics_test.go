package boot

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
)

// Each metric and dimension is a member of the line, and the key is none.
func TestMetrics(t *testing.T) {
	report := guard.Report{Key: "account/7", Outcome: "ok", WaitTime: 5 * time.Millisecond, HoldTime: 20 * time.Millisecond, Calls: 2}
	var plain, line map[string]any
	require.NoError(t, json.Unmarshal([]byte(reportLine(t, "", report)), &plain))
	require.NoError(t, json.Unmarshal([]byte(reportLine(t, "lambdalock", report)), &line))
	aws := line["_aws"].(map[string]any)
	require.InDelta(t, time.Now().UnixMilli(), aws["Timestamp"], float64(time.Minute/time.Millisecond))
	delete(aws, "Timestamp")
	text, err := json.Marshal(aws)
	require.NoError(t, err)
	// Amazon CloudWatch, "Specification: Embedded metric format"
	require.JSONEq(t, `{"CloudWatchMetrics": [{"Namespace": "lambdalock", "Dimensions": [["service", "store", "outcome"]], "Metrics": [
		{"Name": "runs", "Unit": "Count"}, {"Name": "wait_ms", "Unit": "Milliseconds"}, {"Name": "hold_ms", "Unit": "Milliseconds"}, {"Name": "calls", "Unit": "Count"}]}]}`, string(text))
	for name, want := range map[string]any{"service": "", "store": "dynamodb", "outcome": "ok", "calls": 2.0, "runs": 1.0, "wait_ms": 5.0, "hold_ms": 20.0} {
		require.Equal(t, want, line[name], name)
	}
	report.OldestWait = time.Hour
	text = []byte(reportLine(t, "lambdalock", report))
	require.Contains(t, string(text), `{"Name":"oldest_wait_ms","Unit":"Milliseconds"}`)
	require.Contains(t, string(text), `"oldest_wait_ms":3600000`)
	require.NotContains(t, plain, "_aws")
	require.NotContains(t, plain, "runs")
}
