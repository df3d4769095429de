package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
)

type breaker struct {
	stores.Settings
	key            string
	fence          int64
	now, yes, wait bool
	operator       string // who runs lockctl

	in       io.Reader
	out, err io.Writer
}

// Break is lockctl break. operator says who runs lockctl.
func Break(operator func() string) *cobra.Command {
	var b breaker
	cmd := &cobra.Command{
		Use:   "break [flags] KEY",
		Short: "End the lease of a holder that renews and must not",
		Long: `End the lease of a holder that renews and must not. The holder can renew no more, and is
told so at its next renewal. The key opens when the time is over for which the holder may
trust its lease (LEFT of lockctl show). So two are never at work at the same time, and who
waits keeps its place.

A holder that is dead needs no break: its lease ends at the same time.

--now opens the key at once. Then two may be at work until the time that it prints. The
next grant's fence refuses the old holder's writes only where the next holder has written
already. It wants --fence, and the key typed again or --yes.

A key whose work has begun, and may not be repeated, does not open: when the broken lease is
over, it is in doubt, and lockctl settle ends that. --now is refused for such a key.

Who broke the lease stands in the entry until the next grant. Where the store keeps a log of
its own, such as data events of AWS CloudTrail, the write is there, too.

--wait returns when the key is open, also if one who waits has it already. It waits also if
another operator has broken the lease, and while the store does not answer, and says so.
Ctrl-C ends only the waiting.

Exit status: 0 if it is broken; 1 if the key is free, kept, in its cooldown or in doubt, if its
lease is broken already and there is no --wait (by whom is printed), or if --now is refused; 75
if it changed hands meanwhile, and nothing was done. With --wait: 0 if the key is open, 1 if it
is in doubt or kept then.`,
		Example: `  lockctl break account/7
  lockctl break --wait --fence 1795295118105467 account/7
  lockctl break --now --fence 1795295118105467 account/7`,
		Args:              exit.Args(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			b.in, b.out, b.err = cmd.InOrStdin(), output(cmd), warnings(cmd)
			b.key, b.operator = args[0], operator()
			return b.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Int64Var(&b.fence, "fence", 0, "break only the lease with fence `N`; needed if standard input is no terminal")
	f.BoolVar(&b.now, "now", false, "open the key at once: two may be at work")
	f.BoolVar(&b.yes, "yes", false, "do not ask for the key again")
	f.BoolVar(&b.wait, "wait", false, "wait until the key is open, also if its lease is broken already")
	b.AddTo(f)
	return cmd
}

func (b *breaker) run(ctx context.Context) error {
	switch {
	case b.fence < 0:
		return exit.WrongUsage("--fence is %d; want that of a lease, as lockctl show prints it", b.fence)
	case b.now && b.fence == 0:
		return exit.WrongUsage("--now wants --fence: the fence of the lease, as lockctl show prints it")
	case b.fence == 0 && !isTerminal(b.in):
		return exit.WrongUsage("standard input is no terminal; want --fence: the fence of the lease, as lockctl show prints it")
	}
	opened, err := b.Open(ctx)
	if err != nil {
		return err
	}
	store, err := find[lockstore.Revoker](opened, "break a lease")
	if err != nil {
		return err
	}
	inspector, err := find[lockstore.Inspector](opened, "show a key")
	if err != nil {
		return err
	}
	seen, err := inspect(ctx, &b.Settings, inspector, b.key)
	if err != nil {
		return err
	}
	if err := b.refuse(seen); err != nil {
		return err
	}
	if seen.Broken && !b.now {
		return b.already(ctx, inspector, seen)
	}
	if err := b.confirm(ctx, seen); err != nil {
		return err
	}
	by := seen.Holder // of a broken lease: who broke it
	if !seen.Broken {
		by = lockstore.HolderInfo{Name: fmt.Sprintf("broken by %s: was %s", b.operator, named(seen.Holder)), ID: strconv.Itoa(os.Getpid()), Since: time.Now()}
	}
	var broken lockstore.Status
	err = b.Call(ctx, func(ctx context.Context) (err error) {
		broken, err = store.Revoke(ctx, lockstore.RevokeRequest{Key: b.key, Fence: seen.Fence, By: by, OpenAtOnce: b.now})
		return err
	})
	if begun, ok := errors.AsType[*lockstore.BegunError](err); ok {
		return &exit.Error{Status: exit.No, Err: fmt.Errorf("%q cannot be opened now: its work has begun. Break it without --now; when the lease is over, within %v, lockctl settle opens the key", b.key, begun.Remaining.Round(time.Second))}
	}
	if errors.Is(err, lockstore.ErrLost) {
		return b.nothingDone(ctx, inspector)
	}
	if err != nil {
		return err
	}
	if broken.Broken && broken.Holder.Encode() != by.Encode() {
		return b.already(ctx, inspector, broken)
	}
	if err := b.done(seen, broken); err != nil {
		return fmt.Errorf("the lease of %q is broken; %w", b.key, err)
	}
	if !b.wait || b.now {
		return nil
	}
	return b.await(ctx, inspector, broken)
}

// refuse refuses what cannot be broken.
func (b *breaker) refuse(seen lockstore.Status) error {
	switch {
	case !seen.Held, seen.Kept, seen.InDoubt:
		return b.noLease(seen)
	case b.fence != 0 && int64(seen.Fence) != b.fence:
		return &exit.Error{Status: exit.Busy, Err: fmt.Errorf("%q changed hands: its fence is %d; nothing was done", b.key, seen.Fence)}
	}
	return nil
}

// nothingDone says why no live lease had the fence.
func (b *breaker) nothingDone(ctx context.Context, inspector lockstore.Inspector) error {
	status, err := inspect(ctx, &b.Settings, inspector, b.key)
	if err == nil && (!status.Held || status.Kept || status.InDoubt) {
		return b.noLease(status)
	}
	return &exit.Error{Status: exit.Busy, Err: fmt.Errorf("%q changed hands meanwhile; nothing was done: look again", b.key)}
}

// noLease says what the key is instead of held.
func (b *breaker) noLease(status lockstore.Status) error {
	text := fmt.Errorf("%q is not held", b.key)
	switch {
	case status.Kept:
		text = fmt.Errorf("%q is kept or in its cooldown, has no lease to break, and opens within %v", b.key, status.Remaining.Round(time.Second))
	case status.InDoubt:
		text = fmt.Errorf("%q is in doubt: nobody holds it, and nobody may have it before lockctl settle", b.key)
	}
	return &exit.Error{Status: exit.No, Err: text}
}

// already is for a lease that another operator has broken. --wait waits for its end, too.
func (b *breaker) already(ctx context.Context, inspector lockstore.Inspector, s lockstore.Status) error {
	text := fmt.Sprintf("the lease of %q was broken already: %v; the key opens within %v", b.key, s.Holder, s.Remaining.Round(time.Second))
	if !b.wait {
		return &exit.Error{Status: exit.No, Err: errors.New(text)}
	}
	if err := b.print(s, text); err != nil {
		return err
	}
	return b.await(ctx, inspector, s)
}

// confirm asks where a mistake would end the wrong lease, or let two work.
func (b *breaker) confirm(ctx context.Context, seen lockstore.Status) error {
	var question, want string
	switch {
	case b.now && !b.yes:
		question = fmt.Sprintf("%v may be at work for %v more, beside the next holder. Type the key to open it now: ", mayWork(seen, seen.Holder.String()), seen.Remaining.Round(time.Second))
		want = b.key
	case b.fence == 0:
		question = fmt.Sprintf("%q is held by %v. Type its fence, %d, to end this lease: ", b.key, seen.Holder, seen.Fence)
		want = strconv.FormatInt(int64(seen.Fence), 10)
	default:
		return nil
	}
	if !isTerminal(b.in) {
		return exit.WrongUsage("standard input is no terminal; want --yes")
	}
	fmt.Fprint(b.err, question)
	line, err := readLine(ctx, b.in)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil || strings.TrimSpace(line) != want {
		fmt.Fprintln(b.err, "lockctl: that is something else; nothing was done")
		return &exit.Silent{Status: exit.No}
	}
	return nil
}

// done says what the break did.
func (b *breaker) done(seen, broken lockstore.Status) error {
	text := "the lease of %q is broken: %v can renew it no more. The key opens within %v, at %s; if its work has begun, it is in doubt then."
	if b.now {
		text = "%q is open. %v may be at work for %v more, until %s: let writes with a fence below the next one be refused."
	}
	return b.print(broken, fmt.Sprintf(text, b.key, mayWork(seen, named(seen.Holder)), broken.Remaining.Round(time.Second), at(broken).Format(time.RFC3339)))
}

// print prints a broken lease as text, or as JSON.
func (b *breaker) print(broken lockstore.Status, text string) error {
	if !b.JSON {
		_, err := fmt.Fprintln(b.out, text)
		return err
	}
	a := answerOf(broken)
	a.LeftMs = broken.Remaining.Milliseconds()
	return printJSON(b.out, struct {
		answer
		Until time.Time `json:"until"`
	}{a, at(broken)})
}

// at is the time at which a broken lease is over, by the clock of this machine.
func at(broken lockstore.Status) time.Time { return time.Now().Add(broken.Remaining).UTC() }

// await waits until the key is open or in doubt, or another has it.
func (b *breaker) await(ctx context.Context, inspector lockstore.Inspector, broken lockstore.Status) error {
	opens := at(broken)
	l := &looker{Settings: &b.Settings, inspector: inspector, key: b.key, err: b.err, answered: true}
	for {
		status, err := l.look(ctx)
		switch {
		case err != nil:
			return b.stopped(err, opens)
		case !status.Held || status.Fence != broken.Fence:
			return nil
		case status.InDoubt, status.Kept: // kept: somebody has settled it
			return b.noLease(status)
		}
		if err := pause(ctx, min(lookEvery, max(50*time.Millisecond, status.Remaining))); err != nil {
			return b.stopped(err, opens)
		}
	}
}

// stopped says that only the waiting has ended: the lease stays broken.
func (b *breaker) stopped(err error, opens time.Time) error {
	why := ""
	if _, silent := errors.AsType[*exit.Silent](err); !silent {
		why = ": " + err.Error()
	}
	return &exit.Error{Status: exit.Status(err), Err: fmt.Errorf("stopped waiting%s; the lease of %q is broken, and the key opens, or is in doubt, at %s", why, b.key, opens.Format(time.RFC3339))}
}

// mayWork says who may be at work. After a break the holder is who broke the lease.
func mayWork(seen lockstore.Status, holder string) string {
	if seen.Broken {
		return "The holder before the break (" + holder + ")"
	}
	return holder
}

// named is a holder without its time.
func named(h lockstore.HolderInfo) string {
	name := cmp.Or(h.Caller, h.Name, "unnamed")
	if h.ID != "" {
		name += " (" + h.ID + ")"
	}
	return name
}
