package guard_test

import (
	"context"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// BenchmarkDo is one guarded invocation around the memory store, under a
// deadline as Lambda sets it. Budget: 3 µs and 20 allocations.
func BenchmarkDo(b *testing.B) {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
	defer cancel()
	work := func(context.Context, guard.Lock) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		if err := g.Do(ctx, "account/7", work); err != nil {
			b.Fatal(err)
		}
	}
}
