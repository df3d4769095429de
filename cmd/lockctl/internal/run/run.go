package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/exit"
	"github.com/lambdalock/lambdalock/cmd/lockctl/internal/stores"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// passedOn are the signals that lockctl passes on to the command.
var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP}

// NotIgnored leaves out the signals that this process ignores, as nohup makes it. To ask for
// them would end that, also for the command, which inherits what is ignored.
func NotIgnored(signals ...os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}

func (s *settings) run(ctx context.Context, stderr io.Writer) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, append(NotIgnored(passedOn...), syscall.SIGCONT)...)
	if !signal.Ignored(syscall.SIGPIPE) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // who reads what lockctl says may end
	}
	logging.Disable() // go-redis would wait for that reader
	// The signal that ends ctx may have come before that. If it came after that, it is there twice, and counts once.
	first := ctx
	context.AfterFunc(first, func() {
		if by, ok := errors.AsType[*exit.BySignal](context.Cause(first)); ok {
			signals <- by.Signal
		}
	})
	ctx = context.WithoutCancel(first)
	opened, err := s.Open(ctx)
	if err != nil {
		return err
	}
	trust := &trusting{timeout: s.Timeout, failing: failing{stderr: stderr}, once: s.atLeastFor > 0}
	g, err := guard.New(opened.WrapDriver(func(d driver.Driver) driver.Driver {
		trust.Driver = d
		return trust
	}), guard.Options{Wake: s.Waker(), Observe: func(_ context.Context, r guard.Report) {
		if r.WakeErr != nil {
			fmt.Fprintln(stderr, "lockctl: warning:", r.WakeErr)
		}
	}})
	if err != nil {
		return err
	}
	g = g.WithMaxHolders(s.maxHolders)
	lease, err := s.acquire(ctx, g, signals, stderr)
	if err != nil {
		return err
	}
	h := &hold{settings: s, guard: g, store: opened, lease: lease, until: trust.until, signals: signals, stderr: stderr, terminal: openTerminal()}
	return h.run(ctx)
}

// acquire gets the lock. A signal ends the wait for it.
func (s *settings) acquire(ctx context.Context, g *guard.Guard, signals <-chan os.Signal, stderr io.Writer) (lockstore.Lease, error) {
	ctx, cancel := context.WithCancel(ctx)
	caught := make(chan syscall.Signal, 1)
	done := make(chan struct{})
	go func() {
		defer close(caught)
		for {
			select {
			case sig := <-signals:
				if sig == syscall.SIGCONT {
					continue
				}
				caught <- sig.(syscall.Signal)
				cancel()
			case <-done:
			}
			return
		}
	}()
	lease, err := s.ask(ctx, g, stderr)
	close(done)
	sig, ended := <-caught
	cancel()
	if !ended {
		return lease, err
	}
	if err == nil {
		err = g.Release(context.WithoutCancel(ctx), lease)
	}
	status := exit.Signal + int(sig)
	if _, late := errors.AsType[*guard.LockDeadline](err); late || err == nil {
		return lockstore.Lease{}, &exit.Silent{Status: status}
	}
	return lockstore.Lease{}, &exit.Error{Status: status, Err: err}
}

func (s *settings) ask(ctx context.Context, g *guard.Guard, stderr io.Writer) (lockstore.Lease, error) {
	req := guard.LeaseRequest{
		Key:        s.key,
		TTL:        s.ttl,
		HolderInfo: lockstore.HolderInfo{Name: s.holder, ID: fmt.Sprint(os.Getpid())},
	}
	// The first request does not wait. Whoever waits for long wants to know soon that the
	// address is wrong, or that the user may not write.
	lease, err := g.Acquire(ctx, req)
	busy, isBusy := errors.AsType[*guard.LockBusy](err)
	if isBusy && s.wait > 0 {
		telling, stop := context.WithCancel(ctx)
		if s.JSON {
			stderr = io.Discard // this is for people
		}
		fmt.Fprintf(stderr, "lockctl: waiting for %q: %s\n", s.key, stateText(busy.State, busy.Holder, busy.Remaining))
		go s.tell(telling, g, stderr)
		req.Wait = s.wait
		lease, err = g.Acquire(ctx, req)
		stop()
		busy, isBusy = errors.AsType[*guard.LockBusy](err)
	}
	if before, ok := errors.AsType[doneBefore](err); ok {
		busy, isBusy = &guard.LockBusy{State: before.State, Holder: lockstore.DecodeHolderInfo(before.Holder), Remaining: before.Remaining}, true
	}
	if isBusy {
		text, status := "busy: ", s.busyStatus
		switch {
		case busy.State == lockstore.InDoubt:
			text, status = "", exit.InDoubt
		case busy.State.Done():
			text, status = "done already: ", s.doneStatus
		}
		return lease, &exit.Error{Status: status, Err: errors.New(text + stateText(busy.State, busy.Holder, busy.Remaining))}
	}
	if _, late := errors.AsType[*guard.LockDeadline](err); late {
		return lease, err // a signal has ended the wait
	}
	return lease, stores.Failed(err)
}

// tellAgain is how long lockctl waits until it says again who has the key. Each time is twice as long as the one before.
const tellAgain = 30 * time.Second

// tell says again and again who has the key that lockctl waits for.
func (s *settings) tell(ctx context.Context, g *guard.Guard, stderr io.Writer) {
	began := time.Now()
	for d := tellAgain; pause.For(ctx, d) == nil; d *= 2 {
		if status, err := g.Inspect(ctx, s.key); err == nil && status.State != lockstore.Free {
			fmt.Fprintf(stderr, "lockctl: waiting for %q for %v: %s; %d wait\n",
				s.key, time.Since(began).Round(time.Second), stateText(status.State, status.Holder, status.Remaining), status.Waiting)
		}
	}
}

func stateText(state lockstore.State, holder lockstore.HolderInfo, left time.Duration) string {
	left = left.Round(time.Second)
	switch state {
	case lockstore.Completed:
		return fmt.Sprintf("the work was done by %v, and its result is stored for %v more", holder, left)
	case lockstore.Cooldown:
		return fmt.Sprintf("the work was done by %v, and nobody does it again for %v", holder, left)
	case lockstore.InDoubt:
		return fmt.Sprintf("in doubt: nobody knows how the work of %v ended, and nobody gets the key before lockctl resolve", holder)
	case lockstore.Reserved:
		return fmt.Sprintf("reserved for those who have waited longer, for at most %v", left)
	}
	return fmt.Sprintf("%v by %v, %v left", state, holder, left)
}

// hold is a lease, and the command that runs under it.
type hold struct {
	*settings
	guard    *guard.Guard
	store    *lockstore.Store
	lease    lockstore.Lease
	until    moment // the end of trust
	signals  <-chan os.Signal
	stderr   io.Writer
	terminal *terminal

	command *guarded
	group   int            // of the command; 0 before it has started
	given   bool           // the command has the terminal
	early   syscall.Signal // came before the command was started; 0 is none
	asked   bool           // somebody has asked the command to end: a status of 0 does not say that its work is done
	over    bool           // --max-hold is over
	lost    error
	failed  error // of the last renewal; nil if it has succeeded
}

// renewal is the answer to a renewal.
type renewal struct {
	until  moment // the end of trust
	failed error
	lost   bool // there will be no other renewal
}

// run runs the command, renews the lease until it has ended, and releases the lease.
func (h *hold) run(ctx context.Context) error {
	env := []string{"LOCK_KEY=" + h.key, fmt.Sprintf("LOCK_FENCE=%d", h.lease.Fence), fmt.Sprintf("LOCK_SEAT=%d", h.lease.Seat), "LOCK_HELD=true"}
	command, err := startGuarded(h.settings.command, env, h.killAfter)
	if err != nil {
		return h.release(ctx, &exit.Error{Status: exit.Bug, Err: fmt.Errorf("the guard process cannot be started: %w", err)})
	}
	// A terminal may stop who writes to it from the background (stty tostop). lockctl is in the background while the
	// command has the terminal. The guard process and the command do not inherit this any more.
	signal.Ignore(syscall.SIGTTOU)
	h.command = command
	renewing, stop := context.WithCancel(ctx)
	renewals, joined := make(chan renewal), make(chan struct{})
	go func() {
		defer close(joined)
		h.renew(renewing, renewals)
	}()
	last := h.supervise(renewals)
	stop()
	<-joined
	return h.ended(ctx, last)
}

// supervise returns the last report of the guard process. Its word is "" if the guard
// process was killed.
func (h *hold) supervise(renewals <-chan renewal) report {
	maxHold := time.NewTimer(h.maxHold)
	defer maxHold.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var resume <-chan time.Time // lockctl has been stopped, and goes on
	for {
		select {
		case r := <-h.command.reports:
			switch r.word {
			case "ready":
				h.begin()
			case "started":
				h.group = r.number
				h.given = h.terminal.isCommands() && h.terminal.give(h.group)
			case "stopped":
				resume = h.stopped(syscall.Signal(r.number))
			default:
				return r
			}
		case r := <-renewals:
			h.renewed(r)
		case sig := <-h.signals:
			if sig == syscall.SIGCONT {
				h.resume()
				resume = nil
			} else {
				h.pass(sig.(syscall.Signal))
			}
		case <-resume:
			h.resume()
			resume = nil
		case <-maxHold.C:
			h.over = true
			h.command.end()
		case <-look.C:
			// The guard process does this, too. Somebody may have stopped it.
			if h.group > 0 && now().until(h.until) <= 0 {
				_ = syscall.Kill(-h.group, syscall.SIGKILL)
			}
		}
	}
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
		left := max(0, now().until(r.until)-h.killAfter).Round(time.Second / 10)
		fmt.Fprintf(h.stderr, "lockctl: warning: the lock of %q cannot be renewed, and the command is ended in %v if that stays so: %v\n", h.key, left, stores.Failed(r.failed))
	}
	h.until, h.failed = r.until, r.failed
}

// untilRenewal is how long to wait for the next renewal: a third of the lease. A store may
// grant less trust than the lease that was asked for. The renewal has to come before the
// guard process sends SIGTERM, so it comes after half of the time until then.
func (h *hold) untilRenewal(left time.Duration) time.Duration {
	return min(h.ttl/3, max(lookEvery, (left-h.killAfter)/2))
}

// renew renews the lease again and again. It sends each answer, and ends after the one that
// says that the lease is lost.
func (h *hold) renew(ctx context.Context, answers chan<- renewal) {
	until := h.until
	pause := h.untilRenewal(now().until(until))
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		sent := now()
		limit := max(0, sent.until(until)/2) // so that one repeat fits in
		limited, cancel := context.WithTimeout(ctx, min(limit, callTime, h.Timeout))
		renewed, err := h.store.Renew(limited, h.lease, h.ttl)
		cancel()
		pause = min(h.ttl/10, time.Second)
		if err == nil {
			h.lease, until = renewed, sent.add(renewed.TTL-margin)
			pause = h.untilRenewal(now().until(until))
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

// begin starts the command, unless a signal has come.
func (h *hold) begin() {
	for {
		select {
		case sig := <-h.signals:
			if sig != syscall.SIGCONT {
				h.pass(sig.(syscall.Signal))
				return
			}
		default:
			h.command.start(h.until)
			return
		}
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
	if sig == syscall.SIGHUP && h.given && h.terminal.gone() {
		_ = h.command.process.Signal(sig) // so that it knows that the command gets it from the system
	}
	h.command.signal(sig)
}

// stopped is called when a signal has stopped the command. If it wants the terminal, it
// gets it. Otherwise lockctl stops, too, with all of its process group, as a shell expects.
// The channel says when to look if that had no effect: without a shell with job control
// nobody could continue it.
func (h *hold) stopped(sig syscall.Signal) <-chan time.Time {
	wants := sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
	switch {
	case wants && h.terminal.give(h.group):
		h.given = true
		h.command.signal(syscall.SIGCONT)
		return nil
	case wants, sig == syscall.SIGTSTP:
		_ = syscall.Kill(0, syscall.SIGTSTP)
		return time.After(200 * time.Millisecond)
	}
	return nil // SIGSTOP: somebody means the command alone
}

// resume continues the command after lockctl was continued.
func (h *hold) resume() {
	if h.given {
		h.terminal.give(h.group)
	}
	h.command.signal(syscall.SIGCONT)
}

// ended releases the lease after the command has ended, and says how it went.
func (h *hold) ended(ctx context.Context, last report) error {
	h.terminal.takeBack(h.group)
	lost := h.lost != nil || !last.trusted // if the guard process has told the end
	switch {
	case last.word == "failed":
		return h.release(ctx, &exit.Error{Status: last.number, Err: errors.New(last.text)})
	case last.word == "late":
		return h.release(ctx, h.lostBefore())
	case last.word == "" && !h.command.started:
		return h.release(ctx, h.notStarted(last))
	case last.word != "ended":
		if h.group > 0 {
			limited, cancel := context.WithTimeout(ctx, max(0, now().until(h.until)))
			defer cancel()
			if killOrphans(limited, h.group) != nil {
				return h.lostError(errors.New("the guard process was killed, and the command could not be"))
			}
		}
		return h.release(ctx, &exit.Error{Status: exit.Bug, Err: errors.New("the guard process was killed; the command was killed, too")})
	case !last.gone:
		fmt.Fprintf(h.stderr, "lockctl: warning: a process of the command cannot be ended; the lock of %q is not released, and its lease ends within %v\n", h.key, h.ttl)
		if lost {
			return h.lostError(h.whyLost())
		}
		return h.status(last)
	case lost:
		return h.release(ctx, h.lostError(h.whyLost()))
	}
	return h.release(ctx, h.status(last))
}

// notStarted says why the guard process has ended before it was told to start the command.
func (h *hold) notStarted(last report) error {
	switch sig := cmp.Or(h.early, syscall.Signal(last.number)); {
	case slices.Contains(passedOn, os.Signal(sig)):
		return &exit.Silent{Status: exit.Signal + int(sig)}
	case h.lost != nil:
		return h.lostBefore()
	case h.over:
		return h.status(last)
	}
	return &exit.Error{Status: exit.Bug, Err: errors.New("the guard process was killed; the command was not started")}
}

func (h *hold) lostBefore() error {
	return &exit.Error{Status: exit.Lost, Err: fmt.Errorf("the lock of %q was lost before the command began; the command was not started", h.key)}
}

func (h *hold) status(last report) error {
	switch {
	case h.over:
		return &exit.Error{Status: exit.MaxHold, Err: fmt.Errorf("the command was ended after --max-hold, %v", h.maxHold)}
	case last.number == 0:
		return nil
	}
	return &exit.Silent{Status: last.number}
}

// whyLost is the cause of a loss. A renewal that succeeds after SIGTERM saves nothing, and
// leaves no failure behind.
func (h *hold) whyLost() error {
	return cmp.Or(h.lost, h.failed, fmt.Errorf("no renewal had succeeded when --kill-after, %v, or less was left of the lease", h.killAfter))
}

func (h *hold) lostError(cause error) error {
	why := ""
	if lost, ok := errors.AsType[*guard.LockLost](cause); ok {
		cause = lost.Cause // the rest would say the same again
	}
	if cause != nil {
		why = ": " + stores.Failed(cause).Error()
	}
	return &exit.Error{Status: exit.Lost, Err: fmt.Errorf("the lock of %q was lost, and the command was ended or had ended; what it wrote may stand beside what another wrote%s", h.key, why)}
}

// release releases the lease and returns err. After success the key stays closed for --at-least-for. A lease that
// the store says was lost before the command ended is an error of its own; a release that fails is a warning.
func (h *hold) release(ctx context.Context, err error) error {
	end, what := h.guard.Release, "released"
	if err == nil && h.atLeastFor > 0 && !h.asked {
		what = "closed for --at-least-for"
		end = func(ctx context.Context, lease lockstore.Lease) error {
			return h.guard.Complete(ctx, lease, h.atLeastFor)
		}
	}
	failed := end(ctx, h.lease)
	switch {
	case failed == nil || exit.Status(err) == exit.Lost:
		return err
	case errors.Is(failed, lockstore.ErrLost) && now().until(h.until) > 0:
		return h.lostError(failed)
	case errors.Is(failed, lockstore.ErrLost):
		return err // it ended by its time, after the command
	}
	fmt.Fprintf(h.stderr, "lockctl: warning: the lock of %q could not be %s, and its lease ends within %v: %v\n", h.key, what, h.ttl, failed)
	return err
}
