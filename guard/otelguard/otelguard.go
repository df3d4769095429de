// Package otelguard traces and measures the runs of a guard with OpenTelemetry. It is a
// module of its own, so nobody else links OpenTelemetry.
//
//	opt, err := otelguard.Instrument(guard.Options{Wait: 2 * time.Second}, "dynamodb")
//	g, err := guard.New(store, opt)
//
// A run of Do has two spans of the kind INTERNAL. They are children of the span in the
// caller's context.
//
//	lock wait   from the first request until the grant, or until the run gives up
//	lock hold   from the grant until the lease is released; the work's spans are its children
//
// Three histograms have seconds. Five counters say what happened in waits and calls, also of Acquire, Renew and Release, see
// guard.Report. All have the attributes lambdalock.outcome and lambdalock.store:
//
//	lambdalock.wait.duration
//	lambdalock.hold.duration   only of runs that had the lock
//	lambdalock.oldest_wait     only of runs that were refused: how long the first in the queue had waited
//	lambdalock.lapsed          turns that were over before the run came
//	lambdalock.no_place        runs that waited without a place in the queue
//	lambdalock.failed_calls    calls of the store that failed
//	lambdalock.woken           parked owners that were woken
//	lambdalock.not_woken       runs that could not wake all parked owners that they had to
//
// The tracer and the meter are OpenTelemetry's global ones. A lease of Guard.Acquire has a span "lock wait" only: it outlives
// the call. Spans never have a key, an owner, a holder, or the text of an error.
package otelguard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

const scope = "github.com/lambdalock/lambdalock/guard/otelguard"

// The attributes of spans and histograms. error.type is OpenTelemetry's own name.
const (
	attrOutcome       = attribute.Key("lambdalock.outcome")
	attrStore         = attribute.Key("lambdalock.store")
	attrFence         = attribute.Key("lambdalock.fence")
	attrQueuePosition = attribute.Key("lambdalock.queue_position")
	attrError         = attribute.Key("error.type")
)

// Instrument returns the options of a guard that is traced and measured. Hooks that opt has
// already are called, too. store is the kind of the store, for example "dynamodb".
func Instrument(opt guard.Options, store string) (guard.Options, error) {
	i := &instrument{tracer: otel.GetTracerProvider().Tracer(scope), store: attrStore.String(store), also: opt}
	meter := otel.GetMeterProvider().Meter(scope)
	var errs error
	histogram := func(name, description string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description))
		errs = errors.Join(errs, err)
		return h
	}
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = errors.Join(errs, err)
		return c
	}
	i.wait = histogram("lambdalock.wait.duration", "From the call until the run got the lock or gave up.")
	i.hold = histogram("lambdalock.hold.duration", "From the grant until the work returned.")
	i.oldest = histogram("lambdalock.oldest_wait", "How long the first in the queue had waited when the run was refused.")
	i.lapsed = counter("lambdalock.lapsed", "{turn}", "Turns that were over before the run came.")
	i.noPlace = counter("lambdalock.no_place", "{run}", "Runs that waited without a place in the queue.")
	i.failed = counter("lambdalock.failed_calls", "{call}", "Calls of the store that failed.")
	i.woken = counter("lambdalock.woken", "{owner}", "Parked owners that were woken.")
	i.notWoken = counter("lambdalock.not_woken", "{run}", "Runs that could not wake all parked owners that they had to.")
	if errs != nil {
		return guard.Options{}, fmt.Errorf("otelguard: %w", errs)
	}
	opt.Granted, opt.Observe = i.granted, i.observe
	return opt, nil
}

type instrument struct {
	store  attribute.KeyValue
	tracer trace.Tracer

	wait, hold, oldest                       metric.Float64Histogram
	lapsed, noPlace, failed, woken, notWoken metric.Int64Counter

	also guard.Options // whose hooks are called, too
}

// run is one run of the guard that has its lock.
type run struct {
	hold  trace.Span
	key   string
	fence lockstore.Fence
}

type runKey struct{}

func (i *instrument) granted(ctx context.Context, report guard.Report) context.Context {
	if i.also.Granted != nil {
		if also := i.also.Granted(ctx, report); also != nil {
			ctx = also
		}
	}
	i.startWait(ctx, report, report.AcquiredAt).End(trace.WithTimestamp(report.AcquiredAt))
	r := &run{key: report.Key, fence: report.Fence}
	ctx, r.hold = i.tracer.Start(ctx, "lock hold", trace.WithTimestamp(report.AcquiredAt),
		trace.WithAttributes(i.store, attrFence.Int64(int64(report.Fence))))
	return context.WithValue(ctx, runKey{}, r)
}

// startWait begins the span of a wait that is over.
func (i *instrument) startWait(ctx context.Context, report guard.Report, end time.Time) trace.Span {
	_, span := i.tracer.Start(ctx, "lock wait", trace.WithAttributes(i.store), trace.WithTimestamp(end.Add(-report.WaitTime)))
	if report.QueuePosition > 0 {
		span.SetAttributes(attrQueuePosition.Int(report.QueuePosition))
	}
	return span
}

func (i *instrument) observe(ctx context.Context, report guard.Report) {
	if i.also.Observe != nil {
		defer i.also.Observe(ctx, report)
	}
	with := metric.WithAttributes(attrOutcome.String(string(report.Outcome)), i.store)
	count := func(c metric.Int64Counter, n int) {
		if n > 0 {
			c.Add(ctx, int64(n), with)
		}
	}
	count(i.lapsed, report.MissedTurns)
	count(i.failed, report.FailedCalls)
	count(i.woken, report.OwnersWoken)
	if report.NoPlace {
		count(i.noPlace, 1)
	}
	if report.WakeErr != nil {
		count(i.notWoken, 1)
	}
	var span trace.Span
	r, _ := ctx.Value(runKey{}).(*run)
	held := r != nil && r.key == report.Key && r.fence == report.Fence // otherwise it may be the run around a call in the work
	switch {
	case held:
		span = r.hold
	case report.Calls == 0, report.AcquiredAt.IsZero() && (report.Fence != 0 || report.Outcome == "released"):
		return // it has asked for no lock
	default:
		span = i.startWait(ctx, report, time.Now())
	}
	defer span.End()
	i.wait.Record(ctx, report.WaitTime.Seconds(), with)
	if report.OldestWait > 0 {
		i.oldest.Record(ctx, report.OldestWait.Seconds(), with)
	}
	if held {
		i.hold.Record(ctx, report.HoldTime.Seconds(), with)
	}
	span.SetAttributes(attrOutcome.String(string(report.Outcome)))
	if report.Err != nil {
		span.SetAttributes(attrError.String(errorType(report.Err)))
		if report.Outcome != guard.OutcomeBusy && report.Outcome != guard.OutcomeCovered {
			span.SetStatus(codes.Error, string(report.Outcome))
		}
	}
}

// errorType is the name of an error's type. Its text may have data of the user.
func errorType(err error) string {
	name, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprintf("%T", err), "*"), "[") // without the types of a generic one
	return name[strings.LastIndexByte(name, '.')+1:]
}
