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

// wakeParked tells the run that has sent a request whom the answer says to wake. The store calls it, on the goroutine of the request.
func wakeParked(ctx context.Context, _ string, owners []lockstore.Owner) {
	if r, ok := ctx.Value(runKey{}).(*run); ok {
		r.wake(owners)
	}
}

// wakes are the wake-ups of a run. One goroutine at a time waits for them.
type wakes struct {
	mu     sync.Mutex
	begun  []wakeUp // with mu: that nobody has waited for
	failed int      // of those that the run has waited for
	err    error    // of the first of them
}

// wakeUp asks the store for the address of one owner (TakeAddress), and calls Options.Wake.
type wakeUp struct {
	cancel context.CancelFunc
	ended  chan error // has room for errBlocks and for how it ends later
}

// wake begins to wake the owners, on goroutines of their own. It does not wait: the run may have work to do. The end of the run's own context does not
// stop the wake-ups: nobody else wakes these owners. It sets wakes.begun. wakeParked calls it.
func (r *run) wake(owners []lockstore.Owner) {
	slots := make(chan struct{}, mostWakes)
	r.wakes.mu.Lock()
	defer r.wakes.mu.Unlock()
	for _, owner := range owners {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(&r.window), releaseTime)
		up := wakeUp{cancel, make(chan error, 2)}
		r.wakes.begun = append(r.wakes.begun, up)
		stop := context.AfterFunc(ctx, func() {
			time.AfterFunc(noticeTime, func() { up.ended <- errBlocks })
		})
		go func() {
			err := errors.New("guard.Options.Wake called runtime.Goexit")
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("guard.Options.Wake panicked with a %T", p) // its text may have the address
				}
				stop()
				up.ended <- err
			}()
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				err = r.wakeOwner(ctx, owner)
			case <-ctx.Done():
				err = errNoTime
			}
		}()
	}
}

// wakeOwner wakes one owner: it sends TakeAddress, and calls Options.Wake. wake calls it, on a goroutine for each owner. What fails is repeated after a
// pause until ctx ends, if the error says that the store or Wake may succeed later.
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
	for unclear := false; ; { // whether an earlier call of Wake has ended so
		once, cancel := context.WithTimeout(ctx, until(end)/parts)
		err := try(once)
		cancel()
		parts = 1
		if err == nil {
			return nil
		}
		o := outcomeOf(err)
		if o != OutcomeUnavailable && o != OutcomeUnknown || !sleep(ctx, pauses.next()) {
			if unclear {
				err = fmt.Errorf("%w; an earlier try may have woken it", err)
			}
			return hide(address, err)
		}
		unclear = unclear || o == OutcomeUnknown && address != ""
	}
}

// hide returns the text of an error without the address. wakeOwner calls it.
func hide(a lockstore.WakeAddress, err error) error {
	if a == "" {
		return err
	}
	secret, _ := a.TaskToken()
	return errors.New(strings.ReplaceAll(err.Error(), secret, "(not shown)"))
}

// finishWakeUps waits for wake-ups that no release has waited for: a grant may hand over, too. endHold, do and finish call it.
func (r *run) finishWakeUps() {
	r.wakes.mu.Lock()
	none := len(r.wakes.begun) == 0
	r.wakes.mu.Unlock()
	if none {
		return
	}
	ctx, endRelease, end, _ := r.beginRelease(releaseTime)
	defer endRelease()
	r.awaitWakeUps(ctx, end)
}

// awaitWakeUps waits for the wake-ups of a release, or of a run that releases nothing. It waits until end, or until Shutdown ends ctx. Then it ends
// their context, and waits for shortly longer. It sets wakes and notes.OwnersWoken. sendRelease and finishWakeUps call it.
func (r *run) awaitWakeUps(ctx context.Context, end time.Duration) {
	r.wakes.mu.Lock()
	begun := r.wakes.begun
	r.wakes.begun = nil
	r.wakes.mu.Unlock()
	for _, up := range begun {
		defer up.cancel()
		defer context.AfterFunc(ctx, up.cancel)()
		defer time.AfterFunc(end-r.now(), up.cancel).Stop()
	}
	for _, up := range begun {
		err := <-up.ended
		if err == errBlocks && len(up.ended) > 0 {
			err = <-up.ended // it has ended since
		}
		if err == nil {
			r.notes.OwnersWoken++
		} else {
			r.wakes.failed, r.wakes.err = r.wakes.failed+1, cmp.Or(r.wakes.err, err)
		}
	}
}
