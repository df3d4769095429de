package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/lockstore"
)

// PassedOn are the signals that lockctl passes on to the command. A signal that comes earlier ends lockctl.
var PassedOn = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP}

func (s *settings) run(ctx context.Context, stderr io.Writer) error {
	signals := make(chan os.Signal, 8)
	exit.Notify(signals, PassedOn...)
	exit.NeedsNoReader()
	logging.Disable() // go-redis would wait for that reader
	opened, err := s.Open(ctx)
	if err != nil {
		return err
	}
	w := &watched{once: s.atLeastFor > 0}
	g, err := guard.New(w.watch(opened), guard.Options{Wake: s.Waker(), Observe: func(_ context.Context, r guard.Report) {
		if r.WakeErr != nil {
			fmt.Fprintln(stderr, "lockctl: warning:", r.WakeErr)
		}
	}})
	if err != nil {
		return err
	}
	g = g.WithMaxHolders(s.maxHolders)
	lease, err := s.acquire(ctx, g, stderr)
	if err != nil {
		return err
	}
	// A signal that came before the Notify above has ended ctx only. Another one is there twice, and counts once.
	context.AfterFunc(ctx, func() {
		if by, ok := errors.AsType[*exit.BySignal](context.Cause(ctx)); ok {
			signals <- by.Signal
		}
	})
	h := &hold{settings: s, guard: g, lease: lease, until: w.sent.add(lease.TTL), signals: signals, stderr: stderr}
	return h.run(context.WithoutCancel(ctx))
}

// acquire gets the lease. A signal ends the wait for it.
func (s *settings) acquire(ctx context.Context, g *guard.Guard, stderr io.Writer) (lockstore.Lease, error) {
	lease, err := s.request(ctx, g, stderr)
	if ctx.Err() != nil {
		if err == nil {
			err = g.Release(context.WithoutCancel(ctx), lease)
		}
		ended := exit.Ended(ctx)
		if _, late := errors.AsType[*guard.LockNoTime](err); !late {
			ended.Err = err
		}
		return lease, ended
	}
	busy, isBusy := errors.AsType[*guard.LockBusy](err)
	if before, ok := errors.AsType[doneBefore](err); ok {
		busy, isBusy = &guard.LockBusy{State: before.State, Holder: lockstore.DecodeHolderInfo(before.Holder), StateEndsIn: before.Remaining}, true
	}
	if !isBusy {
		return lease, stores.Failed(err)
	}
	text, status := "busy: ", s.busyStatus
	switch {
	case busy.State == lockstore.InDoubt:
		text, status = "", exit.InDoubt
	case busy.State.Done():
		text, status = "done already: ", s.doneStatus
	}
	return lease, &exit.Error{Status: status, Err: errors.New(text + s.stateText(busy.State, busy.Holder, busy.StateEndsIn))}
}

// stateText says who has the key, and for how long at most.
func (s *settings) stateText(state lockstore.State, holder lockstore.HolderInfo, left time.Duration) string {
	if state.Done() {
		state = lockstore.Cooldown // nothing is said of a result
	}
	return (&lockstore.Refused{Key: s.key, State: state, Holder: holder, StateEndsIn: left.Round(time.Second)}).Error()
}

// hold is a lease, and the command that runs under it.
type hold struct {
	*settings
	guard   *guard.Guard
	lease   lockstore.Lease
	until   moment // the end of trust
	signals <-chan os.Signal
	stderr  io.Writer

	command *guarded
	group   int            // of the command; 0 before it has started
	early   syscall.Signal // came before the command was started; 0 is none
	asked   bool           // somebody has asked the command to end: a status of 0 does not say that its work is done
	lost    error
	failed  error // of the last renewal; nil if it has succeeded
}

// run runs the command, renews the lease until it has ended, and releases the lease.
func (h *hold) run(ctx context.Context) error {
	env := []string{"LOCK_KEY=" + h.key, fmt.Sprintf("LOCK_FENCE=%d", h.lease.Fence), fmt.Sprintf("LOCK_SEAT=%d", h.lease.Seat), "LOCK_HELD=true"}
	command, err := startGuarded(h.settings.command, env, h.killAfter())
	if err != nil {
		return h.release(ctx, exit.Errorf(exit.Bug, "the guard process cannot be started: %w", err))
	}
	h.command = command
	lasting, stop := context.WithCancel(ctx)
	renewals := make(chan renewal)
	var renewing sync.WaitGroup
	renewing.Go(func() { h.renew(lasting, renewals) })
	last := h.supervise(renewals)
	stop()
	renewing.Wait()
	return h.ended(ctx, last)
}

// supervise returns the last report of the guard process. Its word is "" if the guard
// process was killed.
func (h *hold) supervise(renewals <-chan renewal) report {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case r := <-h.command.reports:
			switch r.Word {
			case wordReady:
				h.begin()
			case wordStarted:
				h.group = r.Number
			default:
				return r
			}
		case r := <-renewals:
			h.renewed(r)
		case sig := <-h.signals:
			h.pass(sig.(syscall.Signal))
		case <-look.C:
			// The guard process does this, too. Somebody may have stopped it.
			if h.group > 0 && now().until(h.until) <= 0 {
				_ = syscall.Kill(-h.group, syscall.SIGKILL)
			}
		}
	}
}

type renewal struct {
	until  moment // the end of trust
	failed error
	lost   bool // there will be no other renewal
}

// renew renews the lease again and again. It sends each answer, and ends after the one that
// says that the lease is lost.
func (h *hold) renew(ctx context.Context, answers chan<- renewal) {
	until := h.until
	wait := h.untilRenewal(until)
	for pause.For(ctx, wait) == nil {
		sent := now()
		limited, cancel := context.WithTimeout(ctx, sent.until(until))
		trusted, err := h.guard.Renew(limited, h.lease, h.ttl)
		cancel()
		wait = min(h.ttl/10, time.Second)
		if err == nil {
			until = sent.add(trusted)
			wait = h.untilRenewal(until)
		}
		answer := renewal{until, err, now().until(until) <= 0 || isLost(err)}
		select {
		case answers <- answer:
		case <-ctx.Done():
			return
		}
		if answer.lost {
			return
		}
	}
}

// isLost says that no later renewal can succeed.
func isLost(err error) bool {
	return errors.Is(err, lockstore.ErrLost) || errors.Is(err, lockstore.ErrCorrupt) || errors.Is(err, lockstore.ErrInvalid)
}

// untilRenewal is how long to wait for the next renewal: a third of the lease. A store may
// grant less trust than the lease that was asked for. The renewal has to come before the
// guard process sends SIGTERM, so it comes after half of the time until then.
func (h *hold) untilRenewal(until moment) time.Duration {
	return min(h.ttl/3, max(lookEvery, (now().until(until)-h.killAfter())/2))
}

// renewed takes notice of the answer to a renewal. The first one that fails is told, with the
// time that is left to mend the store, and the first one that succeeds after that. A lease that
// is lost has no time left: the command is ended, and ended says why.
func (h *hold) renewed(r renewal) {
	switch {
	case r.lost:
		h.lost = r.failed
		h.command.end()
	case r.failed == nil:
		if h.failed != nil {
			fmt.Fprintf(h.stderr, "lockctl: the lock of %q is renewed again\n", h.key)
		}
		h.command.extend(r.until)
	case h.failed == nil:
		left := max(0, now().until(r.until)-h.killAfter()).Round(time.Second / 10)
		fmt.Fprintf(h.stderr, "lockctl: warning: the lock of %q cannot be renewed, and the command is ended in %v if that stays so: %v\n", h.key, left, stores.Failed(r.failed))
	}
	h.until, h.failed = r.until, r.failed
}

// begin starts the command, unless a signal has come.
func (h *hold) begin() {
	select {
	case sig := <-h.signals:
		h.pass(sig.(syscall.Signal))
	default:
		h.command.start(h.until)
	}
}

// pass passes a signal on. If the command was not started, it is not started any more.
func (h *hold) pass(sig syscall.Signal) {
	if !h.command.started {
		h.early = sig
		h.command.end()
		return
	}
	h.asked = h.asked || slices.Contains(asksToEnd, sig)
	h.command.send(order{Signal: sig})
}

// ended releases the lease after the command has ended, and says how it went.
func (h *hold) ended(ctx context.Context, last report) error {
	switch {
	case last.Word == wordFailed:
		return h.release(ctx, &exit.Error{Status: last.Number, Err: errors.New(last.Text)})
	case last.Word == wordLate:
		return h.release(ctx, h.lostBefore())
	case last.Word == "" && !h.command.started:
		return h.release(ctx, h.notStarted(last))
	case last.Word != wordEnded:
		if h.group > 0 && !killGroup(h.group, now().until(h.until)) {
			return h.lostError(errors.New("the guard process was killed, and the command could not be"))
		}
		return h.release(ctx, exit.Errorf(exit.Bug, "the guard process was killed; the command was killed, too"))
	}
	var status error
	if last.Number != 0 {
		status = &exit.Error{Status: last.Number}
	}
	if h.lost != nil || !last.Trusted {
		// A renewal that succeeds after SIGTERM saves nothing, and leaves no failure behind.
		status = h.lostError(cmp.Or(h.lost, h.failed, fmt.Errorf("no renewal had succeeded when %v or less was left of the lease", h.killAfter())))
	}
	if !last.Gone {
		fmt.Fprintf(h.stderr, "lockctl: warning: a process of the command cannot be ended; the lock of %q is not released, and its lease ends within %v\n", h.key, h.ttl)
		return status
	}
	return h.release(ctx, status)
}

// notStarted says why the guard process has ended before it was told to start the command.
func (h *hold) notStarted(last report) error {
	switch sig := cmp.Or(h.early, syscall.Signal(last.Number)); {
	case slices.Contains(PassedOn, os.Signal(sig)):
		return &exit.Error{Status: exit.Signal + int(sig)}
	case h.lost != nil:
		return h.lostBefore()
	}
	return exit.Errorf(exit.Bug, "the guard process was killed; the command was not started")
}

func (h *hold) lostBefore() error {
	return exit.Errorf(exit.Lost, "the lock of %q was lost before the command began; the command was not started", h.key)
}

func (h *hold) lostError(cause error) error {
	why := ""
	if lost, ok := errors.AsType[*guard.LockLost](cause); ok {
		cause = lost.Cause // the rest would say the same again
	}
	if cause != nil {
		why = ": " + stores.Failed(cause).Error()
	}
	return exit.Errorf(exit.Lost, "the lock of %q was lost, and the command was ended or had ended; what it wrote may stand beside what another wrote%s", h.key, why)
}

// release releases the lease and returns err. After success the key stays closed for --at-least-for. A lease that
// the store says was lost before the command ended is an error of its own; a release that fails is a warning.
func (h *hold) release(ctx context.Context, err error) error {
	var failed error
	what, closes := "released", err == nil && h.atLeastFor > 0 && !h.asked
	if closes {
		what = "closed for --at-least-for"
		failed = h.guard.Complete(ctx, h.lease, h.atLeastFor)
	} else {
		failed = h.guard.Release(ctx, h.lease)
	}
	switch {
	case failed == nil || exit.Status(err) == exit.Lost:
		return err
	case errors.Is(failed, lockstore.ErrLost) && now().until(h.until) > 0:
		return h.lostError(failed)
	case errors.Is(failed, lockstore.ErrLost): // it ended by its time, after the command
		if closes {
			fmt.Fprintf(h.stderr, "lockctl: warning: the lock of %q could not be closed for --at-least-for, because its lease was over: the command may run again\n", h.key)
		}
		return err
	}
	fmt.Fprintf(h.stderr, "lockctl: warning: the lock of %q could not be %s, and its lease ends within %v: %v\n", h.key, what, h.ttl, failed)
	return err
}
