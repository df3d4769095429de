// Command lockctl is the command line of lambdalock. It runs commands under locks, shows
// locks and ends them, runs a function in several Lambda environments on this machine, and
// serves locks over HTTP.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/locallambda"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/operate"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/run"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/serve"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/timeflag"
)

func main() {
	ends := run.NotIgnored(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	signals := make(chan os.Signal, 1)
	if len(ends) > 0 {
		signal.Notify(signals, ends...) // before all else: a signal that comes early counts, too
	}
	ctx, end := context.WithCancelCause(context.Background())
	if len(ends) > 0 {
		go func() {
			sig := <-signals
			signal.Stop(signals) // a second signal ends the process at once
			end(&exit.BySignal{Signal: sig.(syscall.Signal)})
		}()
	}
	cmd, err := execute(ctx, command())
	if ctx.Err() != nil && cmd.Name() != "run" { // run passes signals on, and knows how it ended
		err = interrupted(ctx, cmd, err)
	}
	if _, silent := errors.AsType[*exit.Silent](err); err != nil && !silent {
		printError(cmd, err)
	}
	if aside, ok := cmd.ErrOrStderr().(*exit.Aside); ok {
		aside.Flush()
	}
	os.Exit(exit.Status(err))
}

// execute runs a command. The errors of cobra's own command completion have no status.
func execute(ctx context.Context, root *cobra.Command) (*cobra.Command, error) {
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case exit.Status(err) != exit.No || !cmd.HasParent() || cmd.Parent().Name() != "completion":
		return cmd, err
	case cmd.ValidateArgs(cmd.Flags().Args()) != nil:
		return cmd, &exit.Error{Status: exit.Usage, Err: err}
	}
	return cmd, exit.NotWritten(err)
}

// interrupted is the error of a command that a signal has ended. What the command says of
// a call that was under way is kept: the call may have changed something.
func interrupted(ctx context.Context, cmd *cobra.Command, err error) error {
	if _, silent := errors.AsType[*exit.Silent](err); err == nil || silent {
		return err
	}
	text := "interrupted"
	failed, ok := errors.AsType[*exit.Error](err)
	switch {
	case ok && !errors.Is(err, context.Canceled):
		return err // this is not because of the signal
	case ok:
		text += ": " + failed.Error()
	case cmd.Name() == "local":
		text += "; all processes are stopped"
	}
	return &exit.Error{Status: exit.Ended(ctx).Status, Err: errors.New(text)}
}

// printError prints an error on standard error, as JSON if the command has --json. Nobody has to read it: the
// status stays that of the error.
func printError(cmd *cobra.Command, err error) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	out := exit.Writer{To: cmd.ErrOrStderr()}
	flag := cmd.Flags().Lookup(stores.JSONFlag)
	if flag == nil || flag.Value.String() != "true" {
		start := "lockctl:"
		if exit.Status(err) == exit.Interrupted {
			start = "\n" + start // behind the ^C of the terminal
		}
		fmt.Fprintln(out, start, err)
		return
	}
	_ = json.NewEncoder(out).Encode(struct {
		Error  string `json:"error"`
		Status int    `json:"status"`
	}{err.Error(), exit.Status(err)})
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "lockctl",
		Short:         "Look at locks, run commands under them, end them",
		Long:          "Look at locks, run commands under them, end them; try locks on this machine.\n\n" + stores.Help + "\n\n" + exit.Help,
		Version:       describe(version),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				cmd.SuggestionsMinimumDistance = 2 // letters
				see := "see lockctl --help"
				if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
					see = fmt.Sprintf("did you mean %s?", strings.Join(like, " or "))
				}
				return exit.WrongUsage("unknown command %.40q; %s", args[0], see)
			}
			return cmd.Help()
		},
	}
	root.SetVersionTemplate("lockctl {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exit.WrongUsage("%w; see %s --help", flagError(err), cmd.CommandPath())
	})
	root.AddCommand(
		run.Command(), run.Details(), run.GuardCommand(),
		operate.Show(), operate.List(), operate.Watch(), operate.Check(), operate.Revoke(run.Operator), operate.Resolve(), operate.Schema(),
		locallambda.Command(), serve.Command(),
	)
	for _, cmd := range root.Commands() {
		cmd.SetHelpTemplate(help)
	}
	return root
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

// flagError says which form a number or a duration has. The texts of strconv and time do not.
func flagError(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag := invalid.GetFlag()
	want := map[string]string{
		"int": "a whole number", "int64": "a whole number such as 1795295118105467", "float64": "a number such as 0.5",
		timeflag.Type: timeflag.Form,
	}[flag.Value.Type()]
	if want == "" {
		return err
	}
	name := "--" + flag.Name
	if flag.Shorthand != "" {
		name = "-" + flag.Shorthand + ", " + name
	}
	return fmt.Errorf("%s is %.40q; want %s", name, invalid.GetValue(), want)
}
