package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
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

// heldLease is a lease of a key, and the key as it was when lockctl looked.
type heldLease struct {
	lockstore.Holder
	of lockstore.Status
}

// Revoke is lockctl revoke. operator says who runs lockctl.
func Revoke(operator func() string) *cobra.Command {
	var r revoker
	cmd := &cobra.Command{
		Use:   "revoke [flags] KEY",
		Short: "End the lease of a holder that renews and must not",
		Long: `End the lease of a holder that renews and must not. The holder can renew no more, and is
told so at its next renewal. The key opens when its run releases it, or when the time is over
for which the holder may trust its lease (LEFT of lockctl show). So two are never at work at
the same time, and who waits keeps its place. If several hold the key, --fence says whose
lease ends: its seat is free then. The others keep theirs, and are printed.

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
hands meanwhile, and nothing was done. With --wait: 1 if the key is in doubt after this
lease, or was resolved as effect since; otherwise 0, whatever a later run does with the key.`,
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
	store = wakes(&r.Settings, store, r.err)
	r.store = store
	seen, err := r.inspect(ctx)
	if err != nil {
		return err
	}
	lease, err := r.choose(seen)
	if err != nil {
		return err
	}
	if lease.State == lockstore.Revoked && !r.openAtOnce {
		return r.already(ctx, lease)
	}
	if err := r.confirm(ctx, lease); err != nil {
		return err
	}
	by := lease.HolderInfo // of a revoked lease: who revoked it
	if lease.State != lockstore.Revoked {
		by = lockstore.HolderInfo{Name: fmt.Sprintf("revoked by %s: was %s", r.operator, named(lease.HolderInfo)), ID: strconv.Itoa(os.Getpid()), Since: time.Now()}
	}
	var after lockstore.Status
	err = r.Call(ctx, func(ctx context.Context) (err error) {
		after, err = store.Revoke(ctx, lockstore.RevokeRequest{Key: r.key, Fence: lease.Fence, By: by, OpenAtOnce: r.openAtOnce})
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
	revoked := lease
	revoked.State, revoked.HolderInfo, revoked.Remaining, revoked.of = lockstore.Revoked, after.Holder, after.Remaining, after
	if !r.openAtOnce && after.Holder.Encode() != by.Encode() {
		return r.already(ctx, revoked)
	}
	if err := r.done(lease, revoked); err != nil {
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
	return (s.State == lockstore.Held || s.State == lockstore.Revoked) && len(s.Holders) > 0
}

// withFence is the lease that has this fence.
func withFence(s lockstore.Status, fence lockstore.Fence) (heldLease, bool) {
	i := slices.IndexFunc(s.Holders, func(h lockstore.Holder) bool { return h.Fence == fence })
	if i < 0 {
		return heldLease{}, false
	}
	return heldLease{s.Holders[i], s}, true
}

// choose finds the lease that is to be revoked, and refuses what cannot be revoked.
func (r *revoker) choose(seen lockstore.Status) (heldLease, error) {
	if !hasLease(seen) {
		return heldLease{}, r.noLease(seen)
	}
	if lease, ok := withFence(seen, lockstore.Fence(r.fence)); ok {
		return lease, nil
	}
	several := len(seen.Holders) > 1
	switch {
	case r.fence == 0 && !several:
		return heldLease{seen.Holders[0], seen}, nil
	case r.fence == 0:
		return heldLease{}, exit.WrongUsage("%d hold %q; want --fence, the fence of one of them: %s", len(seen.Holders), r.key, listed(seen.Holders))
	case several:
		return heldLease{}, &exit.Error{Status: exit.Busy, Err: fmt.Errorf("no holder of %q has the fence %d; nothing was done. Those who hold it: %s", r.key, r.fence, listed(seen.Holders))}
	}
	return heldLease{}, &exit.Error{Status: exit.Busy, Err: fmt.Errorf("%q changed hands: its fence is %d; nothing was done", r.key, seen.Fence)}
}

// listed are holders as a part of a sentence.
func listed(all []lockstore.Holder) string {
	var texts []string
	for _, h := range all {
		who := "reserved"
		if h.State.Taken() {
			who = named(h.HolderInfo)
		}
		texts = append(texts, fmt.Sprintf("%s, seat %d, fence %d", who, h.Seat, h.Fence))
	}
	return strings.Join(texts, "; ")
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
func (r *revoker) already(ctx context.Context, l heldLease) error {
	text := fmt.Sprintf("the lease of %q was revoked already: %v; %s within %v", r.key, l.HolderInfo, l.opens(), l.Remaining.Round(time.Second))
	if !r.wait {
		return &exit.Error{Status: exit.No, Err: errors.New(text)}
	}
	if err := r.print(l, text); err != nil {
		return err
	}
	return r.await(ctx, l)
}

// shared says that others may hold the key, too.
func (l heldLease) shared() bool { return l.MaxHolders > 1 }

// opens says what opens at the end of a revoked lease. Only work that has marked its start leaves doubt.
func (l heldLease) opens() string {
	switch {
	case l.shared():
		return "its seat is free"
	case l.of.Started:
		return "its work has started, so the key is in doubt"
	}
	return "the key opens"
}

// begin begins a sentence.
func begin(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// confirm asks where a mistake would end the wrong lease, or let two work.
func (r *revoker) confirm(ctx context.Context, l heldLease) error {
	var question, want string
	switch {
	case r.openAtOnce && !r.yes:
		question = fmt.Sprintf("%v may be at work for %v more, beside the next holder. Type the key to open it at once: ", mayWork(l, l.HolderInfo.String()), l.Remaining.Round(time.Second))
		want = r.key
	case r.fence == 0:
		question = fmt.Sprintf("%q is held by %v. Type its fence, %d, to end this lease: ", r.key, l.HolderInfo, l.Fence)
		want = strconv.FormatInt(int64(l.Fence), 10)
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

// done says what the revoke did. before is the lease as it was.
func (r *revoker) done(before, revoked heldLease) error {
	who, left, until := mayWork(before, named(before.HolderInfo)), revoked.Remaining.Round(time.Second), at(revoked).Format(time.RFC3339)
	var text string
	switch {
	case r.openAtOnce && revoked.shared():
		text = fmt.Sprintf("seat %d of %q is free. %v may be at work for %v more, until %s.", revoked.Seat, r.key, who, left, until)
	case r.openAtOnce:
		text = fmt.Sprintf("%q is open. %v may be at work for %v more, until %s: let writes with a fence below the next one be refused.", r.key, who, left, until)
	case revoked.shared():
		text = fmt.Sprintf("the lease of %q with seat %d is revoked: %v can renew it no more. Its seat is free within %v, at %s.", r.key, revoked.Seat, who, left, until)
	default:
		text = fmt.Sprintf("the lease of %q is revoked: %v can renew it no more. %s within %v, at %s.", r.key, who, begin(revoked.opens()), left, until)
	}
	if revoked.shared() {
		others := slices.DeleteFunc(slices.Clone(revoked.of.Holders), func(h lockstore.Holder) bool { return h.Fence == revoked.Fence })
		if len(others) == 0 {
			text += " Nobody else holds the key."
		} else {
			text += " Who else holds the key: " + listed(others) + "."
		}
	}
	return r.print(revoked, text)
}

// print prints a revoked lease as text, or as JSON: its holder, its fence and the time that is left of it,
// and the key after the revoke.
func (r *revoker) print(revoked heldLease, text string) error {
	if !r.JSON {
		_, err := fmt.Fprintln(r.out, text)
		return err
	}
	a := answerOf(revoked.of)
	a.Holder, a.Fence, a.LeftMs = &revoked.HolderInfo, fenceText(revoked.Fence), revoked.Remaining.Milliseconds()
	return printJSON(r.out, struct {
		answer
		Until time.Time `json:"until"`
	}{a, at(revoked)})
}

// at is the time at which a revoked lease is over, by the clock of this machine.
func at(revoked heldLease) time.Time { return time.Now().Add(revoked.Remaining).UTC() }

// await waits until the lease is over. The key may be in doubt then, or another may have it.
func (r *revoker) await(ctx context.Context, revoked heldLease) error {
	opens := at(revoked)
	l := &looker{Settings: &r.Settings, store: r.store, key: r.key, err: r.err, answered: true}
	for {
		status, err := l.look(ctx)
		if err != nil {
			return r.stopped(err, revoked, opens)
		}
		lease, lasts := withFence(status, revoked.Fence)
		switch {
		case lasts:
		case status.State.Taken() && !hasLease(status) && status.Fence == revoked.Fence: // in doubt, or somebody has resolved it
			return r.noLease(status)
		default:
			return nil
		}
		if err := untilNextLook(ctx, min(lookEvery, max(50*time.Millisecond, lease.Remaining))); err != nil {
			return r.stopped(err, revoked, opens)
		}
	}
}

// stopped says that only the waiting has ended: the lease stays revoked.
func (r *revoker) stopped(err error, revoked heldLease, opens time.Time) error {
	why := ""
	if _, silent := errors.AsType[*exit.Silent](err); !silent {
		why = ": " + err.Error()
	}
	return &exit.Error{Status: exit.Status(err), Err: fmt.Errorf("stopped waiting%s; the lease of %q is revoked, and %s at %s", why, r.key, revoked.opens(), opens.Format(time.RFC3339))}
}

// mayWork says who may be at work. After a revoke the holder is who revoked the lease.
func mayWork(l heldLease, holder string) string {
	if l.State == lockstore.Revoked {
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
