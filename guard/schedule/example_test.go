package schedule_test

import (
	"context"
	"fmt"
	"time"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/schedule"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// The main function of a Lambda that a schedule starts once an hour.
func Example() {
	g := boot.MustGuardFromEnv(dynamostore.Opener)
	boot.Start(g, schedule.Wrap(g.WithCooldown(sameTrigger), "schedule/report", handle))
}

// sameTrigger is longer than the gap between triggers that come twice, and shorter than the schedule's period: a
// trigger that comes twice does not make two reports.
const sameTrigger = 10 * time.Minute

type event struct{ Time time.Time }

func handle(ctx context.Context, lock guard.Lock, e event) error {
	// One run of the schedule is here at a time.
	fmt.Println("report of", e.Time.Format(time.DateOnly))
	return nil
}
