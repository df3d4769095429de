package operate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/timeflag"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
)

type resolver struct {
	operator
	how     string
	fence   lockstore.Fence
	file    string // with the result; "" is none
	result  []byte // which never reaches an error; nil is none
	version string // of the result
	time    time.Duration
}

// What resolve says about the work.
const (
	howEffect   = "effect"
	howNoEffect = "no-effect"
)

const (
	aboutResolve = `Find out first whether its run has ended, and whether the work had its effect: docs/operations.md
says how.`
	aboutEffect = `it had its effect: nobody runs the work again until --result-time is over. A repeat gets
             --result; without it the error RepeatNoAnswer, or, if the work has no result, no error.`
	aboutNoEffect = `it had none, and will have none: the key is free, and the work may run again.`
	resultTime    = 24 * time.Hour
)

func Resolve() *cobra.Command {
	var r resolver
	cmd := &cobra.Command{
		Use:   "resolve [flags] --fence N KEY effect|no-effect",
		Short: "Say how the work of a key in doubt has ended",
		Long: aboutResolve + `

  effect     ` + aboutEffect + `
  no-effect  ` + aboutNoEffect + `

The result is JSON, at most 261,632 bytes, in the form in which the function returns it; it cannot
be changed later. --result-version is Options.Version of package guard/idempotency.

Exit status: 0 if it is resolved, also if it was before; 1 if the key is not in doubt with this
fence; 75 while a lease of it lasts.`,
		Example: `  lockctl resolve --fence 1795295118105467 charge/7 no-effect
  lockctl resolve --fence 1795295118105467 --result result.json charge/7 effect`,
		Args:    exit.Args(2, 2),
		PreRunE: r.validate,
	}
	f := cmd.Flags()
	f.Int64Var((*int64)(&r.fence), "fence", 0, "the fence `N` of the work, as lockctl show prints it; needed")
	f.StringVar(&r.file, "result", "", "store the JSON in this `FILE` as the result of the work")
	f.StringVar(&r.version, "result-version", "", "Options.Version of the function, a `TEXT` of at most 64 bytes")
	r.time = resultTime
	timeflag.Var(f, &r.time, "result-time", "", "nobody runs the work again for this `TIME`, 1s to 744h")
	return r.command(cmd, r.run)
}

func (r *resolver) validate(cmd *cobra.Command, args []string) (err error) {
	r.how = args[1]
	set := cmd.Flags().Changed
	switch {
	case r.how == howNoEffect && (set("result") || set("result-version") || set("result-time")):
		return exit.WrongUsage("--result, --result-version and --result-time are for %s", howEffect)
	case set("result-version") && !set("result"):
		return exit.WrongUsage("--result-version wants --result")
	}
	if r.file != "" {
		if r.result, err = os.ReadFile(r.file); err != nil {
			return exit.WrongUsage("--result: %w", err)
		}
	}
	return r.check()
}

func (r *resolver) check() error {
	switch {
	case r.how != howEffect && r.how != howNoEffect:
		return exit.WrongUsage("the last argument is %.40q; want %s or %s", r.how, howEffect, howNoEffect)
	case r.fence <= 0:
		return exit.WrongUsage("want --fence: the fence of the work, as lockctl show prints it")
	}
	return exit.Bounds("--result-time", r.time, lockstore.MinTTL, lockstore.MaxResultTime)
}

func (r *resolver) run(ctx context.Context) error {
	before, err := r.inspect(ctx)
	if err != nil {
		return err
	}
	_, err = stores.Call(ctx, func(ctx context.Context) (any, error) {
		if r.how == howNoEffect {
			return nil, r.store.ResolveNoEffect(ctx, r.key, r.fence)
		}
		return nil, idempotency.ResolveEffect(ctx, r.store, r.key, r.fence, r.result,
			idempotency.Options{ResultTime: r.time, MaxResultBytes: idempotency.MaxResultBytes, Version: r.version})
	})
	if lasts, ok := errors.AsType[*lockstore.Refused](err); ok {
		return exit.Errorf(exit.Busy, "%w; resolve it when this is over, if it is in doubt then", lasts)
	}
	if errors.Is(err, lockstore.ErrLost) {
		return r.notInDoubt(ctx)
	}
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%q is resolved: its work had its effect, and does not run again for %v.", r.key, r.time)
	switch {
	case r.how == howNoEffect:
		text = fmt.Sprintf("%q is resolved: its work had no effect. It is free, and the work may run again.", r.key)
	case before.State.Done() && before.Fence == r.fence:
		text = fmt.Sprintf("%q was completed before, by lockctl resolve or by the work itself. Its result, and for how long it is stored, stay as they are.", r.key)
	}
	if _, err := fmt.Fprintln(r.out, text); err != nil {
		return fmt.Errorf("%q is resolved; %w", r.key, err)
	}
	return nil
}

func (r *resolver) notInDoubt(ctx context.Context) error {
	seen, err := r.inspect(ctx)
	switch {
	case err != nil:
		return err
	case seen.State == lockstore.InDoubt:
		return exit.Errorf(exit.No, "%q is in doubt with the fence %d, and not with %d; nothing was done", r.key, seen.Fence, r.fence)
	}
	return exit.Errorf(exit.No, "%q is not in doubt, it has the state %v; nothing was done", r.key, seen.State)
}
