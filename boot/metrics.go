package boot

import (
	"context"
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
	if len(namespace) > maxNamespaceBytes || strings.HasPrefix(namespace, "AWS/") || strings.Trim(namespace, namespaceLetters) != "" {
		return fmt.Errorf("LOCK_METRICS is %.300q; want at most %d letters, digits, spaces and .-_/#: that do not begin with AWS/", namespace, maxNamespaceBytes)
	}
	return nil
}

// metrics makes each report line a CloudWatch metric, too, in the embedded metric format:
// CloudWatch reads the line, and boot sends no request. The dimensions are service, store
// and outcome. The key is no dimension, because each value of a dimension is a metric that
// costs money.
type metrics struct {
	slog.Handler
	namespace string
}

func (m metrics) Handle(ctx context.Context, r slog.Record) error {
	r.AddAttrs(
		slog.Int("runs", 1),
		slog.Any("_aws", map[string]any{ // version 1.0 of the format (Amazon CloudWatch user guide)
			"Timestamp": r.Time.UnixMilli(),
			"CloudWatchMetrics": []any{map[string]any{
				"Namespace":  m.namespace,
				"Dimensions": [][]string{{"service", "store", "outcome"}},
				"Metrics": []map[string]string{
					{"Name": "runs", "Unit": "Count"},
					{"Name": "wait_ms", "Unit": "Milliseconds"},
					{"Name": "hold_ms", "Unit": "Milliseconds"},
					{"Name": "calls", "Unit": "Count"},
				},
			}},
		}))
	return m.Handler.Handle(ctx, r)
}

func (m metrics) WithAttrs(attrs []slog.Attr) slog.Handler {
	return metrics{m.Handler.WithAttrs(attrs), m.namespace}
}

func (m metrics) WithGroup(name string) slog.Handler {
	return metrics{m.Handler.WithGroup(name), m.namespace}
}
