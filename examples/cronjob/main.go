// Command cronjob is a job outside Lambda that may take hours: cron starts it on several hosts,
// and one of them works, also if another begins when the job is done already.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store := boot.Must(lockstore.Open(ctx, boot.MustURLFromEnv("LOCK_URL").String(), boot.EnvVar, dynamostore.Opener, redisstore.Opener))
	os.Exit(run(ctx, boot.Must(guard.New(store, options))))
}

var options = guard.Options{
	MaxHold:    4 * time.Hour,    // without it the work ends after 15 minutes
	Wait:       90 * time.Second, // longer than the lease of a host that has died
	HolderInfo: holder,
	Observe:    guard.LogReports(nil),
}

// sameNight is longer than the clocks of the hosts differ. So a host whose cron is late does no second
// report, also when the first one took a second.
const sameNight = 10 * time.Minute

func run(ctx context.Context, g *guard.Guard) (exit int) {
	return status(g.WithCooldown(sameNight).Do(ctx, "nightly/report", report))
}

// holder is what lockctl show says of this process.
func holder(context.Context) lockstore.HolderInfo {
	host, _ := os.Hostname()
	return lockstore.HolderInfo{Name: host, ID: fmt.Sprint(os.Getpid())}
}

// status is 0 for a host that finds another at work, or the work done. cron mails all output of a job, whatever its status.
func status(err error) int {
	busy, _ := err.(*guard.LockBusy)
	if err == nil || busy != nil && (busy.State == lockstore.Held || busy.State.Done()) {
		return 0
	}
	return 1 // the log line of the guard says why
}

// report is the work. Its context ends if the lock is lost, and after MaxHold.
func report(ctx context.Context, lock guard.Lock) error {
	for part := range 3 {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		fmt.Println("part", part, "with fence", lock.Fence) // hand ctx and lock.Fence to what writes
	}
	return nil
}
