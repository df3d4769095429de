// Command function is the Lambda function of this package's tests. VARIANT "" is the
// right one; "unfenced" writes to lists that compare no fences. The others plant bugs
// in the store: "M01" grants a key that another holds, "M28 request" makes the request
// id the owner of a lease, "M28 init" has one owner for all leases of a process.
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
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/verify/processes"
)

func main() {
	cfg := lockstore.Config{URL: boot.MustURLFromEnv("LISTS_URL"), Getenv: boot.Getenv}
	variant := cfg.Getenv("VARIANT")
	plant := func(s lockstore.Store) lockstore.Store { return s }
	switch variant {
	case "M01":
		plant = func(s lockstore.Store) lockstore.Store { return m01{s} }
	case "M28 request":
		plant = func(s lockstore.Store) lockstore.Store { return m28{s, requestID} }
	case "M28 init":
		one := lockstore.NewOwner()
		plant = func(s lockstore.Store) lockstore.Store {
			return m28{s, func(context.Context) lockstore.Owner { return one }}
		}
	}
	g := boot.MustGuardFromEnv(planted(dynamostore.Opener, plant), planted(redisstore.Opener, plant))
	f := function{boot.Must(processes.Open(cfg, variant != "unfenced"))}
	work := map[string]func(context.Context, processes.Event) (string, error){"": guard.Wrap(g, key, f.add)}
	for name, doubt := range map[string]idempotency.Doubt{"AtLeastOnce": idempotency.AtLeastOnce, "AtMostOnce": idempotency.AtMostOnce} {
		once := boot.Must(idempotency.New(g, idempotency.Options{InDoubt: doubt}))
		work[name] = idempotency.Wrap(once, call, f.add)
	}
	boot.Start(g, func(ctx context.Context, e processes.Event) (string, error) { return work[e.Once](ctx, e) })
}

func call(_ context.Context, e processes.Event) (idempotency.Call, error) {
	fmt.Println("asked", e.Try)
	return idempotency.NewCall("element", e.List, e.Element), nil
}

func key(_ context.Context, e processes.Event) (string, error) {
	fmt.Println("asked", e.Try)
	return processes.Key(e.List), nil
}

type function struct{ lists processes.Lists }

func (f function) add(ctx context.Context, lock guard.Lock, e processes.Event) (string, error) {
	fmt.Println("granted", e.Try, int64(lock.Fence))
	held := ctx
	if e.IgnoresContext {
		ctx = context.WithoutCancel(ctx)
	}
	stamp := processes.Stamp{Fence: lock.Fence, Try: e.Try}
	elements, err := f.lists.Do(ctx, e.List, stamp, nil)
	if err != nil {
		return "", refused(held, e, err)
	}
	if e.Once == "" && slices.Contains(elements, e.Element) {
		return "was there", nil // an earlier try's
	}
	pause(ctx, time.Duration(e.Pause)*time.Millisecond)
	if _, err := f.lists.Do(ctx, e.List, stamp, append(elements, e.Element)); err != nil {
		return "", refused(held, e, err)
	}
	return "added", nil
}

// refused tells a holder that came too late from a holder whose key was granted to
// another too early. held looks at the clocks only now. So if held has not ended, the
// lease was trusted when the refusal came, however slow the process was.
func refused(held context.Context, e processes.Event, err error) error {
	switch {
	case !errors.Is(err, processes.ErrStale):
	case held.Err() == nil:
		fmt.Println("refused-while-trusted", e.Try)
	default:
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

// planted plants a bug in the stores that o opens.
func planted(o lockstore.Opener, plant func(lockstore.Store) lockstore.Store) lockstore.Opener {
	return lockstore.Opener{Schemes: o.Schemes, Open: func(ctx context.Context, cfg lockstore.Config) (lockstore.Store, error) {
		s, err := o.Open(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return plant(s), nil
	}}
}

// m01 releases the lease of another holder. It finds the owner in Holder.ID, where
// its own Acquire put it. Fences grow, and an owner that asks again gets its lease.
type m01 struct{ lockstore.Store }

func (s m01) Unwrap() lockstore.Store { return s.Store }

func (s m01) Acquire(ctx context.Context, r lockstore.Request) (lockstore.Lease, error) {
	r.HolderInfo.ID, r.JoinQueue = string(r.Owner), false
	lease, err := s.Store.Acquire(ctx, r)
	held, ok := errors.AsType[*lockstore.HeldError](err)
	if !ok {
		return lease, err
	}
	if err := s.Release(ctx, lockstore.Lease{Key: r.Key, Owner: lockstore.Owner(held.Holder.ID)}); err != nil {
		return lockstore.Lease{}, err
	}
	return s.Store.Acquire(ctx, r)
}

type m28 struct {
	lockstore.Store
	owner func(context.Context) lockstore.Owner
}

func (s m28) Unwrap() lockstore.Store { return s.Store }

func (s m28) Acquire(ctx context.Context, r lockstore.Request) (lockstore.Lease, error) {
	r.Owner, r.JoinQueue = s.owner(ctx), false // the guard would wait with another owner
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
