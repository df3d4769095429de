// Command function is the Lambda of the lock-set runs. VARIANT "" is the right
// one; "unfenced" writes to lists that compare no fences, and two plant the bug
// M28: "M28 request" makes the request id the owner of a lease, "M28 init" has one
// owner for all that the process ever locks.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/verify/lockset"
)

func main() {
	cfg := boot.Config("LISTS_URL")
	variant := cfg.Getenv("VARIANT")
	var owner func(context.Context) lockstore.Owner
	switch variant {
	case "M28 request":
		owner = requestID
	case "M28 init":
		one := lockstore.NewOwner()
		owner = func(context.Context) lockstore.Owner { return one }
	}
	redis := owned(owner, redisstore.Open)
	g := boot.Guard(lockstore.Openers{"dynamodb": owned(owner, dynamostore.Open), "redis": redis, "valkey": redis})
	f := function{boot.Must(lockset.Open(cfg, variant != "unfenced"))}
	boot.Start(g, guard.Wrap(g, key, f.add))
}

func key(_ context.Context, e lockset.Event) (string, error) {
	fmt.Println("asked", e.Try)
	return lockset.Key(e.List), nil
}

type function struct{ lists lockset.Lists }

func (f function) add(ctx context.Context, lock guard.Lock, e lockset.Event) (string, error) {
	fmt.Println("granted", e.Try, int64(lock.Fence))
	if e.Stubborn {
		ctx = context.WithoutCancel(ctx)
	}
	stamp := lockset.Stamp{Fence: lock.Fence, Try: e.Try}
	elements, err := f.lists.Read(ctx, e.List, stamp)
	if err != nil {
		return "", refused(e, err)
	}
	if slices.Contains(elements, e.Element) {
		return "was there", nil // an earlier try's
	}
	pause(ctx, time.Duration(e.Pause)*time.Millisecond)
	if err := f.lists.Write(ctx, e.List, stamp, append(elements, e.Element)); err != nil {
		return "", refused(e, err)
	}
	return "added", nil
}

func refused(e lockset.Event, err error) error {
	if errors.Is(err, lockset.ErrStale) {
		fmt.Println("refused", e.Try)
	}
	return err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

type opener func(context.Context, lockstore.Config) (lockstore.Store, error)

// owned plants M28 in the stores that open returns.
func owned(owner func(context.Context) lockstore.Owner, open opener) opener {
	if owner == nil {
		return open
	}
	return func(ctx context.Context, cfg lockstore.Config) (lockstore.Store, error) {
		s, err := open(ctx, cfg)
		return m28{s, owner}, err
	}
}

type m28 struct {
	lockstore.Store
	owner func(context.Context) lockstore.Owner
}

func (s m28) Unwrap() lockstore.Store { return s.Store }

func (s m28) Acquire(ctx context.Context, r lockstore.Request) (lockstore.Lease, error) {
	r.Owner = s.owner(ctx)
	return s.Store.Acquire(ctx, r)
}

func (s m28) Renew(ctx context.Context, l lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	l.Owner = s.owner(ctx)
	return s.Store.Renew(ctx, l, ttl)
}

func (s m28) Release(ctx context.Context, l lockstore.Lease) error {
	l.Owner = s.owner(ctx)
	return s.Store.Release(ctx, l)
}

func requestID(ctx context.Context) lockstore.Owner {
	lc, _ := lambdacontext.FromContext(ctx)
	return lockstore.Owner(lc.AwsRequestID)
}
