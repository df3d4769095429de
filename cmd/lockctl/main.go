// Command lockctl is the command line of lambdalock. It runs a function in several
// Lambda environments on this machine, and serves locks over HTTP.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/local"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/serve"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := command().ExecuteContext(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "\nlockctl: interrupted; all processes are stopped")
		os.Exit(exit.Interrupted)
	default:
		fmt.Fprintln(os.Stderr, "lockctl:", err)
		os.Exit(exit.Status(err))
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:               "lockctl",
		Short:             "Try locks of lambdalock on this machine",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.WrongUsage("unknown command %.40q; see lockctl --help", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exit.WrongUsage("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(local.Command(), serve.Command())
	return root
}
