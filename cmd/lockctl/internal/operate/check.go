package operate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
)

func Check() *cobra.Command {
	var o operator
	cmd := &cobra.Command{
		Use:   "check [flags] [KEY]",
		Short: "Find what endangers locks: settings of the server or table, and wake-ups that do not come",
		Long: `It needs more permissions than locking does: see docs/stores.md. With KEY it also waits for a parked
run to which the key is handed over at this moment, 30 seconds at most, and says if it does not come.

Exit status: 0 if nothing is found, 1 if something is.`,
		Example: `  lockctl check
  lockctl check account/7`,
		Args: exit.Args(0, 1),
	}
	return o.command(cmd, func(ctx context.Context) error {
		findings, err := stores.Call(ctx, o.store.Check)
		if err == nil && cmd.Flags().NArg() > 0 {
			var missed []lockstore.Finding
			missed, err = notWoken(ctx, &looker{operator: &o})
			findings = append(findings, missed...)
		}
		for _, f := range findings { // also if the rest was interrupted
			if _, err := fmt.Fprintf(o.out, "%s\n    to do: %s\n", f.Problem, f.Fix); err != nil {
				return err
			}
		}
		switch {
		case err != nil:
			return err
		case len(findings) > 0:
			return &exit.Error{Status: exit.No}
		}
		_, err = fmt.Fprintln(o.out, "nothing that endangers locks was found")
		return err
	})
}

// almostOver is what is left of a parked turn when its run should have come. It is longer than an
// ordinary turn looks on any store, so an ordinary hand-over is never taken for one to a parked run.
const almostOver = 5 * time.Second

// notWoken looks at the hand-overs of the key to parked runs until each is used or almost over, and returns
// the latter, also with an error. Who hands over later is not looked at.
func notWoken(ctx context.Context, l *looker) (found []lockstore.Finding, err error) {
	var parked []lockstore.Fence
	for first := true; first || len(parked) > 0; first = false {
		status, err := l.look(ctx)
		if err != nil {
			return found, err
		}
		var left []lockstore.Fence
		for _, h := range status.Holders {
			switch {
			case h.State != lockstore.Reserved || !first && !slices.Contains(parked, h.Fence):
			case h.Remaining > almostOver:
				left = append(left, h.Fence)
			case !first:
				found = append(found, lockstore.Finding{
					Problem: fmt.Sprintf("%q was handed over to a parked run, fence %d, and the run does not come: it was not woken, or it has ended", l.key, h.Fence),
					Fix:     "look for wakeError in the log line of the run that released the key; its function needs guard.Options.Wake and the right states:SendTaskSuccess",
				})
			}
		}
		parked = left
	}
	return found, nil
}
