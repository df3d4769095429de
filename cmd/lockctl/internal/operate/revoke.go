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

type revoker struct {
	stores.Settings
	key        string
	fence      int64
	openAtOnce bool
	yes, wait  bool
	operator   string // who runs lockctl

	store    *lockstore.Store
	in       io.Reader
	out, err io.Writer
}

// Revoke is lockctl revoke. operator says who runs lockctl.
func Revoke(operator func() string) *cobra.Command {
	var r revoker
	cmd := &cobra.Command{
		Use:   "revoke [flags] KEY",
		Short: "End the lease of a holder that renews and must not",
		Long: `End the lease of a holder that renews and must not. The holder can renew no more, and is
told so at its next renewal. The key opens when the time is over for which the holder may
trust its lease (LEFT of lockctl show). So two are never at work at the same time, and who
waits keeps its place.

A holder that is dead needs no revoke: its lease ends at the same time.

--open-at-once opens the key at once. Then two may be at work until the time that it prints.
The next grant's fence refuses the old holder's writes only where the next holder has written
already. It wants --fence, and the key typed again or --yes.

A key whose work has started, and may not be repeated, does not open: when the revoked lease
is over, it is in doubt, and lockctl resolve ends that. --open-at-once is refused for such a
key.

Who revoked the lease stands in the entry until the next grant. Where the store keeps a log
of its own, such as data events of AWS CloudTrail, the write is there, too.

--wait returns when the key is open, also if one who waits has it already. It waits also if
another operator has revoked the lease, and while the store does not answer, and says so.
Ctrl-C ends only the waiting.

Exit status: 0 if it is revoked; 1 if the key has no lease, if its lease is revoked already
and there is no --wait (by whom is printed), or if --open-at-once is refused; 75 if it changed
hands meanwhile, and nothing was done. With --wait: 0 if the key is open, 1 if it is in doubt
or completed then.`,
		Example: `  lockctl revoke account/7
  lockctl revoke --wait --fence 1795295118105467 account/7
  lockctl revoke --open-at-once --fence 1795295118105467 account/7`,
		Args:              exit.Args(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.in, r.out, r.err = cmd.InOrStdin(), output(cmd), warnings(cmd)
			r.key, r.operator = args[0], operator()
			return r.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Int64Var(&r.fence, "fence", 0, "revoke only the lease with fence `N`; needed if standard input is no terminal")
	f.BoolVar(&r.openAtOnce, "open-at-once", false, "open the key at once: two may be at work")
	f.BoolVar(&r.yes, "yes", false, "do not ask for the key again")
	f.BoolVar(&r.wait, "wait", false, "wait until the key is open, also if its lease is revoked already")
	r.AddTo(f)
	return cmd
}

func (r *revoker) run(ctx context.Context) error {
	switch {
	case r.fence < 0:
		return exit.WrongUsage("--fence is %d; want that of a lease, as lockctl show prints it", r.fence)
	case r.openAtOnce && r.fence == 0:
		return exit.WrongUsage("--open-at-once wants --fence: the fence of the lease, as lockctl show prints it")
	case r.fence == 0 && !isTerminal(r.in):
		return exit.WrongUsage("standard input is no terminal; want --fence: the fence of the lease, as lockctl show prints it")
	}
	store, err := r.Open(ctx)
	if err != nil {
		return err
	}
	r.store = store
	seen, err := r.inspect(ctx)
	if err != nil {
		return err
	}
	if err := r.refuse(seen); err != nil {
		return err
	}
	if seen.State == lockstore.Revoked && !r.openAtOnce {
		return r.already(ctx, seen)
	}
	if err := r.confirm(ctx, seen); err != nil {
		return err
	}
	by := seen.Holder // of a revoked lease: who revoked it
	if seen.State != lockstore.Revoked {
		by = lockstore.HolderInfo{Name: fmt.Sprintf("revoked by %s: was %s", r.operator, named(seen.Holder)), ID: strconv.Itoa(os.Getpid()), Since: time.Now()}
	}
	var revoked lockstore.Status
	err = r.Call(ctx, func(ctx context.Context) (err error) {
		revoked, err = store.Revoke(ctx, lockstore.RevokeRequest{Key: r.key, Fence: seen.Fence, By: by, OpenAtOnce: r.openAtOnce})
		return err
	})
	if started, ok := errors.AsType[*lockstore.Refused](err); ok {
		return &exit.Error{Status: exit.No, Err: fmt.Errorf("%q cannot be opened at once: its work has started. Revoke its lease without --open-at-once; when the lease is over, within %v, lockctl resolve opens the key", r.key, started.Remaining.Round(time.Second))}
	}
	if errors.Is(err, lockstore.ErrLost) {
		return r.nothingDone(ctx)
	}
	if err != nil {
		return err
	}
	if revoked.State == lockstore.Revoked && revoked.Holder.Encode() != by.Encode() {
		return r.already(ctx, revoked)
	}
	if err := r.done(seen, revoked); err != nil {
		return fmt.Errorf("the lease of %q is revoked; %w", r.key, err)
	}
	if !r.wait || r.openAtOnce {
		return nil
	}
	return r.await(ctx, revoked)
}

func (r *revoker) inspect(ctx context.Context) (lockstore.Status, error) {
	return inspect(ctx, &r.Settings, r.store, r.key)
}

// hasLease says that a key has a lease, which may be revoked already.
func hasLease(s lockstore.Status) bool {
	return s.State == lockstore.Held || s.State == lockstore.Revoked
}

// refuse refuses what cannot be revoked.
func (r *revoker) refuse(seen lockstore.Status) error {
	switch {
	case !hasLease(seen):
		return r.noLease(seen)
	case r.fence != 0 && int64(seen.Fence) != r.fence:
		return &exit.Error{Status: exit.Busy, Err: fmt.Errorf("%q changed hands: its fence is %d; nothing was done", r.key, seen.Fence)}
	}
	return nil
}

// nothingDone says why no live lease had the fence.
func (r *revoker) nothingDone(ctx context.Context) error {
	status, err := r.inspect(ctx)
	if err == nil && !hasLease(status) {
		return r.noLease(status)
	}
	return &exit.Error{Status: exit.Busy, Err: fmt.Errorf("%q changed hands meanwhile; nothing was done: look again", r.key)}
}

// noLease says what the state of the key is instead of held.
func (r *revoker) noLease(status lockstore.Status) error {
	text := fmt.Errorf("%q is not held", r.key)
	switch {
	case status.State.Done():
		text = fmt.Errorf("%q has the state %v, has no lease to revoke, and opens within %v", r.key, status.State, status.Remaining.Round(time.Second))
	case status.State == lockstore.InDoubt:
		text = fmt.Errorf("%q is in doubt: nobody holds it, and nobody gets it before lockctl resolve", r.key)
	}
	return &exit.Error{Status: exit.No, Err: text}
}

// already is for a lease that another operator has revoked. --wait waits for its end, too.
func (r *revoker) already(ctx context.Context, s lockstore.Status) error {
	text := fmt.Sprintf("the lease of %q was revoked already: %v; the key opens within %v", r.key, s.Holder, s.Remaining.Round(time.Second))
	if !r.wait {
		return &exit.Error{Status: exit.No, Err: errors.New(text)}
	}
	if err := r.print(s, text); err != nil {
		return err
	}
	return r.await(ctx, s)
}

// confirm asks where a mistake would end the wrong lease, or let two work.
func (r *revoker) confirm(ctx context.Context, seen lockstore.Status) error {
	var question, want string
	switch {
	case r.openAtOnce && !r.yes:
		question = fmt.Sprintf("%v may be at work for %v more, beside the next holder. Type the key to open it at once: ", mayWork(seen, seen.Holder.String()), seen.Remaining.Round(time.Second))
		want = r.key
	case r.fence == 0:
		question = fmt.Sprintf("%q is held by %v. Type its fence, %d, to end this lease: ", r.key, seen.Holder, seen.Fence)
		want = strconv.FormatInt(int64(seen.Fence), 10)
	default:
		return nil
	}
	if !isTerminal(r.in) {
		return exit.WrongUsage("standard input is no terminal; want --yes")
	}
	fmt.Fprint(r.err, question)
	line, err := readLine(ctx, r.in)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil || strings.TrimSpace(line) != want {
		fmt.Fprintln(r.err, "lockctl: that is something else; nothing was done")
		return &exit.Silent{Status: exit.No}
	}
	return nil
}

// done says what the revoke did.
func (r *revoker) done(seen, revoked lockstore.Status) error {
	text := "the lease of %q is revoked: %v can renew it no more. The key opens within %v, at %s; if its work has started, it is in doubt then."
	if r.openAtOnce {
		text = "%q is open. %v may be at work for %v more, until %s: let writes with a fence below the next one be refused."
	}
	return r.print(revoked, fmt.Sprintf(text, r.key, mayWork(seen, named(seen.Holder)), revoked.Remaining.Round(time.Second), at(revoked).Format(time.RFC3339)))
}

// print prints a revoked lease as text, or as JSON.
func (r *revoker) print(revoked lockstore.Status, text string) error {
	if !r.JSON {
		_, err := fmt.Fprintln(r.out, text)
		return err
	}
	return printJSON(r.out, struct {
		answer
		Until time.Time `json:"until"`
	}{answerOf(revoked), at(revoked)})
}

// at is the time at which a revoked lease is over, by the clock of this machine.
func at(revoked lockstore.Status) time.Time { return time.Now().Add(revoked.Remaining).UTC() }

// await waits until the key is open or in doubt, or another has it.
func (r *revoker) await(ctx context.Context, revoked lockstore.Status) error {
	opens := at(revoked)
	l := &looker{Settings: &r.Settings, store: r.store, key: r.key, err: r.err, answered: true}
	for {
		status, err := l.look(ctx)
		switch {
		case err != nil:
			return r.stopped(err, opens)
		case !status.State.Taken() || status.Fence != revoked.Fence:
			return nil
		case !hasLease(status): // in doubt, or somebody has resolved it
			return r.noLease(status)
		}
		if err := pause(ctx, min(lookEvery, max(50*time.Millisecond, status.Remaining))); err != nil {
			return r.stopped(err, opens)
		}
	}
}

// stopped says that only the waiting has ended: the lease stays revoked.
func (r *revoker) stopped(err error, opens time.Time) error {
	why := ""
	if _, silent := errors.AsType[*exit.Silent](err); !silent {
		why = ": " + err.Error()
	}
	return &exit.Error{Status: exit.Status(err), Err: fmt.Errorf("stopped waiting%s; the lease of %q is revoked, and the key opens, or is in doubt, at %s", why, r.key, opens.Format(time.RFC3339))}
}

// mayWork says who may be at work. After a revoke the holder is who revoked the lease.
func mayWork(seen lockstore.Status, holder string) string {
	if seen.State == lockstore.Revoked {
		return "The holder before the revoke (" + holder + ")"
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
