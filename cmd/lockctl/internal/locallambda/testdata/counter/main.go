// Command counter is a function whose work reads a number in a file, waits, and writes the next number. MODE
// is what is wrong with it, if anything. lockctl's tests run it. It is never deployed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

type event struct {
	N int `json:"n"`
}

func main() {
	writers := boot.MustGuardFromEnv(redisstore.Opener, dynamostore.Opener)
	readers := writers.WithMaxHolders(lockstore.MaxHolders)
	do := func(ctx context.Context, g *guard.Guard, work func(context.Context) error) error {
		return g.Do(ctx, "counter", func(ctx context.Context, _ guard.Lock) error { return work(ctx) })
	}
	handle := func(ctx context.Context, e event) error { return do(ctx, writers, count) }
	switch mode := os.Getenv("MODE"); mode {
	case "":
	case "waits":
		handle = func(ctx context.Context, _ event) error { return do(ctx, writers, wait) }
	case "ignores its context":
		handle = func(ctx context.Context, _ event) error {
			return do(ctx, writers, func(ctx context.Context) error { return count(context.WithoutCancel(ctx)) })
		}
	case "answers success":
		handle = func(ctx context.Context, _ event) error {
			_ = do(ctx, writers, count)
			return nil
		}
	case "guards every other event":
		handle = func(ctx context.Context, e event) error {
			if e.N%2 == 0 {
				return count(ctx)
			}
			return do(ctx, writers, count)
		}
	case "writers among readers", "writers elsewhere":
		if mode == "writers elsewhere" {
			_ = os.Setenv("LOCK_URL", os.Getenv("LOCK_URL")+"?prefix=elsewhere:")
			writers = boot.MustGuardFromEnv(redisstore.Opener)
		}
		handle = func(ctx context.Context, e event) error {
			if e.N%4 == 0 {
				return do(ctx, writers, count)
			}
			return do(ctx, readers, wait)
		}
	case "queue":
		boot.Start(writers, sqsbatch.Wrap(writers, keyOf, func(ctx context.Context, _ guard.Lock, _ events.SQSMessage) error { return count(ctx) }))
	default:
		panic("unknown mode " + mode)
	}
	boot.Start(writers, guard.WrapUnlocked(func(ctx context.Context, e event) (string, error) { return "done", handle(ctx, e) }))
}

func keyOf(_ context.Context, m events.SQSMessage) (string, error) {
	if m.Body == "poison" {
		return "", errors.New("it is poison")
	}
	return "counter", nil
}

func wait(ctx context.Context) error {
	select {
	case <-time.After(300 * time.Millisecond):
	case <-ctx.Done():
	}
	return context.Cause(ctx) // after a freeze both have happened
}

func count(ctx context.Context) error {
	name, n := os.Getenv("COUNTER"), 0
	text, err := os.ReadFile(name)
	if err == nil {
		_, err = fmt.Sscan(string(text), &n)
	}
	if err == nil {
		err = wait(ctx)
	}
	if err != nil {
		return err
	}
	// A reader sees the file before it or after it.
	next := fmt.Sprint(name, ".", os.Getpid())
	return errors.Join(os.WriteFile(next, fmt.Append(nil, n+1), 0o600), os.Rename(next, name))
}
