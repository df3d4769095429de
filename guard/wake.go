package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/internal/pause"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

const (
	// mostWakes is how many wake-ups of one request are under way at once.
	mostWakes = 8
	// noticeTime is what Options.Wake may take to notice that its context has ended. A store may take
	// as long.
	noticeTime = 50 * time.Millisecond
)

var (
	errNoWake    = lockstore.Invalidf("guard.Options.Wake is nil")
	errNoAddress = lockstore.Invalidf("the store has no address: another run has taken it, or the answer to an earlier request was lost")
	errNoTime    = errors.New("there was no time left")
	errBlocks    = errors.New("guard.Options.Wake did not return when its context had ended")
)

// noting is the driver of a guard's store. If an answer names owners to wake, it tells the run that sent the request.
type noting struct{ driver.Driver }

// parked returns the store through which a guard learns whom to wake, and whether the store has parked places.
func parked(store *lockstore.Store) (*lockstore.Store, bool) {
	if _, ok := driver.As[driver.Parker](store.Driver()); !ok {
		return store, false
	}
	return store.WrapDriver(func(d driver.Driver) driver.Driver { return &noting{d} }), true
}

// Unwrap returns the driver that is wrapped.
func (n *noting) Unwrap() driver.Driver { return n.Driver }

// Do is Do of the driver that is wrapped. The wake-ups begin when the store has written, also if the answer is an error.
func (n *noting) Do(ctx context.Context, key string, req driver.Request) (driver.Answer, error) {
	a, err := n.Driver.Do(ctx, key, req)
	if len(a.Wake) > 0 {
		if r, ok := ctx.Value(runKey{}).(*run); ok {
			r.wake(key, a.Wake)
		}
	}
	return a, err
}

// wakes are the wake-ups of a run.
type wakes struct {
	end    time.Duration // of the release that is under way; 0 without one
	under  []*wakeUps    // that were begun and not waited for. The window's mutex guards it
	failed int
	err    error // of the first that failed
}

// wakeUps are those that one request has made necessary.
type wakeUps struct {
	cancel context.CancelFunc
	ctx    context.Context
	done   chan struct{} // closed when all have ended

	mu     sync.Mutex
	open   int // that have not ended
	woken  int
	failed int
	err    error // of the first that failed
}

// wake begins to wake the owners. It does not wait: the run may have work to do. The end of the run's own
// context does not stop the wake-ups: nobody else wakes these owners.
func (r *run) wake(key string, owners []lockstore.Owner) {
	d := releaseTime
	if r.wakes.end > 0 {
		d = min(d, r.wakes.end-r.elapsed())
	}
	w := &wakeUps{done: make(chan struct{}), open: len(owners)}
	w.ctx, w.cancel = context.WithTimeout(context.WithoutCancel(r), d)
	r.mu.Lock()
	r.wakes.under = append(r.wakes.under, w)
	r.mu.Unlock()
	slots := make(chan struct{}, mostWakes)
	for _, owner := range owners {
		go func() {
			err := errors.New("guard.Options.Wake called runtime.Goexit")
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("guard.Options.Wake panicked with a %T", p) // its text may have the address
				}
				w.ended(err)
			}()
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				err = r.wakeOwner(w.ctx, key, owner)
			case <-w.ctx.Done():
				err = errNoTime
			}
		}()
	}
}

// wakeOwner wakes one owner. What fails is repeated after a pause until ctx ends, if the error says that
// the store or Wake may succeed later.
func (r *run) wakeOwner(ctx context.Context, key string, owner lockstore.Owner) error {
	if r.guard.opt.Wake == nil {
		return errNoWake
	}
	var address lockstore.Address
	try := func(ctx context.Context) (err error) {
		if address == "" {
			if address, err = r.guard.store.TakeAddress(ctx, key, owner); err != nil {
				return err
			}
		}
		if address == "" {
			return errNoAddress
		}
		return r.guard.opt.Wake(ctx, address)
	}
	pauses, parts := r.guard.pauses(maxPause), time.Duration(2) // the first try leaves time for a repeat
	end, _ := ctx.Deadline()
	for {
		once, cancel := context.WithTimeout(ctx, time.Until(end)/parts)
		err := try(once)
		cancel()
		parts = 1
		if err == nil {
			return nil
		}
		if o := outcomeOf(err); o != OutcomeUnavailable && o != OutcomeUnknown || pause.For(ctx, pauses.next()) != nil {
			return hide(address, err)
		}
	}
}

// hide returns the text of an error without the address.
func hide(a lockstore.Address, err error) error {
	if a == "" {
		return err
	}
	secret, _ := a.TaskToken()
	return errors.New(strings.ReplaceAll(err.Error(), secret, "(not shown)"))
}

func (w *wakeUps) ended(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.woken++
	} else if w.failed++; w.err == nil {
		w.err = err
	}
	if w.open--; w.open == 0 {
		close(w.done)
	}
}

// wait waits until all have ended, but not longer than until shortly after the end of their context.
func (w *wakeUps) wait() (woken, failed int, err error) {
	select {
	case <-w.done:
	case <-w.ctx.Done():
		late := time.NewTimer(noticeTime)
		defer late.Stop()
		select {
		case <-w.done:
		case <-late.C:
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.woken, w.failed + w.open, cmp.Or(w.err, errBlocks)
}

// waking says whether wake-ups were begun that nobody has waited for.
func (r *run) waking() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wakes.under != nil
}

// endWakes waits for the wake-ups of the run until end, or until Shutdown cuts the release off. Then it cuts
// the wake-ups off, and reports them.
func (r *run) endWakes(end time.Duration) {
	r.mu.Lock()
	under := r.wakes.under
	r.wakes.under = nil
	r.mu.Unlock()
	if under == nil {
		return
	}
	cut := func() {
		for _, w := range under {
			w.cancel()
		}
	}
	defer cut()
	r.setCut(cut)
	defer time.AfterFunc(end-r.elapsed(), cut).Stop()
	for _, w := range under {
		woken, failed, err := w.wait()
		r.report.Woken += woken
		if r.wakes.failed += failed; failed > 0 {
			r.wakes.err = cmp.Or(r.wakes.err, err)
		}
	}
	if n := r.wakes.failed; n > 0 {
		r.report.WakeErr = fmt.Errorf("%d of %d parked owners that have to ask again were not woken: %w", n, n+r.report.Woken, r.wakes.err)
	}
}
