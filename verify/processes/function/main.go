// Command function is the Lambda function of this package's tests. VARIANT "" is the right one; "unfenced" writes to
// lists that compare no fences. The others plant bugs in the store: "M01" grants a key that another holds, "M26" never comes first
// with a release beside others, "M28" makes the request id the owner of a lease.
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
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/verify/processes"
)

func main() {
	cfg := lockstore.Config{URL: boot.MustURLFromEnv("LISTS_URL"), Getenv: boot.EnvVar}
	variant := cfg.Getenv("VARIANT")
	plant := func(d driver.Driver) driver.Driver { return d }
	switch variant {
	case "M01":
		plant = func(d driver.Driver) driver.Driver { return m01{d} }
	case "M26":
		plant = func(d driver.Driver) driver.Driver { return m26{d} }
	case "M28":
		plant = func(d driver.Driver) driver.Driver { return m28{d} }
	}
	g := boot.MustGuardFromEnv(planted(dynamostore.Opener, plant), planted(redisstore.Opener, plant))
	f := function{boot.Must(processes.Open(cfg, variant != "unfenced"))}
	once := map[string]guard.Wrapped[processes.Event, string]{}
	for name, doubt := range map[string]idempotency.Doubt{"AtLeastOnce": idempotency.AtLeastOnce, "AtMostOnce": idempotency.AtMostOnce} {
		once[name] = idempotency.Wrap(boot.Must(idempotency.New(g, idempotency.Options{InDoubt: doubt})), call, f.add)
	}
	boot.Start(g, guard.WrapUnlocked(func(ctx context.Context, e processes.Event) (string, error) {
		if e.Once != "" {
			return once[e.Once].Handle(ctx, e)
		}
		work := f.add
		if e.Reads {
			work = f.read
		}
		return guard.Wrap(g.WithMaxHolders(e.Holders), key, work).Handle(ctx, e)
	}))
}

func call(_ context.Context, e processes.Event) (idempotency.Call, error) {
	fmt.Println("asked", e.Try)
	return idempotency.NewCall("element", e.List, e.Element), nil
}

func key(_ context.Context, e processes.Event) (string, error) {
	fmt.Println("asked", e.Try)
	return processes.Key(e.List), nil
}

type function struct{ lists *processes.Lists }

func (f function) add(ctx context.Context, lock guard.Lock, e processes.Event) (string, error) {
	fmt.Println("granted", e.Try, int64(lock.Fence), lock.Seat)
	held := ctx
	if e.IgnoresContext {
		ctx = context.WithoutCancel(ctx)
	}
	stamp := processes.Stamp{Fence: lock.Fence, Try: e.Try}
	part := processes.Part(e.List, lock.Seat)
	elements, err := f.lists.Do(ctx, part, stamp, nil)
	if err != nil {
		return "", refused(held, e, err)
	}
	if e.Once == "" && slices.Contains(elements, e.Element) {
		return "was there", nil // an earlier try's
	}
	_ = pause.For(ctx, time.Duration(e.Pause)*time.Millisecond)
	if _, err := f.lists.Do(ctx, part, stamp, append(elements, e.Element)); err != nil {
		return "", refused(held, e, err)
	}
	return "added", nil
}

var errChanged = errors.New("the list has changed under its reader")

// read shows the list its fence, which then refuses an earlier writer. So only a later one can change the list
// between the two readings, and that is granted the key when no reader has it any more.
func (f function) read(ctx context.Context, lock guard.Lock, e processes.Event) (string, error) {
	fmt.Println("granted", e.Try, int64(lock.Fence), lock.Seat)
	held := ctx
	if e.IgnoresContext {
		ctx = context.WithoutCancel(ctx)
	}
	_, err := f.lists.Do(ctx, e.List, processes.Stamp{Fence: lock.Fence, Try: e.Try}, nil)
	if err != nil && !errors.Is(err, processes.ErrStale) { // a later reader may have been here first
		return "", err
	}
	before, err := f.lists.ReadAll(ctx, e.List)
	if err != nil {
		return "", err
	}
	_ = pause.For(ctx, time.Duration(e.Pause)*time.Millisecond)
	after, err := f.lists.ReadAll(ctx, e.List)
	if err != nil {
		return "", err
	}
	if !slices.Equal(before.Elements, after.Elements) {
		return "", refused(held, e, errChanged)
	}
	return "read", nil
}

// refused tells a holder that came too late from a holder whose key was granted to
// another too early. held looks at the clocks only now. So if held has not ended, the
// lease was trusted when the refusal came or the change was seen, however slow the process was.
func refused(held context.Context, e processes.Event, err error) error {
	what := "refused"
	switch {
	case errors.Is(err, errChanged):
		what = "changed"
	case !errors.Is(err, processes.ErrStale):
		return err
	}
	if held.Err() == nil {
		what += "-while-trusted"
	}
	fmt.Println(what, e.Try)
	return err
}

// planted plants a bug in the stores that o opens.
func planted(o lockstore.SchemeOpener, plant func(driver.Driver) driver.Driver) lockstore.SchemeOpener {
	return lockstore.SchemeOpener{Schemes: o.Schemes, Open: func(ctx context.Context, cfg lockstore.Config) (*lockstore.Store, error) {
		s, err := o.Open(ctx, cfg)
		if err != nil {
			return nil, err
		}
		return s.WrapDriver(plant), nil
	}}
}

// m01 releases the lease of another holder. It finds the owner in the ID of the holder, where
// its own Acquire put it. Fences grow, and an owner that asks again gets its lease.
type m01 struct{ driver.Driver }

func (d m01) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if r.Kind == driver.Acquire {
		r.Holder, r.Join = lockstore.HolderInfo{ID: string(r.Owner)}.Encode(), false
	}
	a, err := d.Driver.Do(ctx, key, r)
	if r.Kind != driver.Acquire || err != nil || a.Outcome != driver.Refused {
		return a, err
	}
	holder := driver.Owner(lockstore.DecodeHolderInfo(a.Status.Holder).ID)
	if _, err := d.Driver.Do(ctx, key, driver.Request{Kind: driver.Abandon, Owner: holder}); err != nil {
		return driver.Answer{}, err
	}
	return d.Driver.Do(ctx, key, r)
}

// m26 releases no lease that has another beside it: it says that others were first.
type m26 struct{ driver.Driver }

func (d m26) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if r.Kind == driver.Release {
		a, err := d.Driver.Do(ctx, key, driver.Request{Kind: driver.Inspect})
		if err == nil && len(a.Status.Holders) > 1 {
			return driver.Answer{}, fmt.Errorf("planted: %w: %w", lockstore.ErrUnavailable, lockstore.ErrContended)
		}
	}
	return d.Driver.Do(ctx, key, r)
}

// m28 has the id of the invocation in each request.
type m28 struct{ driver.Driver }

func (d m28) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	lc, _ := lambdacontext.FromContext(ctx)
	r.Owner, r.Join = lockstore.Owner(lc.AwsRequestID), false // the guard would wait with another owner
	return d.Driver.Do(ctx, key, r)
}
