package operate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/run"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/lockstore"
)

type revoker struct {
	operator
	fence      lockstore.Fence
	openAtOnce bool
	wait       bool
}

const (
	aboutRevoke = `The holder can renew no more, and is told so at its next renewal. The key opens when its run
releases it, or when LEFT of lockctl show is over. So two are never at work at the same time. A
holder that is dead needs no revoke. If the work has started and may not be repeated, the key is in
doubt then, and lockctl resolve ends that.`
	aboutAtOnce = "open the key at once: two may be at work"
)

func Revoke() *cobra.Command {
	var r revoker
	cmd := &cobra.Command{
		Use:   "revoke [flags] KEY",
		Short: "End the lease of a holder that renews and must not",
		Long: aboutRevoke + `

Exit status: 0 if it is revoked; 1 if the key has no lease, if its lease is revoked already and you
do not --wait, or if --open-at-once is refused; 75 if it changed hands meanwhile. With --wait: 1 if
the key is in doubt after this lease, or was resolved as effect since.`,
		Example: `  lockctl revoke --fence 1795295118105467 account/7
  lockctl revoke --wait --fence 1795295118105467 account/7
  lockctl revoke --open-at-once --fence 1795295118105467 account/7`,
		Args:    exit.Args(1, 1),
		PreRunE: func(*cobra.Command, []string) error { return r.check() },
	}
	f := cmd.Flags()
	f.Int64Var((*int64)(&r.fence), "fence", 0, "revoke the lease with fence `N`, as lockctl show prints it; needed")
	f.BoolVar(&r.openAtOnce, "open-at-once", false, aboutAtOnce)
	f.BoolVar(&r.wait, "wait", false, "wait until the key is open, also if its lease is revoked already")
	return r.command(cmd, r.run)
}

func (r *revoker) check() error {
	if r.fence <= 0 {
		return exit.WrongUsage("want --fence: the fence of the lease, as lockctl show prints it")
	}
	return nil
}

func (r *revoker) run(ctx context.Context) error {
	seen, err := r.inspect(ctx)
	if err != nil {
		return err
	}
	lease, ok := withFence(seen, r.fence)
	switch {
	case !ok:
		return r.notThere(seen)
	case lease.State == lockstore.Revoked && !r.openAtOnce:
		return r.already(ctx, lease, seen.Started)
	}
	by := lease.HolderInfo // of a revoked lease: who revoked it
	who := lockstore.HolderInfo{Name: by.Name, ID: by.ID, Caller: by.Caller}.String()
	if lease.State != lockstore.Revoked {
		by = lockstore.HolderInfo{Name: fmt.Sprintf("revoked by %s: was %s", run.Operator(), who), ID: strconv.Itoa(os.Getpid()), Since: time.Now()}
	}
	after, err := stores.Call(ctx, func(ctx context.Context) (lockstore.Status, error) {
		return r.store.Revoke(ctx, lockstore.RevokeRequest{Key: r.key, Fence: r.fence, By: by, OpenAtOnce: r.openAtOnce})
	})
	if started, ok := errors.AsType[*lockstore.Refused](err); ok {
		return &exit.Error{Status: exit.No, Err: started}
	}
	if errors.Is(err, lockstore.ErrLost) {
		if seen, err = r.inspect(ctx); err == nil {
			err = r.notThere(seen)
		}
	}
	if err != nil {
		return err
	}
	if !r.openAtOnce && after.Holder.Encode() != by.Encode() { // another operator was first
		lease.HolderInfo, lease.Remaining = after.Holder, after.Remaining
		return r.already(ctx, lease, after.Started)
	}
	left, until := after.Remaining.Round(time.Second), time.Now().Add(after.Remaining).UTC().Format(time.RFC3339)
	text := fmt.Sprintf("the lease of %q is revoked: %s can renew it no more; %s within %v, at %s.", r.key, who, opens(lease, after.Started), left, until)
	if r.openAtOnce {
		text = fmt.Sprintf("%q is open. The run with the fence %d may be at work for %v more, until %s: let writes with a fence below the next one be refused.", r.key, r.fence, left, until)
	}
	if _, err := fmt.Fprintln(r.out, text); err != nil {
		return fmt.Errorf("the lease of %q is revoked; %w", r.key, err)
	}
	if !r.wait || r.openAtOnce {
		return nil
	}
	return r.await(ctx)
}

// hasLease says that a key has a lease, which may be revoked already.
func hasLease(s lockstore.Status) bool {
	return (s.State == lockstore.Held || s.State == lockstore.Revoked) && len(s.Holders) > 0
}

func withFence(s lockstore.Status, fence lockstore.Fence) (lease lockstore.LiveLease, ok bool) {
	i := slices.IndexFunc(s.Holders, func(h lockstore.LiveLease) bool { return h.Fence == fence })
	if i < 0 || !hasLease(s) {
		return lease, false
	}
	return s.Holders[i], true
}

// notThere says what the state of the key is in place of held with this fence.
func (r *revoker) notThere(status lockstore.Status) error {
	switch {
	case status.State.Done():
		return exit.Errorf(exit.No, "%q has the state %v, has no lease to revoke, and opens within %v", r.key, status.State, status.Remaining.Round(time.Second))
	case status.State == lockstore.InDoubt:
		return exit.Errorf(exit.No, "%q is in doubt: nobody holds it, and nobody gets it before lockctl resolve", r.key)
	case hasLease(status):
		return exit.Errorf(exit.Busy, "%q changed hands: nobody holds it with the fence %d; nothing was done", r.key, r.fence)
	}
	return exit.Errorf(exit.No, "%q is not held", r.key)
}

// already is for a lease that another operator has revoked. --wait waits for its end, too.
func (r *revoker) already(ctx context.Context, l lockstore.LiveLease, started bool) error {
	text := fmt.Sprintf("the lease of %q was revoked already: %v; %s within %v", r.key, l.HolderInfo, opens(l, started), l.Remaining.Round(time.Second))
	if !r.wait {
		return &exit.Error{Status: exit.No, Err: errors.New(text)}
	}
	if _, err := fmt.Fprintln(r.out, text); err != nil {
		return err
	}
	return r.await(ctx)
}

// opens says what opens at the end of a revoked lease. Only work that has marked its start leaves doubt.
func opens(l lockstore.LiveLease, started bool) string {
	switch {
	case l.MaxHolders > 1:
		return "its seat is free"
	case started:
		return "its work has started, so the key is in doubt"
	}
	return "the key opens"
}

// await waits until the lease is over. The key may be in doubt then, or another may have it.
func (r *revoker) await(ctx context.Context) error {
	l := &looker{operator: &r.operator, answered: true}
	for {
		status, err := l.look(ctx)
		if err != nil {
			return err
		}
		lease, lasts := withFence(status, r.fence)
		switch {
		case lasts:
		case status.State.Taken() && !hasLease(status) && status.Fence == r.fence: // in doubt, or somebody has resolved it
			return r.notThere(status)
		default:
			_, err := fmt.Fprintf(r.out, "the lease is over; %q is %v now.\n", r.key, status.State)
			return err
		}
		l.pause = min(lookEvery, max(50*time.Millisecond, lease.Remaining))
	}
}
