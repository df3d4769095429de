// Package exit has the exit statuses of lockctl.
package exit

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Statuses other than 0, from 64 on those of sysexits.h.
const (
	No          = 1  // the answer is no, or the command failed
	Usage       = 64 // wrong arguments or flags
	Unavailable = 69 // the store does not answer
	Config      = 78 // the store's URL, or what it needs, is wrong
	Interrupted = 130
)

// Error is an error with an exit status.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Status is the exit status of a command that returned err.
func Status(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return No
}

// WrongUsage is an error in arguments or flags.
func WrongUsage(format string, args ...any) error {
	return &Error{Usage, fmt.Errorf(format, args...)}
}

// Args is a cobra.PositionalArgs: the command takes least to most arguments.
func Args(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return WrongUsage("%s has %d arguments; want %q", cmd.CommandPath(), len(args), cmd.UseLine())
		}
		return nil
	}
}
