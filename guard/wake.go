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
)

const (
	// mostWakes is how many wake-ups of one request are under way at once.
	mostWakes = 8
	// noticeTime is what Options.Wake may take to notice that its context has ended. A store may take
	// as long, and a hook after Shutdown.
	noticeTime = 50 * time.Millisecond
)

var (
	errNoWake    = lockstore.Invalidf("guard.Options.Wake is nil")
	errNoAddress = lockstore.Invalidf("the store has no address: another run has taken it, or the answer to an earlier request was lost")
	errNoTime    = errors.New("there was no time left")
	errBlocks    = errors.New("guard.Options.Wake did not return when its context had ended")
)

// wakeParked tells the run that has sent a request whom the answer says to wake. It runs on the goroutine of the request.
func wakeParked(ctx context.Context, _ string, owners []lockstore.Owner) {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		r.wake(owners)
	}
}

// wakes are the wake-ups of a run. One goroutine at a time waits for them.
type wakes struct {
	mu    sync.Mutex
	begun []*wakeUps // with mu: that nobody has waited for

	// How those ended that the run has waited for.
	woken, failed int
	err           error // of the first that failed
}

// wakeUps are those that one request has made necessary: each asks the store for an address (TakeAddress), and calls Options.Wake.
type wakeUps struct {
	ctx    context.Context
	cancel context.CancelFunc
	owners int
	ended  chan error // has room for all
}

// record notes how n wake-ups ended, without mu.
func (w *wakes) record(n int, err error) {
	if err == nil {
		w.woken += n
	} else {
		w.failed, w.err = w.failed+n, cmp.Or(w.err, err)
	}
}

// wake begins to wake the owners, on goroutines of their own. It does not wait: the run may have work to do. The end of the run's own
// context does not stop the wake-ups: nobody else wakes these owners.
func (r *run) wake(owners []lockstore.Owner) {
	ups := &wakeUps{owners: len(owners), ended: make(chan error, len(owners))}
	ups.ctx, ups.cancel = context.WithTimeout(context.WithoutCancel(&r.window), releaseTime)
	r.wakes.mu.Lock()
	r.wakes.begun = append(r.wakes.begun, ups)
	r.wakes.mu.Unlock()
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
				err = r.wakeOwner(ups.ctx, owner)
			case <-ups.ctx.Done():
				err = errNoTime
			}
		}()
	}
}

// wakeOwner wakes one owner: it sends TakeAddress, and calls Options.Wake. What fails is repeated after a pause until ctx ends, if the
// error says that the store or Wake may succeed later.
func (r *run) wakeOwner(ctx context.Context, owner lockstore.Owner) error {
	if r.guard.opt.Wake == nil {
		return errNoWake
	}
	var address lockstore.WakeAddress
	try := func(ctx context.Context) (err error) {
		if address == "" {
			if address, err = r.guard.store.TakeAddress(ctx, r.key, owner); err != nil {
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
		once, cancel := context.WithTimeout(ctx, until(end)/parts)
		err := try(once)
		cancel()
		parts = 1
		if err == nil {
			return nil
		}
		if o := outcomeOf(err); o != OutcomeUnavailable && o != OutcomeUnknown || !sleep(ctx, pauses.next()) {
			return hide(address, err)
		}
	}
}

// hide returns the text of an error without the address.
func hide(a lockstore.WakeAddress, err error) error {
	if a == "" {
		return err
	}
	secret, _ := a.TaskToken()
	return errors.New(strings.ReplaceAll(err.Error(), secret, "(not shown)"))
}

// finishWakeUps waits for wake-ups that no release has waited for: a grant may hand over, too.
func (r *run) finishWakeUps() {
	ctx, endRelease, end, _ := r.beginRelease(releaseTime)
	defer endRelease()
	r.awaitWakeUps(ctx, end)
}

// awaitWakeUps waits for the wake-ups of a release, or of a run that releases nothing. It waits until end, or until Shutdown ends ctx. Then
// it ends their context, and waits for shortly longer.
func (r *run) awaitWakeUps(ctx context.Context, end time.Duration) {
	r.wakes.mu.Lock()
	begun := r.wakes.begun
	r.wakes.begun = nil
	r.wakes.mu.Unlock()
	for _, ups := range begun {
		defer ups.cancel()
		defer context.AfterFunc(ctx, ups.cancel)()
		defer time.AfterFunc(end-r.now(), ups.cancel).Stop()
	}
	for _, ups := range begun {
		over, late := ups.ctx.Done(), (<-chan time.Time)(nil)
		for open := ups.owners; open > 0; {
			select {
			case err := <-ups.ended:
				r.wakes.record(1, err)
				open--
			case <-over:
				late = time.After(noticeTime)
				over = nil
			case <-late:
				r.wakes.record(open, errBlocks)
				open = 0
			}
		}
	}
}
