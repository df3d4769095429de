package boot

import (
	"bytes"
	"encoding/json"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestMetrics(t *testing.T) {
	report := guard.Report{Key: "account/7", Outcome: "ok", WaitTime: 5 * time.Millisecond, HoldTime: 20 * time.Millisecond, Calls: 2,
		Fence: 7, HolderInfo: lockstore.HolderInfo{ID: "req-1"}}
	line := func(namespace string) map[string]any {
		var out bytes.Buffer
		guard.LogReports(logger(&out, &url.URL{Scheme: "dynamodb"}, namespace, new(atomic.Pointer[which])))(t.Context(), report)
		var m map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &m))
		return m
	}
	t.Run("none without a namespace", func(t *testing.T) {
		m := line("")
		require.NotContains(t, m, "_aws")
		require.NotContains(t, m, "runs")
		require.Equal(t, "dynamodb", m["store"])
	})
	t.Run("each metric and dimension is a member of the line, and the key is none", func(t *testing.T) {
		m := line("lambdalock")
		aws := m["_aws"].(map[string]any)
		require.InDelta(t, time.Now().UnixMilli(), aws["Timestamp"], float64(time.Minute/time.Millisecond))
		delete(aws, "Timestamp")
		text, err := json.Marshal(aws)
		require.NoError(t, err)
		// Amazon CloudWatch, "Specification: Embedded metric format"
		require.JSONEq(t, `{"CloudWatchMetrics": [{"Namespace": "lambdalock", "Dimensions": [["service", "store", "outcome"]], "Metrics": [
			{"Name": "runs", "Unit": "Count"}, {"Name": "wait_ms", "Unit": "Milliseconds"}, {"Name": "hold_ms", "Unit": "Milliseconds"}, {"Name": "calls", "Unit": "Count"}]}]}`, string(text))
		for _, name := range []string{"service", "store", "outcome"} {
			require.IsType(t, "", m[name])
		}
		require.EqualValues(t, 2, m["calls"])
		require.EqualValues(t, 1, m["runs"])
		require.EqualValues(t, 5, m["wait_ms"])
		require.EqualValues(t, 20, m["hold_ms"])
	})
}
