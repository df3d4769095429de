package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/schedule"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// The handler of the package's example with a store in memory, as in a test.
func ExampleWrap() {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		panic(err)
	}
	handler := schedule.Wrap(g.WithCooldown(sameTrigger), "schedule/report", handle)
	for range 2 {
		result, err := handler.Handle(context.Background(), []byte(`{"time": "2026-11-21T06:00:00Z"}`))
		fmt.Println("skipped:", result.Skipped, err)
	}
	// Output:
	// report of 2026-11-21
	// skipped: false <nil>
	// skipped: true <nil>
}

// tick is what EventBridge Scheduler sends if this is the input of the schedule's target:
//
//	{"schedule": "<aws.scheduler.schedule-arn>", "time": "<aws.scheduler.scheduled-time>"}
type tick struct {
	Schedule string    `json:"schedule"`
	Time     time.Time `json:"time"`
}

// call is the same each time that a tick comes. (<aws.scheduler.execution-id> is not.)
func call(_ context.Context, t tick) (idempotency.Call, error) {
	if t.Schedule == "" || t.Time.IsZero() {
		return idempotency.Call{}, errors.New(`the event has no schedule or no time: set the input of the schedule's target, {"schedule": "<aws.scheduler.schedule-arn>", "time": "<aws.scheduler.scheduled-time>"}`)
	}
	return idempotency.NewCall("tick", t.Schedule, t.Time.Format(time.RFC3339)), nil
}

// A tick of EventBridge Scheduler that comes twice works once, also long after the first.
func ExampleOnce() {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		panic(err)
	}
	once, err := idempotency.New(g, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	handler := schedule.Wrap(g, "schedule/report", schedule.Once(once, call, func(_ context.Context, _ guard.Lock, t tick) error {
		fmt.Println("report of", t.Time.Format(time.DateOnly))
		return nil
	}))
	text, err := os.ReadFile("testdata/scheduler.json")
	if err != nil {
		panic(err)
	}
	for range 2 {
		result, err := handler.Handle(context.Background(), text)
		fmt.Println("skipped:", result.Skipped, err)
	}
	_, err = handler.Handle(context.Background(), []byte(`{}`))
	fmt.Println(err)
	// Output:
	// report of 2026-11-21
	// skipped: false <nil>
	// skipped: true <nil>
	// lock "" is invalid: the event has no schedule or no time: set the input of the schedule's target, {"schedule": "<aws.scheduler.schedule-arn>", "time": "<aws.scheduler.scheduled-time>"}
}
