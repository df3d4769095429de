// Package otelguard traces and measures the runs of a guard with OpenTelemetry. It is a
// module of its own, so nobody else links OpenTelemetry.
//
//	opt, err := otelguard.Instrument(guard.Options{Wait: 2 * time.Second}, otelguard.Options{Store: "dynamodb"})
//	g, err := guard.New(store, opt)
//
// A run of Do has two spans of the kind INTERNAL. They are children of the span in the
// caller's context.
//
//	lock wait   from the first request until the grant, or until the run gives up
//	lock hold   from the grant until the lease is released; the work's spans are its children
//
// Renewals are events of the span "lock hold": "renewed", "renewal failed" and "lost". Two
// histograms have seconds, and five counters say what happened in waits and calls, see
// guard.Report. All have the attributes lambdalock.outcome and lambdalock.store:
//
//	lambdalock.wait.duration
//	lambdalock.hold.duration   only of runs that had the lock
//	lambdalock.lapsed          turns that were over before the run came
//	lambdalock.no_place        runs that waited without a place in the queue
//	lambdalock.failed_calls    calls of the store that failed
//	lambdalock.woken           parked owners that were woken
//	lambdalock.not_woken       runs that could not wake all parked owners that they had to
//
// A lease of Guard.Acquire has a span "lock wait" only: it outlives the call. Spans never have
// an owner, a holder, or the text of an error. They have the key only with Options.Key.
package otelguard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

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
	attrKey           = attribute.Key("lambdalock.key")
	attrError         = attribute.Key("error.type")
)

// Options are the settings of Instrument.
type Options struct {
	// Store is the kind of the store, for example "dynamodb"; "" leaves the attribute out.
	Store string

	// Key puts the key into the spans, as lambdalock.key. A key may name a person or an
	// account. No histogram has it.
	Key bool

	TracerProvider trace.TracerProvider // nil is OpenTelemetry's global one
	MeterProvider  metric.MeterProvider // nil is OpenTelemetry's global one
}

// Instrument returns the options of a guard that is traced and measured. Hooks that opt has
// already are called, too.
func Instrument(opt guard.Options, with Options) (guard.Options, error) {
	if with.TracerProvider == nil {
		with.TracerProvider = otel.GetTracerProvider()
	}
	if with.MeterProvider == nil {
		with.MeterProvider = otel.GetMeterProvider()
	}
	i := &instrument{opt: with, tracer: with.TracerProvider.Tracer(scope), trace: opt.Trace, observe: opt.Observe}
	meter := with.MeterProvider.Meter(scope)
	var waitErr, holdErr error
	i.wait, waitErr = meter.Float64Histogram("lambdalock.wait.duration", metric.WithUnit("s"), metric.WithDescription("From the call until the run got the lock or gave up."))
	i.hold, holdErr = meter.Float64Histogram("lambdalock.hold.duration", metric.WithUnit("s"), metric.WithDescription("From the grant until the work returned."))
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		waitErr = errors.Join(waitErr, err)
		return c
	}
	i.lapsed = counter("lambdalock.lapsed", "{turn}", "Turns that were over before the run came.")
	i.noPlace = counter("lambdalock.no_place", "{run}", "Runs that waited without a place in the queue.")
	i.failed = counter("lambdalock.failed_calls", "{call}", "Calls of the store that failed.")
	i.woken = counter("lambdalock.woken", "{owner}", "Parked owners that were woken.")
	i.notWoken = counter("lambdalock.not_woken", "{run}", "Runs that could not wake all parked owners that they had to.")
	if err := errors.Join(waitErr, holdErr); err != nil {
		return guard.Options{}, fmt.Errorf("otelguard: %w", err)
	}
	opt.Trace, opt.Observe = i.Trace, i.Observe
	return opt, nil
}

type instrument struct {
	opt        Options
	tracer     trace.Tracer
	wait, hold metric.Float64Histogram

	lapsed, noPlace, failed, woken, notWoken metric.Int64Counter

	trace   func(context.Context, guard.TraceEvent) context.Context
	observe func(context.Context, guard.Report)
}

// run has the spans of one run of the guard.
type run struct {
	parent trace.Span // around both
	wait   trace.Span

	mu    sync.Mutex // a loss is told on any goroutine
	hold  trace.Span // nil before the grant
	key   string
	fence lockstore.Fence
}

// ends says whether this is the report of the run's end. A call inside the work that asks for
// no lock, such as Guard.Release, has the context of the run around it.
func (r *run) ends(report guard.Report) bool {
	return r.hold == nil || r.key == report.Key && r.fence == report.Fence
}

type runKey struct{}

// Trace is guard.Options.Trace.
func (i *instrument) Trace(ctx context.Context, e guard.TraceEvent) context.Context {
	if i.trace != nil {
		if traced := i.trace(ctx, e); traced != nil {
			ctx = traced
		}
	}
	if e.Phase == guard.PhaseAsking {
		r := &run{parent: trace.SpanFromContext(ctx)}
		ctx, r.wait = i.tracer.Start(ctx, "lock wait", i.attributes(e.Report))
		return context.WithValue(ctx, runKey{}, r)
	}
	r, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return ctx
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Phase {
	case guard.PhaseGranted:
		endWait(r.wait, e.Report)
		r.key, r.fence = e.Report.Key, e.Report.Fence
		ctx, r.hold = i.tracer.Start(trace.ContextWithSpan(ctx, r.parent), "lock hold", i.attributes(e.Report),
			trace.WithAttributes(attrFence.Int64(int64(e.Report.Fence))))
	case guard.PhaseRenewed:
		r.hold.AddEvent("renewed")
	case guard.PhaseRenewFailed:
		kind := "unknown" // whether the store applied it
		if errors.Is(e.Err, lockstore.ErrUnavailable) {
			kind = "unavailable"
		}
		r.hold.AddEvent("renewal failed", trace.WithAttributes(attrError.String(kind)))
	case guard.PhaseLost:
		r.hold.AddEvent("lost")
	}
	return ctx
}

func (i *instrument) attributes(report guard.Report) trace.SpanStartOption {
	var all []attribute.KeyValue
	if i.opt.Store != "" {
		all = append(all, attrStore.String(i.opt.Store))
	}
	if i.opt.Key {
		all = append(all, attrKey.String(report.Key))
	}
	return trace.WithAttributes(all...)
}

func endWait(span trace.Span, report guard.Report) {
	if report.QueuePosition > 0 {
		span.SetAttributes(attrQueuePosition.Int(report.QueuePosition))
	}
	span.End()
}

// Observe is guard.Options.Observe.
func (i *instrument) Observe(ctx context.Context, report guard.Report) {
	if i.observe != nil {
		defer i.observe(ctx, report)
	}
	r, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return // it has asked for no lock
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ends(report) {
		return
	}
	labels := []attribute.KeyValue{attrOutcome.String(string(report.Outcome))}
	if i.opt.Store != "" {
		labels = append(labels, attrStore.String(i.opt.Store))
	}
	i.wait.Record(ctx, report.WaitTime.Seconds(), metric.WithAttributes(labels...))
	count := func(c metric.Int64Counter, n int) {
		if n > 0 {
			c.Add(ctx, int64(n), metric.WithAttributes(labels...))
		}
	}
	count(i.lapsed, report.Lapsed)
	count(i.failed, report.FailedCalls)
	count(i.woken, report.Woken)
	if report.NoPlace {
		count(i.noPlace, 1)
	}
	if report.WakeErr != nil {
		count(i.notWoken, 1)
	}
	span := r.wait
	if r.hold != nil {
		span = r.hold
		i.hold.Record(ctx, report.HoldTime.Seconds(), metric.WithAttributes(labels...))
	}
	span.SetAttributes(attrOutcome.String(string(report.Outcome)))
	if report.Err != nil {
		span.SetAttributes(attrError.String(errorType(report.Err)))
		if report.Outcome != guard.OutcomeBusy {
			span.SetStatus(codes.Error, string(report.Outcome))
		}
	}
	if r.hold == nil {
		endWait(r.wait, report)
		return
	}
	r.hold.End()
}

// errorType is the name of an error's type. Its text may have data of the user.
func errorType(err error) string {
	name := strings.TrimLeft(fmt.Sprintf("%T", err), "*")
	return name[strings.LastIndexByte(name, '.')+1:]
}
