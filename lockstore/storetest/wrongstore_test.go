package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/wrongrules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// wrongDriver is the rule book over entries that can be damaged. It has one mistake: one of the rules, from package wrongrules, or one of its own,
// by its name. Without a mistake it passes the suite. It is the driver of one process.
type wrongDriver struct {
	*wrongServer
	process sync.Mutex
	ahead   time.Duration // of the process's clock
}

type wrongServer struct {
	bug    string
	book   rules.Book
	decide func(rules.Book, rules.State, rules.Clock, driver.Request) (rules.State, bool, driver.Answer, rules.Basis)

	mu       sync.Mutex
	shift    time.Duration // of the clock
	rows     map[string]row
	requests int
	delay    Delayer
	cut      bool // replies are lost
	hang     bool // no reply comes
	counter  driver.Fence
	pushed   map[driver.Owner]driver.Fence // to those who were handed the key
	parked   map[string]driver.HiddenBytes // addresses
	since    map[string]time.Time          // when an address came, or an owner for a key
	counts   map[driver.Kind]int           // requests
	left     int                           // requests until inside is called, see Harness.Inside
	inside   func()
	twice    bool // the reply to the request before that one is lost
}

var errCut = errors.New("connection reset")

func newWrong(bug string) *wrongDriver {
	d := &wrongServer{
		bug: bug, book: rules.Book{Places: 40, Marks: 16}, decide: rules.Book.Decide, rows: map[string]row{}, pushed: map[driver.Owner]driver.Fence{}, parked: map[string]driver.HiddenBytes{}, since: map[string]time.Time{}, counts: map[driver.Kind]int{},
	}
	if i := slices.IndexFunc(wrongrules.All, func(m wrongrules.Mistake) bool { return m.Name == bug }); i >= 0 {
		d.decide = wrongrules.All[i].Decide
	}
	return &wrongDriver{wrongServer: d}
}

func (d *wrongDriver) store() *lockstore.Store { return lockstore.New("wrong", d) }

// has reports whether the store has the mistake.
func (d *wrongServer) has(bug string) bool { return d.bug == bug }

func (d *wrongServer) locked(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// row is an entry. A test may damage it.
type row struct {
	rules.State
	damaged, noQueue bool
}

func (d *wrongServer) read(key string) (rules.State, error) {
	r := d.rows[d.place(key)]
	switch {
	case r.damaged && d.has("F53 corrupt row is free"):
		return rules.State{}, nil
	case r.damaged, r.noQueue && d.has("queue: damaged is corrupt"):
		return r.State, fmt.Errorf("%w: no row", lockstore.ErrCorrupt)
	case r.noQueue:
		r.Queue = nil
	}
	return r.State, nil
}

// place is where the row of a key is.
func (d *wrongServer) place(key string) string {
	switch d.bug {
	case "M29 keys meet without case":
		return strings.ToLower(key)
	case "M29 keys meet after 1000 bytes":
		return key[:min(len(key), 1000)]
	case "M29 keys meet in their hash tag":
		if _, tag, ok := strings.Cut(key, "{"); ok {
			if tag, _, ok := strings.Cut(tag, "}"); ok && tag != "" {
				return tag
			}
		}
	case "M29 keys meet after trimming":
		return strings.TrimSpace(key)
	case "F58 every key has one lock":
		return "all"
	}
	return key
}

// Do implements driver.Driver: one round trip, or two if the reply to the first is lost.
func (d *wrongDriver) Do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if d.arrives() {
		if _, err := d.do(ctx, key, r); err != nil {
			return driver.Answer{}, err
		}
		d.arrives()
	}
	return d.do(ctx, key, r)
}

// arrives counts a request, and says if its reply is lost.
func (d *wrongServer) arrives() (lost bool) {
	var inside func()
	d.locked(func() {
		d.left--
		lost = d.left == 1 && d.twice
		if d.left == 0 {
			inside = d.inside
		}
	})
	if inside != nil {
		inside()
	}
	return lost
}

// do is one round trip, which a test may delay.
func (d *wrongDriver) do(ctx context.Context, key string, r driver.Request) (a driver.Answer, err error) {
	sent, arrived := time.Now(), make(chan struct{})
	var late driver.Answer
	if !d.delay.Keeps(func() {
		late, _ = d.arrive(context.WithoutCancel(ctx), key, r, sent)
		close(arrived)
	}) {
		return d.arrive(ctx, key, r, sent)
	}
	select {
	case <-arrived:
		return late, nil
	case <-ctx.Done():
		return driver.Answer{}, ctx.Err()
	}
}

// arrive is a request at the server.
func (d *wrongDriver) arrive(ctx context.Context, key string, r driver.Request, sent time.Time) (driver.Answer, error) {
	if d.has("exclusion by a mutex of the process") {
		d.process.Lock()
		defer d.process.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests++
	if d.has("cost: two requests for each call") || d.has("cost: MarkStarted reads first") && r.Kind == driver.MarkStarted {
		d.requests++
	}
	s, err := d.read(key)
	if err != nil {
		switch {
		case d.has("F54 a refused entry is cleared"):
			delete(d.rows, d.place(key))
		case d.has("F53 error without the key"):
			return driver.Answer{}, lockstore.ErrCorrupt
		}
		return driver.Answer{}, fmt.Errorf("key %q: %w", key, err)
	}
	if d.has("M19 check then set") || d.has("exclusion by a mutex of the process") {
		d.mu.Unlock()
		<-time.After(time.Millisecond) // like a reply and the next request
		d.mu.Lock()
	}
	clock := rules.At(time.Now().Add(d.shift))
	switch {
	case d.has("exclusion by a mutex of the process"), d.has("the time is the client's"):
		clock = rules.At(time.Now().Add(d.shift + d.ahead))
	case d.has("a takeover by the asker's own clock") && r.Kind == driver.Acquire:
		clock.Early = clock.Early.Add(d.ahead)
	case d.has("the end of a lease by the clock of who has it") && (r.Kind == driver.Acquire || r.Kind == driver.Renew):
		clock.Late = clock.Late.Add(d.ahead)
	case d.has("a completion ends by the clock of who did the work") && r.Kind == driver.Complete:
		clock.Late = clock.Late.Add(d.ahead)
	case d.has("renewed by the clock of who has it") && r.Kind == driver.Renew:
		clock = rules.At(clock.Late.Add(d.ahead))
	case d.has("F15 clock that is off is refused") && d.shift != 0:
		return driver.Answer{}, lockstore.ErrUnavailable
	case d.has("takeover by another clock than the lease's") && r.Kind == driver.Acquire:
		clock.Early = time.Now()
	case d.has("complete: by another clock") && r.Kind == driver.Complete:
		clock = rules.At(time.Now())
	case d.has("a lease is renewed 20 times") && r.Kind == driver.Renew && d.counts[driver.Renew] > 20:
		return driver.Answer{Outcome: driver.Lost}, nil
	case d.has("a key is granted 20 times") && r.Kind == driver.Acquire && d.counts[driver.Release] > 20:
		return driver.Answer{Outcome: driver.Refused, Status: driver.Status{State: driver.Held, Remaining: time.Second}}, nil
	case d.has("an owner has 48 bytes"):
		r.Owner = r.Owner[:min(len(r.Owner), 48)]
	case d.has("an entry has 4 KiB") && r.Kind == driver.Acquire && len(s.Holders)*len(r.Holder) > 4<<10:
		return driver.Answer{}, lockstore.ErrUnavailable
	case d.has("holder is cut at 64 bytes"):
		r.Holder = r.Holder[:min(len(r.Holder), 64)]
	case d.has("F48 bounds are too narrow") && (r.TTL == lockstore.MaxTTL || len(r.Owner) == lockstore.MaxOwnerBytes):
		return driver.Answer{}, lockstore.ErrInvalid
	case d.has("F48 an owner is looked for in the text of an error") && r.Owner != "" && strings.Contains("NOSCRIPT No matching script", string(r.Owner)):
		return driver.Answer{}, errCut
	case d.has("owner is over on all keys") && r.Kind == driver.Renew && d.overAnywhere(r.Owner):
		return driver.Answer{Outcome: driver.Lost}, nil
	case d.has("release of deleted is unknown") && r.Kind == driver.Release && s.LastFence == 0:
		return driver.Answer{}, errCut
	}
	d.counts[r.Kind]++
	s = d.aged(key, s, r)
	if r.Kind == driver.MarkStarted && (d.has("started: by the time when it was sent") || d.has("started: a late mark stays")) {
		clock = rules.At(sent.Add(d.shift))
	}
	next, changed, a, _ := d.decide(d.book, s, clock, r)
	if d.has("started: a late mark stays") && r.Kind == driver.MarkStarted && len(s.Holders) > 0 && !time.Now().Before(s.Holders[0].End()) {
		a = driver.Answer{Outcome: driver.Lost}
	}
	if d.has("M13 fence from a local counter") && a.Outcome == driver.Granted && next.LastFence != s.LastFence {
		d.counter++
		next.LastFence, a.Fence, next.Holders[len(next.Holders)-1].Fence = d.counter, d.counter, d.counter
	}
	switch {
	case d.has("cost: refusal reads on the side") && a.Outcome == driver.Refused:
		d.requests++
	case d.has("cost: takeover watches first") && a.Outcome == driver.Granted && len(s.Holders) > 0:
		d.requests += 2
	}
	if d.has("inspect shows the raw holder") && r.Kind == driver.Inspect {
		a.Status.Holder = lockstore.HolderInfo{Name: a.Status.Holder}.Encode()
	}
	if changed {
		d.rows[d.place(key)] = row{State: next}
	}
	if d.has("parked: who leaves takes all addresses along") && r.Kind == driver.Leave || d.has("parked: a completion drops the addresses") && r.Kind == driver.Complete {
		maps.DeleteFunc(d.parked, func(at string, _ driver.HiddenBytes) bool { return strings.HasPrefix(at, key+"\n") })
	}
	for _, h := range next.Holders {
		if slices.Contains(a.HandedOver, h.Owner) {
			d.pushed[h.Owner] = h.Fence
		}
	}
	if d.has("refusal is an error") && a.Outcome == driver.Refused {
		return driver.Answer{}, lockstore.ErrRefused
	}
	return a, d.lost(ctx, r.Kind)
}

// older reports whether a thing has been there for longer than d. The first call says when it came.
func (d *wrongServer) older(than time.Duration, thing string) bool {
	if d.since[thing].IsZero() {
		d.since[thing] = time.Now()
	}
	return time.Since(d.since[thing]) > than
}

// aged is the state that a store finds that does something to what is old.
func (d *wrongServer) aged(key string, s rules.State, r driver.Request) rules.State {
	s.Holders, s.Queue = slices.Clone(s.Holders), slices.Clone(s.Queue)
	switch d.bug {
	case "queue: a place is lost after ten minutes":
		s.Queue = slices.DeleteFunc(s.Queue, func(w rules.Waiter) bool { return d.older(10*time.Minute, key+"\n"+string(w.Owner)) })
	case "queue: a reader waits for an hour at most":
		s.Queue = slices.DeleteFunc(s.Queue, func(w rules.Waiter) bool {
			return w.MaxHolders > 1 && d.older(time.Hour, key+"\n"+string(w.Owner))
		})
	case "a lease cannot be renewed for longer than a day":
		s.Holders = slices.DeleteFunc(s.Holders, func(h rules.Holder) bool {
			return d.older(24*time.Hour, key+"\n"+string(h.Owner)) && r.Kind == driver.Renew
		})
	case "started: forgotten after a month of renewals":
		for i, h := range s.Holders {
			s.Holders[i].Started = h.Started && !d.older(30*24*time.Hour, key+"\n"+string(h.Owner))
		}
	}
	return s
}

// lost is the error of a reply that does not come.
func (d *wrongServer) lost(ctx context.Context, kind driver.Kind) error {
	switch {
	case d.hang:
		d.mu.Unlock()
		<-ctx.Done()
		if d.has("F28 call outlives its context") {
			<-time.After(time.Second)
		}
		d.mu.Lock()
		if d.has("F28 a request is sent again after its call has ended") {
			time.AfterFunc(time.Second, func() { d.locked(func() { d.requests++ }) })
		}
		switch {
		case d.has("F28 call that was cut off is unavailable"):
			return fmt.Errorf("%w: %w", lockstore.ErrUnavailable, ctx.Err())
		case d.has("F28 call that was cut off is held"):
			return fmt.Errorf("%w: %w", lockstore.ErrRefused, ctx.Err())
		case d.has("F28 call that was cut off hides its context's error"):
			return errCut
		}
		return ctx.Err()
	case d.cut && (d.has("M16 unknown as held") || d.has("M16 unknown as held, by "+kind.String())):
		return lockstore.ErrRefused
	case d.cut && (d.has("M17 unknown as unavailable") || d.has("M17 unknown as unavailable, by "+kind.String())):
		return lockstore.ErrUnavailable
	case d.cut:
		return errCut
	}
	return nil
}

// overAnywhere reports whether the owner has ended on any key.
func (d *wrongServer) overAnywhere(o driver.Owner) bool {
	for _, row := range d.rows {
		if slices.ContainsFunc(row.Ended, func(e rules.Ended) bool { return e.Owner == o }) {
			return true
		}
	}
	return false
}

// awaited is the lease that the owner was handed over.
func (d *wrongServer) awaited(key string, r driver.Request) (a driver.Answer) {
	s, _ := d.read(key)
	now := time.Now().Add(d.shift)
	for _, h := range s.Holders {
		if h.Owner == r.Owner && h.HandedOver && (now.Before(h.End()) || d.has("await: a hand-over that has lapsed")) {
			a = driver.Answer{Outcome: driver.Granted, Fence: h.Fence, Seat: h.Seat, TTL: h.End().Sub(now)}
		}
	}
	switch {
	case d.has("await: trust counts from the wake-up"), d.has("await: a hand-over that has lapsed"):
		a.TTL = driver.TurnTime
	case d.has("await: the fence of before the hand-over") && len(s.Ended) > 0:
		a.Fence = s.Ended[len(s.Ended)-1].Fence
	case d.has("await: an element of an earlier hand-over") && d.pushed[r.Owner] > 0:
		a = driver.Answer{Outcome: driver.Granted, Fence: d.pushed[r.Owner], TTL: driver.TurnTime - r.Elapsed}
	}
	return a
}

// Await implements driver.Driver.
func (d *wrongDriver) Await(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	var a driver.Answer
	d.locked(func() { a = d.awaited(key, r) })
	if a.Outcome == driver.Granted && a.TTL > 0 {
		return a, nil
	}
	for first, began := true, time.Now(); ; first = false {
		var left time.Duration
		d.locked(func() {
			s, _ := d.read(key)
			left = d.book.Wait(s, rules.At(time.Now().Add(d.shift)), r.Owner)
			waits := slices.ContainsFunc(s.Queue, func(w rules.Waiter) bool { return w.Owner == r.Owner })
			started := slices.ContainsFunc(s.Holders, func(h rules.Holder) bool { return h.Started })
			if d.has("queue: AwaitTurn goes on without a place") && !waits || d.has("started: AwaitTurn goes on") && started {
				left = max(left, time.Second)
			}
		})
		if d.has("await: sleeps after ten minutes") && time.Since(began) > 10*time.Minute {
			left = time.Hour
		}
		if left <= 0 {
			return driver.Answer{Outcome: driver.Ask}, nil
		}
		if first && d.has("M30 a release before the wait is not seen") {
			<-ctx.Done()
		}
		switch {
		case d.has("queue: AwaitTurn sleeps through a release"):
		case time.Since(began) > time.Minute:
			left = min(left, time.Second)
		default:
			left = min(left, 10*time.Millisecond)
		}
		ended := ctx.Done()
		if d.has("queue: AwaitTurn outlives its context") {
			ended = nil
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ended:
			timer.Stop()
			return driver.Answer{}, ctx.Err()
		}
	}
}

// addressOf is where the address of an owner is.
func (d *wrongServer) addressOf(key string, owner driver.Owner) string {
	switch d.bug {
	case "parked: one address for a key":
		return key
	case "parked: keys and owners meet":
		return key + string(owner)
	}
	return key + "\n" + string(owner)
}

// PutAddress implements driver.Parker.
func (d *wrongDriver) PutAddress(ctx context.Context, key string, owner driver.Owner, address driver.HiddenBytes, _ time.Duration) error {
	at := d.addressOf(key, owner)
	var was driver.HiddenBytes
	d.locked(func() { was = d.parked[at] })
	put := func() {
		d.locked(func() {
			switch there := d.parked[at]; {
			case there != nil && d.has("parked: the first address stays"):
			case bytes.Equal(there, was), d.has("parked: a late address replaces a newer one"):
				d.parked[at] = address
				d.older(0, "address "+at)
			}
		})
	}
	if d.delay.Keeps(put) {
		<-ctx.Done()
		return ctx.Err()
	}
	put()
	return nil
}

// TakeAddress implements driver.Parker.
func (d *wrongDriver) TakeAddress(_ context.Context, key string, owner driver.Owner) (address driver.HiddenBytes, err error) {
	d.locked(func() {
		at := d.addressOf(key, owner)
		if d.has("parked: an address is kept for a day") && d.older(24*time.Hour, "address "+at) {
			delete(d.parked, at)
		}
		if address = d.parked[at]; !d.has("parked: an address is taken twice") {
			delete(d.parked, at)
		}
	})
	return address, nil
}

// List implements driver.Lister.
func (d *wrongDriver) List(_ context.Context, prefix string, page func(driver.Page) error) error {
	var p driver.Page
	var err error
	d.locked(func() {
		for key := range d.rows {
			state, damaged := d.read(key)
			if damaged != nil {
				if d.has("list: ends at a foreign entry") {
					err = lockstore.ErrCorrupt
				}
				p.Damaged++
				continue
			}
			listed := strings.HasPrefix(key, prefix)
			switch {
			case d.has("list: the prefix is a pattern"):
				listed, _ = path.Match(prefix+"*", key)
			case d.has("list: everything"):
				listed = true
			case d.has("list: not what is waited for"):
				listed = listed && len(state.Queue) == 0
			}
			if !listed {
				continue
			}
			_, _, a, _ := d.decide(d.book, state, rules.At(time.Now()), driver.Request{Kind: driver.Inspect})
			one := driver.Listed{Key: key, Status: a.Status}
			switch {
			case d.has("list: everything is free"),
				d.has("list: in doubt is free") && one.State == driver.InDoubt:
				one.State = driver.Free
			case d.has("list: completed is only held") && one.State.Done(),
				d.has("list: revoked is only held") && one.State == driver.Revoked,
				d.has("list: the dead are held") && len(state.Holders) > 0:
				one.State = driver.Held
			case d.has("list: the first holder alone"):
				one.Holders = one.Holders[:min(1, len(one.Holders))]
			case d.has("list: twice"):
				p.Keys = append(p.Keys, one)
			}
			p.Keys = append(p.Keys, one)
		}
	})
	if d.has("list: a hundred keys") {
		p.Keys = p.Keys[:min(len(p.Keys), 100)]
	}
	if d.has("parked: addresses are listed") {
		for at := range d.parked {
			p.Keys = append(p.Keys, driver.Listed{Key: at})
		}
	}
	if err != nil {
		return err
	}
	return page(p)
}

// Extent implements driver.Lister.
func (d *wrongDriver) Extent(context.Context) (driver.Extent, error) { return driver.Extent{}, nil }

// harness has every field that the suite uses.
func (d *wrongDriver) harness() Harness {
	get := func(key string) (r row, there bool) {
		d.locked(func() { r, there = d.rows[d.place(key)] })
		return r, there
	}
	put := func(key string, r row, there bool) {
		d.locked(func() {
			if d.rows[d.place(key)] = r; !there {
				delete(d.rows, d.place(key))
			}
		})
	}
	damage := map[string]func(*testing.T, string){"damaged": func(_ *testing.T, key string) {
		r, _ := get(key)
		r.damaged = true
		put(key, r, true)
	}}
	on := func(fault *bool) func(*testing.T) func() {
		return func(*testing.T) func() {
			d.locked(func() { *fault = true })
			return func() { d.locked(func() { *fault = false }) }
		}
	}
	return Harness{
		Store: d.store(),
		Parks: true,
		Marks: 16,
		DamageQueue: map[string]func(*testing.T, string){"damaged": func(_ *testing.T, key string) {
			r, there := get(key)
			r.noQueue = true
			put(key, r, there)
		}},
		Requests: func() (n int) {
			d.locked(func() { n = d.requests })
			return n
		},
		Delete: func(_ *testing.T, key string) { put(key, row{}, false) },
		Snapshot: func(_ *testing.T, key string) func() {
			r, there := get(key)
			return func() { put(key, r, there) }
		},
		Dump: func(_ *testing.T, key string) string {
			r, _ := get(key)
			return fmt.Sprintf("%+v %s", r, []byte(r.Closed.Result))
		},
		ShiftClock: func(_ *testing.T, shift time.Duration) { d.locked(func() { d.shift = shift }) },
		Foreign:    damage,
		Corrupt:    damage,
		Unreachable: func(*testing.T) *lockstore.Store {
			return NewFaulty(d.store(), func(Call) Fault {
				switch {
				case d.has("M36 server error as busy"):
					return Fault{Drop: lockstore.ErrRefused}
				case d.has("F21 refused connections are waited for"):
					return Fault{Before: time.Minute, Drop: lockstore.ErrUnavailable}
				}
				return Fault{Drop: lockstore.ErrUnavailable}
			}).Store
		},
		Other: func(*testing.T) *lockstore.Store {
			return (&wrongDriver{wrongServer: d.wrongServer, ahead: time.Hour}).store()
		},
		LoseReplies: on(&d.cut),
		Delay:       d.delay.Delay,
		Hang:        on(&d.hang),
	}
}
