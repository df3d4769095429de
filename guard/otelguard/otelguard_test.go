package otelguard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/otelguard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

type telemetry struct {
	*guard.Guard
	store  *lockstore.Store
	tracer trace.Tracer
	spans  *tracetest.InMemoryExporter
	reader *sdkmetric.ManualReader
}

const secret = "account/of-a-person"

// global makes the providers OpenTelemetry's global ones.
func global(t *testing.T, traces trace.TracerProvider, meters metric.MeterProvider) {
	beforeTraces, beforeMeters := otel.GetTracerProvider(), otel.GetMeterProvider()
	t.Cleanup(func() { otel.SetTracerProvider(beforeTraces); otel.SetMeterProvider(beforeMeters) })
	otel.SetTracerProvider(traces)
	otel.SetMeterProvider(meters)
}

func open(t *testing.T, opt guard.Options) telemetry {
	t.Helper()
	x := telemetry{store: memstore.New(nil), spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	traces := sdktrace.NewTracerProvider(sdktrace.WithSyncer(x.spans))
	x.tracer = traces.Tracer("test")
	global(t, traces, sdkmetric.NewMeterProvider(sdkmetric.WithReader(x.reader)))
	opt, err := otelguard.Instrument(opt, "memory")
	require.NoError(t, err)
	x.Guard, err = guard.New(x.store, opt)
	require.NoError(t, err)
	return x
}

// tree is each span's name, indented below its parent's, with its attributes.
func (x telemetry) tree() string {
	var b strings.Builder
	spans := x.spans.GetSpans()
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	var write func(parent trace.SpanID, indent string)
	write = func(parent trace.SpanID, indent string) {
		for _, s := range spans {
			if s.Parent.SpanID() != parent {
				continue
			}
			fmt.Fprint(&b, indent, s.Name)
			for _, a := range s.Attributes {
				if a.Key != "lambdalock.fence" {
					fmt.Fprintf(&b, " %s=%s", a.Key, a.Value.String())
				}
			}
			if s.Status.Code == codes.Error {
				fmt.Fprint(&b, " error=", s.Status.Description)
			}
			b.WriteByte('\n')
			write(s.SpanContext.SpanID(), indent+"  ")
		}
	}
	write(trace.SpanID{}, "")
	return b.String()
}

// histogram is the sum in seconds by outcome.
func (x telemetry) histogram(t *testing.T, name string) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, x.reader.Collect(t.Context(), &all))
	sums := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			require.Equal(t, "s", m.Unit)
			for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
				store, _ := p.Attributes.Value("lambdalock.store")
				require.Equal(t, "memory", store.AsString())
				require.Equal(t, 2, p.Attributes.Len(), "no key in a histogram")
				outcome, _ := p.Attributes.Value(attribute.Key("lambdalock.outcome"))
				sums[outcome.AsString()] += p.Sum
			}
		}
	}
	return sums
}

// counters are the sums of the counters.
func (x telemetry) counters(t *testing.T) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, x.reader.Collect(t.Context(), &all))
	sums := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
				for _, p := range sum.DataPoints {
					require.Equal(t, 2, p.Attributes.Len(), "no key in a counter")
					sums[m.Name] += p.Value
				}
			}
		}
	}
	return sums
}

func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

type generic[T any] struct{}

func (*generic[T]) Error() string { return "" }

func TestSpans(t *testing.T) {
	bubble(t, "a run, under the caller's span and around the work's", func(t *testing.T) {
		x := open(t, guard.Options{})
		ctx, caller := x.tracer.Start(t.Context(), "handler")
		<-time.After(time.Second)
		require.NoError(t, x.Do(ctx, secret, func(ctx context.Context, _ guard.Lock) error {
			<-time.After(2 * time.Second)
			_, span := x.tracer.Start(ctx, "write")
			span.End()
			return nil
		}))
		caller.End()
		require.Equal(t, `handler
  lock wait lambdalock.store=memory
  lock hold lambdalock.store=memory lambdalock.outcome=ok
    write
`, x.tree())
		require.Equal(t, map[string]float64{"ok": 0}, x.histogram(t, "lambdalock.wait.duration"))
		require.Equal(t, map[string]float64{"ok": 2}, x.histogram(t, "lambdalock.hold.duration"))
		require.NotContains(t, fmt.Sprintf("%+v", x.spans.GetSpans()), secret)
		for _, s := range x.spans.GetSpans() {
			assert.Equal(t, trace.SpanKindInternal, s.SpanKind)
		}
	})
	bubble(t, "a wait behind another run", func(t *testing.T) {
		x := open(t, guard.Options{Wait: 10 * time.Second})
		lease, err := x.store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		time.AfterFunc(3*time.Second, func() { assert.NoError(t, x.store.Release(t.Context(), lease)) })
		require.NoError(t, x.Do(t.Context(), "k", func(context.Context, guard.Lock) error { return nil }))
		require.Equal(t, "lock wait lambdalock.store=memory lambdalock.queue_position=1\n"+
			"lock hold lambdalock.store=memory lambdalock.outcome=ok\n", x.tree())
		require.InDelta(t, 3, x.histogram(t, "lambdalock.wait.duration")["ok"], 1)
		require.Empty(t, x.counters(t))
	})
	bubble(t, "what went wrong in a wait", func(t *testing.T) {
		x := telemetry{reader: sdkmetric.NewManualReader()}
		global(t, sdktrace.NewTracerProvider(), sdkmetric.NewMeterProvider(sdkmetric.WithReader(x.reader)))
		opt, err := otelguard.Instrument(guard.Options{}, "memory")
		require.NoError(t, err)
		report := guard.Report{Outcome: guard.OutcomeBusy, Calls: 5, MissedTurns: 2, NoPlace: true, FailedCalls: 3, OwnersWoken: 4, WakeErr: errors.New(secret)}
		opt.Observe(t.Context(), report)
		require.Equal(t, map[string]int64{"lambdalock.lapsed": 2, "lambdalock.no_place": 1, "lambdalock.failed_calls": 3, "lambdalock.woken": 4, "lambdalock.not_woken": 1}, x.counters(t))
	})
	bubble(t, "what went wrong in a release of a lease", func(t *testing.T) {
		x := open(t, guard.Options{Wake: func(context.Context, lockstore.WakeAddress) error { return lockstore.Invalidf("gone") }})
		lease, err := x.Acquire(t.Context(), guard.LeaseRequest{Key: "k", TTL: time.Minute})
		require.NoError(t, err)
		_, err = x.Park(t.Context(), guard.LeaseRequest{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute}, 30*time.Second, lockstore.TaskToken("t"))
		require.ErrorIs(t, err, lockstore.ErrRefused)
		before := x.tree()
		require.NoError(t, x.Release(t.Context(), lease))
		require.Equal(t, before, x.tree(), "it has asked for no lock")
		require.Equal(t, map[string]int64{"lambdalock.not_woken": 1}, x.counters(t))
	})
	bubble(t, "a busy lock is no error of the span", func(t *testing.T) {
		x := open(t, guard.Options{})
		_, err := x.store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		require.Error(t, x.Do(t.Context(), "k", nothing))
		require.Equal(t, "lock wait lambdalock.store=memory lambdalock.outcome=busy error.type=LockBusy\n", x.tree())
		require.Empty(t, x.histogram(t, "lambdalock.hold.duration"))
	})
	bubble(t, "an event that another's run covers is no error of the span", func(t *testing.T) {
		x := open(t, guard.Options{Coalesce: "index", Wait: time.Minute})
		_, err := x.store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		_, err = x.store.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: lockstore.NewOwner(), TTL: time.Minute, JoinQueue: true, Work: "index", Event: "1"})
		require.ErrorIs(t, err, lockstore.ErrRefused)
		require.Error(t, x.Do(guard.WithEventID(t.Context(), "2"), "k", nothing))
		require.Equal(t, "lock wait lambdalock.store=memory lambdalock.outcome=covered error.type=LockCovered\n", x.tree())
	})
	bubble(t, "an error's text is in no span", func(t *testing.T) {
		x := open(t, guard.Options{})
		require.Error(t, x.Do(t.Context(), "k", func(context.Context, guard.Lock) error { return errors.New(secret) }))
		require.Contains(t, x.tree(), "lock hold lambdalock.store=memory lambdalock.outcome=error error.type=errorString error=error\n")
		require.NotContains(t, fmt.Sprintf("%+v", x.spans.GetSpans()), secret)
	})
	bubble(t, "an error's type may be generic", func(t *testing.T) {
		x := open(t, guard.Options{})
		require.Error(t, x.Do(t.Context(), "k", func(context.Context, guard.Lock) error { return &generic[fmt.Stringer]{} }))
		require.Contains(t, x.tree(), " error.type=generic error=error\n")
	})
	bubble(t, "calls inside the work end no span of the run around them", func(t *testing.T) {
		x := open(t, guard.Options{})
		lease, err := x.Acquire(t.Context(), guard.LeaseRequest{Key: "long", TTL: time.Minute})
		require.NoError(t, err)
		require.NoError(t, x.Do(t.Context(), "k", func(ctx context.Context, _ guard.Lock) error {
			require.Error(t, x.Do(ctx, "k", nothing), "this run holds it")
			require.NoError(t, x.Release(ctx, lease))
			return x.Do(ctx, "inner", nothing)
		}))
		require.Equal(t, `lock wait lambdalock.store=memory lambdalock.outcome=acquired
lock wait lambdalock.store=memory
lock hold lambdalock.store=memory lambdalock.outcome=ok
  lock wait lambdalock.store=memory
  lock hold lambdalock.store=memory lambdalock.outcome=ok
`, x.tree())
	})
	bubble(t, "the keys of a DoAll, one inside the other", func(t *testing.T) {
		x := open(t, guard.Options{})
		require.NoError(t, x.DoAll(t.Context(), []string{"b", "a"}, func(context.Context, []guard.Lock) error { return nil }))
		require.Equal(t, `lock wait lambdalock.store=memory
lock hold lambdalock.store=memory lambdalock.outcome=ok
  lock wait lambdalock.store=memory
  lock hold lambdalock.store=memory lambdalock.outcome=ok
`, x.tree())
	})
	bubble(t, "hooks that were there are called", func(t *testing.T) {
		steps, reports := 0, 0
		x := open(t, guard.Options{
			Granted: func(context.Context, guard.Report) context.Context { steps++; return nil },
			Observe: func(context.Context, guard.Report) { reports++ },
		})
		require.NoError(t, x.Do(t.Context(), "k", nothing))
		require.Equal(t, []int{1, 1}, []int{steps, reports})
	})
}

func nothing(context.Context, guard.Lock) error { return nil }
