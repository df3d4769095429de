// Command lockctl is the command line of lambdalock. It runs commands under locks, shows
// locks and ends them, runs a function in several Lambda environments on this machine, and
// serves locks over HTTP.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/locallambda"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/operate"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/run"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/serve"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
)

func main() {
	signals := make(chan os.Signal, 1)
	exit.Notify(signals, run.PassedOn...) // before all else: a signal that comes early counts, too
	ctx, end := context.WithCancelCause(context.Background())
	go func() {
		sig := <-signals
		signal.Stop(signals) // a second signal ends the process at once
		end(&exit.BySignal{Signal: sig.(syscall.Signal)})
	}()
	os.Exit(execute(ctx, command()))
}

// execute runs a command line, prints its error and returns the exit status.
func execute(ctx context.Context, root *cobra.Command) int {
	cmd, err := root.ExecuteContextC(ctx)
	if cmd.Name() != "run" { // which passes signals on, and knows how it ended
		err = interrupted(ctx, err)
	}
	if !exit.Silent(err) {
		exit.NeedsNoReader() // the status stays that of the error
		start := "lockctl:"
		if exit.Status(err) == exit.Interrupted {
			start = "\n" + start // behind the ^C of the terminal
		}
		fmt.Fprintln(exit.Writer{To: cmd.ErrOrStderr()}, start, err)
	}
	if aside, ok := cmd.ErrOrStderr().(*exit.Aside); ok {
		aside.Flush()
	}
	return exit.Status(err)
}

// interrupted is the error of a command that a signal may have ended. What the command says of a call that was under way is
// kept: the call may have changed something.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return exit.Errorf(exit.Ended(ctx).Status, "interrupted: %w", err)
	}
	return err
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:               "lockctl",
		Short:             "Look at locks, run commands under them, end them",
		Long:              "Look at locks, run commands under them, end them; try locks on this machine.\n\n" + stores.Help + "\n\n" + exit.Help,
		Version:           describe(version),
		SilenceUsage:      true,
		SilenceErrors:     true,
		Args:              cobra.ArbitraryArgs,
		PersistentPreRunE: notEmpty,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.WrongUsage("unknown command %.40q; see lockctl --help", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetVersionTemplate("lockctl {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exit.WrongUsage("%w; see %s --help", err, cmd.CommandPath())
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		run.Command(), run.Details(), run.GuardCommand(),
		operate.Show(), operate.List(), operate.Watch(), operate.Check(), operate.Revoke(), operate.Resolve(), operate.UI(), operate.Schema(),
		locallambda.Command(), serve.Command(),
	)
	for _, cmd := range root.Commands() {
		cmd.SetHelpTemplate(help)
	}
	return root
}

// notEmpty refuses a text that is empty. A shell makes it of a variable that is not set, and without the flag the command may do something else.
func notEmpty(cmd *cobra.Command, _ []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" {
			want, _ := pflag.UnquoteUsage(f)
			err = exit.WrongUsage("--%s is empty; want a %s", f.Name, want)
		}
	})
	return err
}

// help shows the examples first: who knows the command looks for one, or for a flag.
const help = `{{if not .Runnable}}{{.Long}}
{{else}}{{.Short}}

Usage: {{.UseLine}}

Examples:
{{.Example}}

{{.Long}}

Flags:
{{.LocalFlags.FlagUsages}}{{end}}`

// version is set by the linker, as make build/lockctl does it.
var version string

// describe says which build this is. Without the linker's word it is the version of the module,
// which is (devel) for a build in a copy of the repository.
func describe(version string) string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		version = info.Main.Version
	}
	return fmt.Sprintf("%s, %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
