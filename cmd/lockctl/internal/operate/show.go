package operate

import (
	"context"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
)

const aboutState = `STATE is one of these:
  free       nobody has the key
  reserved   those who wait get the key first; the next of them may be at work already
  held       somebody has a lease of the key
  revoked    an operator has ended the lease (lockctl revoke), and nobody gets the key until
             its run ends or LEFT is over
  completed  the work is done and its result is stored: nobody gets the key until LEFT is over
  cooldown   the work is done, without a result: nobody gets the key until LEFT is over
  in doubt   the work has started, and nobody said how it ended: nobody gets the key before
             lockctl resolve
LEFT is the longest time until STATE is over, if nobody renews. HOLDER is who has the lease
or has revoked it, or who did or started the work. AGE is the time since then: it compares the
clock of HOLDER with that of this machine. A result is never shown.

If several may hold the key, HOLDER is how many do, such as "2 of 3": 3 is the smallest number
among those who hold it. Below it each of them is shown, with its seat. One that is reserved
was handed the key a moment ago.`

// Show is lockctl show.
func Show() *cobra.Command {
	var s stores.Settings
	var json bool
	cmd := &cobra.Command{
		Use:   "show [flags] KEY",
		Short: "Show who holds a lock, for how long, and how many wait",
		Long: `Show who holds a lock, for how long at most, and how many wait for it.

` + aboutState + `

RENEWED says if the holder has renewed its lease, as far as AGE and LEFT show it. A holder that
is dead renews no more: look again, and LEFT has only become less.`,
		Example: `  lockctl show account/7
  lockctl show --json account/7 | jq -r .state`,
		Args: exit.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := s.Open(cmd.Context())
			if err != nil {
				return err
			}
			status, err := inspect(cmd.Context(), store, args[0])
			if err != nil {
				return err
			}
			if json {
				return printJSON(output(cmd), answerOf(status))
			}
			return card(output(cmd), status)
		},
	}
	cmd.Flags().SortFlags = false
	addJSON(cmd.Flags(), &json)
	s.AddTo(cmd.Flags())
	return cmd
}

func inspect(ctx context.Context, store *lockstore.Store, key string) (status lockstore.Status, err error) {
	err = stores.Call(ctx, func(ctx context.Context) (err error) {
		status, err = store.Inspect(ctx, key)
		return err
	})
	return status, err
}

// Watch is lockctl watch.
func Watch() *cobra.Command {
	var s stores.Settings
	var json bool
	var until string
	cmd := &cobra.Command{
		Use:   "watch [flags] KEY",
		Short: "Print a line for each change of a lock",
		Long: `Print a line for each change of a lock: of its state, its holders, their fences, or how many
wait for it. TIME is when lockctl saw it, by the clock of this machine. It looks once a
second, and does not see what comes and goes in between. If the store stops
answering it says so, and looks again.

` + aboutState,
		Example: `  lockctl watch account/7
  lockctl watch --until free account/7 && echo "now it is free"`,
		Args: exit.Args(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if until != "" && !slices.Contains(states, until) {
				return exit.WrongUsage("--until is %.40q; want one of %s", until, strings.Join(states, ", "))
			}
			store, err := s.Open(cmd.Context())
			if err != nil {
				return err
			}
			l := &looker{store: store, key: args[0], err: warnings(cmd)}
			return watch(cmd.Context(), l, until, table{out: output(cmd), json: json, watch: true})
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&until, "until", "", "end at this `STATE`")
	addJSON(cmd.Flags(), &json)
	s.AddTo(cmd.Flags())
	return cmd
}

// watch prints a line for each change, until the key is in the state until or ctx ends.
func watch(ctx context.Context, l *looker, until string, rows table) error {
	var last answer
	for first := true; ; first = false {
		status, err := l.look(ctx)
		if err != nil {
			return err
		}
		now := answerOf(status)
		seen := now
		seen.LeftMs, seen.Holder, seen.Holders = 0, nil, slices.Clone(now.Holders)
		for i := range seen.Holders {
			seen.Holders[i].LeftMs, seen.Holders[i].Holder = 0, nil
		}
		if first || !reflect.DeepEqual(seen, last) {
			if err := rows.print(status); err != nil {
				return err
			}
		}
		if last = seen; now.State.String() == until {
			return nil
		}
		if err := untilNextLook(ctx, lookEvery); err != nil {
			return err
		}
	}
}
