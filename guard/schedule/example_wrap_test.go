package schedule_test

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/schedule"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// The handler of the package's example with a store in memory, as in a test.
func ExampleWrapWith() {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		panic(err)
	}
	handler, err := schedule.WrapWith(g, "schedule/report", handle, options)
	if err != nil {
		panic(err)
	}
	e := event{time.Date(2026, time.November, 21, 6, 0, 0, 0, time.UTC)}
	for range 2 {
		result, err := handler.Handle(context.Background(), e)
		fmt.Println("skipped:", result.Skipped, err)
	}
	// Output:
	// report of 2026-11-21
	// skipped: false <nil>
	// skipped: true <nil>
}
