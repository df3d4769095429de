package boot

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/lambdalock/lambdalock/guard"
)

// lineHandler writes the lines of a process: each has what is known of its invocation, and with a namespace it is also a metric.
type lineHandler struct {
	slog.Handler
	namespace string // of CloudWatch; "" makes no metrics
	first     *firstInvocation
}

// firstInvocation is the first invocation that wrote a line: it had a cold start. A retry, too, has a context of its own.
type firstInvocation = atomic.Pointer[lambdacontext.LambdaContext]

func (l lineHandler) Handle(ctx context.Context, r slog.Record) error {
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		l.first.CompareAndSwap(nil, lc)
		r.AddAttrs(slog.Bool("cold_start", l.first.Load() == lc))
	}
	if trace, _ := ctx.Value("x-amzn-trace-id").(string); trace != "" { // the name that aws-lambda-go gives it
		r.AddAttrs(slog.String("trace", trace)) // of X-Ray
	}
	if l.namespace != "" {
		r.AddAttrs(metrics(l.namespace, r)...)
	}
	return l.Handler.Handle(ctx, r)
}

func (l lineHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	l.Handler = l.Handler.WithAttrs(attrs)
	return l
}

// logStart returns guard.Options.Granted for LOCK_LOG. A run that Lambda kills writes no
// report. Its first line has been written, and its request id is in Lambda's own report.
func logStart(setting string, logger *slog.Logger) (func(context.Context, guard.Report) context.Context, error) {
	switch setting {
	case "":
		return nil, nil
	case "start":
	default:
		return nil, fmt.Errorf("LOCK_LOG is %.40q; want start, or nothing", setting)
	}
	return func(ctx context.Context, r guard.Report) context.Context {
		logger.LogAttrs(ctx, slog.LevelInfo, "lock granted",
			slog.String("requestId", r.HolderInfo.ID), slog.String("key", r.Key), slog.Int64("fence", int64(r.Fence)),
			slog.Float64("wait_ms", float64(r.WaitTime.Microseconds())/1000))
		return ctx
	}, nil
}
