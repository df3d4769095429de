package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/timeflag"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
)

type settler struct {
	stores.Settings
	key, how string
	fence    int64
	file     string // with the answer; "" is none
	version  string // of the answer
	keep     time.Duration

	out io.Writer
}

// What settle says about the work.
const (
	howDone  = "done"
	howAgain = "again"
)

// Settle is lockctl settle.
func Settle() *cobra.Command {
	var s settler
	cmd := &cobra.Command{
		Use:   "settle [flags] --fence N KEY done|again",
		Short: "Say how the work of a key in doubt has ended",
		Long: `Say how the work of a key in doubt has ended. In doubt (STATE doubt of lockctl show) is a key
whose work has begun and did not say how it ended: it was killed, for example. Find out
first whether its run has ended, and whether the work had its effect. docs/settle.md says
how.

  done   it had its effect: nobody runs the work again until --keep is over. A repeat gets
         the content of --answer instead; without --answer it gets the error
         RepeatNoAnswer, or, if the work has no answer, no error.
  again  it had none, and will have none: the key is free, and the work may run again.

The answer is JSON, at most 261,632 bytes, in the form in which the function returns it.
lockctl cannot check that it has this form, and what is kept cannot be changed before --keep
is over. It is for functions with package guard/idempotency. If they set Options.Version, it
is --answer-version: an answer of another version is not read.

Exit status: 0 if it is settled, also if it was before; 1 if the key is not in doubt with
this fence; 75 while a lease of it lasts.`,
		Example: `  lockctl settle --fence 1795295118105467 charge/7 again
  lockctl settle --fence 1795295118105467 --answer answer.json charge/7 done`,
		Args:              exit.Args(2, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			s.out = output(cmd)
			s.key, s.how = args[0], args[1]
			set := cmd.Flags().Changed
			switch {
			case s.how == howAgain && (set("answer") || set("answer-version") || set("keep")):
				return exit.WrongUsage("--answer, --answer-version and --keep are for %s", howDone)
			case set("answer-version") && !set("answer"):
				return exit.WrongUsage("--answer-version wants --answer")
			}
			return s.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Int64Var(&s.fence, "fence", 0, "the fence `N` of the work, as lockctl show prints it; needed")
	f.StringVar(&s.file, "answer", "", "keep the JSON in this `FILE` as the answer of the work")
	f.StringVar(&s.version, "answer-version", "", "Options.Version of the function, a `TEXT` of at most 64 bytes")
	s.keep = 24 * time.Hour
	timeflag.Var(f, &s.keep, "keep", "", "nobody runs the work again for this `TIME`, 1s to 744h")
	s.AddTo(f)
	return cmd
}

func (s *settler) run(ctx context.Context) error {
	switch {
	case s.how != howDone && s.how != howAgain:
		return exit.WrongUsage("the last argument is %.40q; want %s or %s", s.how, howDone, howAgain)
	case s.fence <= 0:
		return exit.WrongUsage("want --fence: the fence of the work, as lockctl show prints it")
	case s.keep < lockstore.MinTTL || s.keep > lockstore.MaxResultTime:
		return exit.WrongUsage("--keep is %v; want %v to %v", s.keep, lockstore.MinTTL, lockstore.MaxResultTime)
	}
	answer, err := s.answer()
	if err != nil {
		return err
	}
	store, err := s.Open(ctx)
	if err != nil {
		return err
	}
	if _, err := find[lockstore.Resolver](store, "settle a key"); err != nil {
		return err
	}
	inspector, err := find[lockstore.Inspector](store, "show a key")
	if err != nil {
		return err
	}
	before, err := inspect(ctx, &s.Settings, inspector, s.key)
	if err != nil {
		return err
	}
	fence := lockstore.Fence(s.fence)
	err = s.Call(ctx, func(ctx context.Context) error {
		if s.how == howAgain {
			return idempotency.ResolveNoEffect(ctx, store, s.key, fence)
		}
		return idempotency.ResolveEffect(ctx, store, s.key, fence, answer,
			idempotency.Options{ResultTime: s.keep, MaxResultBytes: idempotency.MaxResultBytes, Version: s.version})
	})
	if held, ok := errors.AsType[*lockstore.HeldError](err); ok {
		return &exit.Error{Status: exit.Busy, Err: fmt.Errorf("%q is held by %v, for at most %v more; settle it when this is over, if it is in doubt then", s.key, held.Holder, held.Remaining.Round(time.Second))}
	}
	if errors.Is(err, lockstore.ErrLost) {
		return s.refused(ctx, inspector)
	}
	if err != nil {
		return err
	}
	if err := s.print(before.Kept && before.Fence == fence); err != nil {
		return fmt.Errorf("%q is settled; %w", s.key, err)
	}
	return nil
}

// answer reads the file; nil is no answer. Its content never reaches an error.
func (s *settler) answer() ([]byte, error) {
	if s.file == "" {
		return nil, nil
	}
	f, err := os.Open(s.file)
	if err != nil {
		return nil, exit.WrongUsage("--answer: %w", err)
	}
	defer f.Close()
	answer, err := io.ReadAll(io.LimitReader(f, lockstore.MaxResultBytes+1))
	switch {
	case err != nil:
		return nil, exit.WrongUsage("--answer: %w", err)
	case len(answer) > lockstore.MaxResultBytes:
		return nil, exit.WrongUsage("--answer: %s has more than %d bytes", s.file, lockstore.MaxResultBytes)
	}
	return answer, nil
}

// refused says what the key is instead of in doubt.
func (s *settler) refused(ctx context.Context, inspector lockstore.Inspector) error {
	seen, err := inspect(ctx, &s.Settings, inspector, s.key)
	if err != nil {
		return err
	}
	text := fmt.Errorf("%q is not in doubt: it is %s; nothing was done", s.key, stateOf(seen))
	if seen.InDoubt {
		text = fmt.Errorf("%q is in doubt with the fence %d, and not with %d; nothing was done", s.key, seen.Fence, s.fence)
	}
	return &exit.Error{Status: exit.No, Err: text}
}

// print says that the key is settled. keptBefore: it was kept already, so that nothing changed.
func (s *settler) print(keptBefore bool) error {
	if s.JSON {
		return printJSON(s.out, struct {
			Key        string `json:"key"`
			Fence      string `json:"fence"`
			Settled    string `json:"settled"`
			KeptBefore bool   `json:"keptBefore,omitempty"`
		}{s.key, strconv.FormatInt(s.fence, 10), s.how, keptBefore})
	}
	text := fmt.Sprintf("%q is settled: its work is done, and does not run again for %v.", s.key, s.keep)
	switch {
	case s.how == howAgain:
		text = fmt.Sprintf("%q is settled: it is free, and its work may run again.", s.key)
	case keptBefore:
		text = fmt.Sprintf("%q was kept before, by lockctl settle or by the work itself. What is kept, and for how long, stays as it is.", s.key)
	}
	_, err := fmt.Fprintln(s.out, text)
	return err
}
