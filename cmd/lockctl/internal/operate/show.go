package operate

import (
	"context"
	"reflect"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/internal/lib/page"
)

const aboutState = `STATE is one of these:
  free       nobody has the key
  reserved   those who wait get the key first; the next of them may be at work already
  held       somebody has a lease of the key
  revoked    an operator has ended the lease; the key opens when its run ends or LEFT is over
  completed  the work is done, and its result is stored until LEFT is over
  cooldown   the work is done, and nobody gets the key until LEFT is over
  in doubt   nobody knows how the work ended: the key is closed until lockctl resolve

LEFT is the longest time until STATE is over, if nobody renews. HOLDER has the lease, has revoked it,
or did or started the work. AGE is the time since then, by the clocks of HOLDER and of this machine.
OLDEST is how long the first of those who wait has waited, by the store's clock if it has one.
If several may hold the key, HOLDER is how many do, such as "2 of 3", and each of them follows.`

func Show() *cobra.Command {
	var o operator
	var json bool
	cmd := &cobra.Command{
		Use:   "show [flags] KEY",
		Short: "Show who holds a lock, for how long, and how many wait",
		Long: aboutState + `

RENEWED says if the holder has renewed its lease, as far as AGE and LEFT show it.`,
		Example: `  lockctl show account/7
  lockctl show --json account/7 | jq -r .state`,
		Args: exit.Args(1, 1),
	}
	cmd.Flags().BoolVar(&json, "json", false, "print JSON")
	return o.command(cmd, func(ctx context.Context) error {
		status, err := o.inspect(ctx)
		switch {
		case err != nil:
			return err
		case json:
			return printJSON(o.out, page.KeyOf(status))
		}
		return card(o.out, status)
	})
}

func Watch() *cobra.Command {
	var o operator
	var until string
	cmd := &cobra.Command{
		Use:   "watch [flags] KEY",
		Short: "Print a line for each change of a lock",
		Long: `It looks once a second, also while the store does not answer, for another state, other holders or
fences, and how many wait. TIME is when it saw the change.

` + aboutState,
		Example: `  lockctl watch account/7
  lockctl watch --until free account/7 && echo "now it is free"`,
		Args: exit.Args(1, 1),
		PreRunE: func(*cobra.Command, []string) error {
			if until == "" {
				return nil
			}
			return wantStates("--until", until)
		},
	}
	cmd.Flags().StringVar(&until, "until", "", "end at this `STATE`")
	return o.command(cmd, func(ctx context.Context) error { return o.watch(ctx, until) })
}

// watch prints a line for each change, until the key is in the state until or ctx ends.
func (o *operator) watch(ctx context.Context, until string) error {
	l, rows := looker{operator: o}, table{out: o.out, watch: true}
	var last page.Key
	for first := true; ; first = false {
		status, err := l.look(ctx)
		if err != nil {
			return err
		}
		now := page.KeyOf(status)
		now.LeftMs, now.Holder, now.Started, now.OldestWaitMs, now.Queue = 0, nil, false, 0, nil
		for i := range now.Holders {
			now.Holders[i].LeftMs, now.Holders[i].Holder = 0, nil
		}
		if first || !reflect.DeepEqual(now, last) {
			if err := rows.print(status); err != nil {
				return err
			}
		}
		if last = now; now.State.String() == until {
			return nil
		}
	}
}
