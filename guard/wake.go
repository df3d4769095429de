package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

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

// wakes are the wake-ups of a run. A renewal may make some necessary while the work runs.
type wakes struct {
	mu            sync.Mutex
	end           time.Duration // of the release that is under way; 0 without one
	begun         []*wakeUps    // that nobody has waited for
	woken, failed int
	err           error // of the first that failed
}

// wakeUps are those that one request has made necessary.
type wakeUps struct {
	ctx    context.Context
	cancel context.CancelFunc
	owners int
	ended  chan error // has room for all
}

func (w *wakes) setEnd(end time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end = end
}

// begin makes the context of wake-ups, which ends after 1 s, or with the release that is under way.
func (w *wakes) begin(ctx context.Context, c *clock, owners int) *wakeUps {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := releaseTime
	if w.end > 0 {
		d = min(d, w.end-c.time())
	}
	ups := &wakeUps{owners: owners, ended: make(chan error, owners)}
	ups.ctx, ups.cancel = c.timeout(ctx, d)
	w.begun = append(w.begun, ups)
	return ups
}

// take takes out those that nobody has waited for.
func (w *wakes) take() []*wakeUps {
	w.mu.Lock()
	defer w.mu.Unlock()
	begun := w.begun
	w.begun = nil
	return begun
}

func (w *wakes) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.woken++
	} else {
		w.failed++
		w.err = cmp.Or(w.err, err)
	}
}

// report is for the run's report.
func (w *wakes) report() (woken int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed > 0 {
		err = fmt.Errorf("%d of %d parked owners that have to ask again were not woken: %w", w.failed, w.failed+w.woken, w.err)
	}
	return w.woken, err
}

// wake begins to wake the owners. It does not wait: the run may have work to do. The end of the run's own
// context does not stop the wake-ups: nobody else wakes these owners.
func (r *run) wake(key string, owners []lockstore.Owner) {
	ups := r.wakes.begin(context.WithoutCancel(&r.window), r.guard.clock, len(owners))
	slots := make(chan struct{}, mostWakes)
	for _, owner := range owners {
		go func() {
			err := errors.New("guard.Options.Wake called runtime.Goexit")
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("guard.Options.Wake panicked with a %T", p) // its text may have the address
				}
				ups.ended <- err
			}()
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				err = r.wakeOwner(ups.ctx, key, owner)
			case <-ups.ctx.Done():
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
	pauses, parts := r.guard.newPauses(), time.Duration(2) // the first try leaves time for a repeat
	end, _ := ctx.Deadline()
	for {
		once, cancel := r.guard.clock.timeout(ctx, r.guard.clock.until(end)/parts)
		err := try(once)
		cancel()
		parts = 1
		if err == nil {
			return nil
		}
		if o := outcomeOf(err); o != OutcomeUnavailable && o != OutcomeUnknown || !r.guard.clock.pause(ctx, pauses.next()) {
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

// finishWakeUps waits for wake-ups that no release has waited for: a grant may hand over, too.
func (r *run) finishWakeUps() {
	r.wakes.mu.Lock()
	waiting := len(r.wakes.begun) > 0
	r.wakes.mu.Unlock()
	if waiting {
		ctx, end := r.beginRelease(false, releaseTime)
		defer r.endRelease()
		r.awaitWakeUps(ctx, end)
	}
}

// awaitWakeUps waits for the wake-ups that were begun until end, or until Shutdown ends ctx. Then it ends their context.
func (r *run) awaitWakeUps(ctx context.Context, end time.Duration) {
	begun := r.wakes.take()
	if begun == nil {
		return
	}
	cut := func() {
		for _, ups := range begun {
			ups.cancel()
		}
	}
	defer cut()
	defer context.AfterFunc(ctx, cut)()
	defer r.guard.clock.after(end-r.now(), cut)()
	for _, ups := range begun {
		r.awaitAll(ups)
	}
}

// awaitAll waits until all have ended, but not longer than until shortly after the end of their context.
func (r *run) awaitAll(ups *wakeUps) {
	over := ups.ctx.Done()
	var late <-chan struct{}
	for open := ups.owners; open > 0; {
		select {
		case err := <-ups.ended:
			r.wakes.note(err)
			open--
		case <-over:
			var stop func() bool
			late, stop = r.guard.clock.timer(noticeTime)
			defer stop()
			over = nil
		case <-late:
			for range open {
				r.wakes.note(errBlocks)
			}
			return
		}
	}
}
