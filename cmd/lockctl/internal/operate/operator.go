// Package operate has the commands for operators: they look at locks and end leases.
package operate

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
)

// operator is what the commands have in common.
type operator struct {
	stores.Settings
	store    *lockstore.Store
	key      string    // the first argument
	out, err io.Writer // for the answer, and for what is none
}

// command makes a command that works on a store. PreRunE of cmd checks flags and arguments: it comes before the store.
func (o *operator) command(cmd *cobra.Command, run func(context.Context) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.out, o.err = exit.Writer{To: cmd.OutOrStdout()}, exit.Writer{To: cmd.ErrOrStderr()}
		if len(args) > 0 {
			o.key = args[0]
		}
		store, err := o.Open(cmd.Context())
		if err != nil {
			return err
		}
		o.store = o.waking(store)
		return run(cmd.Context())
	}
	cmd.Flags().SortFlags = false
	o.AddTo(cmd.Flags())
	return cmd
}

func (o *operator) inspect(ctx context.Context) (lockstore.Status, error) {
	return stores.Call(ctx, func(ctx context.Context) (lockstore.Status, error) { return o.store.Inspect(ctx, o.key) })
}

var states = []string{
	lockstore.Free.String(), lockstore.Reserved.String(), lockstore.Held.String(), lockstore.Revoked.String(),
	lockstore.Completed.String(), lockstore.Cooldown.String(), lockstore.InDoubt.String(),
}

// wantStates is an error if a flag has what is no state.
func wantStates(flag string, given ...string) error {
	for _, s := range given {
		if !slices.Contains(states, s) {
			return exit.WrongUsage("%s is %.40q; want one of %s", flag, s, strings.Join(states, ", "))
		}
	}
	return nil
}
