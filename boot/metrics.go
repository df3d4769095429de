package boot

import (
	"fmt"
	"log/slog"
	"strings"
)

const (
	namespaceLetters  = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_/#: "
	maxNamespaceBytes = 255
)

// checkNamespace refuses a namespace that CloudWatch would ignore without an error.
func checkNamespace(namespace string) error {
	onlySpaces := namespace != "" && strings.Trim(namespace, " ") == ""
	if len(namespace) > maxNamespaceBytes || strings.HasPrefix(namespace, "AWS/") || strings.HasPrefix(namespace, ":") || onlySpaces || strings.Trim(namespace, namespaceLetters) != "" {
		return fmt.Errorf("LOCK_METRICS is %.300q; want at most %d letters, digits, spaces and .-_/#: that are not all spaces and do not begin with AWS/ or a colon", namespace, maxNamespaceBytes)
	}
	return nil
}

// metrics makes a report line a CloudWatch metric, too, in the embedded metric format:
// CloudWatch reads the line, and boot sends no request. The dimensions are service, store
// and outcome. The key is no dimension, because each value of a dimension is a metric that
// costs money. Only the line of a run that was refused at least once while somebody waited has oldest_wait_ms.
func metrics(namespace string, line slog.Record) []slog.Attr {
	all := []map[string]string{
		{"Name": "runs", "Unit": "Count"},
		{"Name": "wait_ms", "Unit": "Milliseconds"},
		{"Name": "hold_ms", "Unit": "Milliseconds"},
		{"Name": "calls", "Unit": "Count"},
	}
	line.Attrs(func(a slog.Attr) bool {
		if a.Key == "oldest_wait_ms" {
			all = append(all, map[string]string{"Name": a.Key, "Unit": "Milliseconds"})
		}
		return true
	})
	return []slog.Attr{
		slog.Int("runs", 1),
		slog.Any("_aws", map[string]any{ // version 1.0 of the format (Amazon CloudWatch user guide)
			"Timestamp": line.Time.UnixMilli(),
			"CloudWatchMetrics": []any{map[string]any{
				"Namespace":  namespace,
				"Dimensions": [][]string{{"service", "store", "outcome"}},
				"Metrics":    all,
			}},
		}),
	}
}
