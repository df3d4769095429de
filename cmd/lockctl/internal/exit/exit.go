// Package exit has the exit statuses of lockctl.
package exit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Statuses other than 0. Those from 64 to 78 are of sysexits.h.
const (
	No          = 1   // the answer is no, or the command failed
	Usage       = 64  // wrong arguments or flags
	Unavailable = 69  // the store does not answer
	Bug         = 70  // lockctl itself failed
	Output      = 74  // the answer cannot be written
	Busy        = 75  // another has the lock, or the key has changed meanwhile
	Damaged     = 76  // the entry is damaged, or another program's
	Permission  = 77  // the store does not let this user do it
	Config      = 78  // the store's URL, or what it needs, is wrong
	Lost        = 79  // the lock was lost
	InDoubt     = 80  // nobody knows how the last work under this key ended: it waits for an operator
	Done        = 81  // the work was done a short time ago, so it did not run again
	NotRunnable = 126 // as a shell: the command cannot be run
	NotFound    = 127 // as a shell: there is no such command
	Signal      = 128 // as a shell: and the number of the signal that ended it
	Interrupted = Signal + int(syscall.SIGINT)
)

const Help = `Exit status of the commands that work on a store, unless their help says more:
  0 done    1 the answer is no    64 wrong usage    69 store unavailable    70 bug
  74 output not writable    75 busy, try again    76 damaged or foreign entry
  77 permission    78 configuration    79 lock lost    80 in doubt, see lockctl resolve
  81 done already, --at-least-for
  128+N ended by signal N: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP`

// Error is an error with an exit status. If Err is nil there is nothing to print: the status says it all, or what is to
// say has been printed.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("status %d", e.Status)
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Silent says that there is nothing to print.
func Silent(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return err == nil || ok && e.Err == nil
}

// BySignal is why a command's context has ended: a signal has come.
type BySignal struct{ Signal syscall.Signal }

func (e *BySignal) Error() string { return "ended by a signal: " + e.Signal.String() }

func (e *BySignal) Unwrap() error { return context.Canceled }

// Ended is the error of a command whose context has ended, with the signal's number.
func Ended(ctx context.Context) *Error {
	if by, ok := errors.AsType[*BySignal](context.Cause(ctx)); ok {
		return &Error{Status: Signal + int(by.Signal)}
	}
	return &Error{Status: Interrupted}
}

// Status is the exit status of a command that returned err.
func Status(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	for _, s := range [...]struct {
		err    error
		status int
	}{
		{lockstore.ErrInvalid, Usage},
		{lockstore.ErrRefused, Busy},
		{lockstore.ErrLost, Lost},
		{lockstore.ErrCorrupt, Damaged},
		{lockstore.ErrUnavailable, Unavailable},
		{errors.ErrUnsupported, Config},
	} {
		if errors.Is(err, s.err) {
			return s.status
		}
	}
	return No
}

// NeedsNoReader lets the process go on when whoever reads its output has ended: a write fails then, and SIGPIPE ends nothing.
func NeedsNoReader() {
	Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// Notify is signal.Notify without the signals that this process ignores, as nohup makes it. To ask for them would end
// that, also for what the process starts, which inherits what is ignored.
func Notify(c chan<- os.Signal, signals ...os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

// Writer is standard output or standard error: what it writes is Visible. If standard output
// cannot be written, the status is Output: the store has answered, and neither No nor
// Unavailable is true.
type Writer struct{ To io.Writer }

func (w Writer) Write(b []byte) (int, error) {
	if _, err := io.WriteString(w.To, Visible(string(b))); err != nil {
		return 0, Errorf(Output, "the answer cannot be written: %w", err)
	}
	return len(b), nil
}

// Visible writes each character that nobody can see, or that changes how the text around it
// is shown, as JSON writes it: \u202e. Keys and holders come from others, and could look like
// another key. Line breaks and tabs stay.
func Visible(text string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(r)): // a byte that is no UTF-8
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case hidden(r):
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// hidden is true for the characters of Unicode that have no shape of their own: controls, such
// as those of the direction of text, spaces other than " ", joiners, fillers.
func hidden(r rune) bool {
	return r != '\n' && r != '\t' &&
		(!unicode.IsPrint(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector))
}

// Aside is standard error of a command that must not wait for its reader. Write returns at once and without an error.
// What nobody reads is lost.
type Aside struct {
	to   io.Writer
	next chan func() // what one goroutine does, one after the other
}

// flushTime is how long the end of a command waits for the reader.
const flushTime = time.Second

func NewAside(to io.Writer) *Aside {
	a := &Aside{to, make(chan func(), 100)}
	go func() {
		for do := range a.next {
			do()
		}
	}()
	return a
}

func (a *Aside) Write(b []byte) (int, error) {
	text := bytes.Clone(b)
	select {
	case a.next <- func() { _, _ = a.to.Write(text) }:
	default:
	}
	return len(b), nil
}

// Flush waits until all is written, and for flushTime at most.
func (a *Aside) Flush() {
	flushed := make(chan struct{})
	go func() { a.next <- func() { close(flushed) } }() // the reader may be slow, and next full
	select {
	case <-flushed:
	case <-time.After(flushTime):
	}
}

func Errorf(status int, format string, args ...any) error {
	return &Error{status, fmt.Errorf(format, args...)}
}

func WrongUsage(format string, args ...any) error {
	return Errorf(Usage, format, args...)
}

// Bounds is an error if a flag's value is not within them.
func Bounds[T cmp.Ordered](flag string, value, least, most T) error {
	if value < least || value > most {
		return WrongUsage("%s is %v; want %v to %v", flag, value, least, most)
	}
	return nil
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
