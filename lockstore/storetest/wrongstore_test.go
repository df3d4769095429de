package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/pause"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/internal/wrongrules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// ownMistakes are mistakes of a store that are not in its rules: with how many times the usual sequences the comparison finds them.
var ownMistakes = map[string]int{
	"exclusion by a mutex of the process": 1, "the time is the client's": 1, "a takeover by the asker's own clock": 1,
	"the end of a lease by the clock of who has it": 1, "renewed by the clock of who has it": 1, "a completion ends by the clock of who did the work": 30,
	"M16 unknown as held, by mark started": 1, "M17 unknown as unavailable, by complete": 30, "refusal is an error": 1, "release of deleted is unknown": 1,
	"await: trust counts from the wake-up": 1, "await: the fence of before the hand-over": 1, "await: a hand-over that has lapsed": 1,
	"await: an element of an earlier hand-over": 30,
}

// wrongDriver is the rule book over entries that can be damaged. It has one mistake: one of the rules, from package wrongrules, or one of
// ownMistakes. Without a mistake it passes the suite. It is the driver of one process.
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
	cut      bool                          // replies are lost
	hang     bool                          // no reply comes
	pushed   map[driver.Owner]driver.Fence // to those who were handed the key
	parked   map[string]driver.HiddenBytes // addresses
	left     int                           // requests until inside is called, see Harness.Inside
	inside   func()
	twice    bool // the reply to the request before that one is lost
}

var errCut = errors.New("connection reset")

func newWrong(bug string) *wrongDriver {
	d := &wrongServer{
		bug: bug, book: rules.Book{Places: 40, Marks: 16}, decide: rules.Book.Decide, rows: map[string]row{}, pushed: map[driver.Owner]driver.Fence{}, parked: map[string]driver.HiddenBytes{},
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
	r := d.rows[key]
	if r.damaged {
		return r.State, fmt.Errorf("%w: no row", lockstore.ErrCorrupt)
	}
	if r.noQueue {
		r.Queue = nil
	}
	return r.State, nil
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
func (d *wrongDriver) do(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	return Send(ctx, &d.delay, func(ctx context.Context) (driver.Answer, error) { return d.arrive(ctx, key, r) })
}

// arrive is a request at the server.
func (d *wrongDriver) arrive(ctx context.Context, key string, r driver.Request) (driver.Answer, error) {
	if d.has("exclusion by a mutex of the process") {
		d.process.Lock()
		defer d.process.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests++
	s, err := d.read(key)
	if err != nil {
		return driver.Answer{}, fmt.Errorf("key %q: %w", key, err)
	}
	if d.has("exclusion by a mutex of the process") {
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
	case d.has("release of deleted is unknown") && r.Kind == driver.Release && s.LastFence == 0:
		return driver.Answer{}, errCut
	}
	next, changed, a, _ := d.decide(d.book, s, clock, r)
	if changed {
		d.rows[key] = row{State: next}
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

// lost is the error of a reply that does not come.
func (d *wrongServer) lost(ctx context.Context, kind driver.Kind) error {
	switch {
	case d.hang:
		d.mu.Unlock()
		<-ctx.Done()
		d.mu.Lock()
		return ctx.Err()
	case d.cut && d.has("M16 unknown as held, by "+kind.String()):
		return lockstore.ErrRefused
	case d.cut && d.has("M17 unknown as unavailable, by "+kind.String()):
		return lockstore.ErrUnavailable
	case d.cut:
		return errCut
	}
	return nil
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
	if a.Outcome == driver.Granted && a.TTL >= driver.LeastTrust {
		return a, nil
	}
	for began := time.Now(); ; {
		var left time.Duration
		d.locked(func() {
			s, _ := d.read(key)
			left = d.book.Wait(s, rules.At(time.Now().Add(d.shift)), r.Owner)
		})
		if left <= 0 {
			return driver.Answer{Outcome: driver.Ask}, nil
		}
		look := 10 * time.Millisecond
		if time.Since(began) > time.Minute {
			look = time.Second
		}
		if err := pause.For(ctx, min(left, look)); err != nil {
			return driver.Answer{}, err
		}
	}
}

// PutAddress implements driver.Parker. One that is late replaces only what was there when it was sent.
func (d *wrongDriver) PutAddress(ctx context.Context, key string, owner driver.Owner, address driver.HiddenBytes, _ time.Duration) error {
	at := key + "\n" + string(owner)
	var was driver.HiddenBytes
	d.locked(func() { was = d.parked[at] })
	_, err := Send(ctx, &d.delay, func(context.Context) (struct{}, error) {
		d.locked(func() {
			if bytes.Equal(d.parked[at], was) {
				d.parked[at] = address
			}
		})
		return struct{}{}, nil
	})
	return err
}

// TakeAddress implements driver.Parker.
func (d *wrongDriver) TakeAddress(_ context.Context, key string, owner driver.Owner) (address driver.HiddenBytes, err error) {
	d.locked(func() {
		at := key + "\n" + string(owner)
		address = d.parked[at]
		delete(d.parked, at)
	})
	return address, nil
}

// List implements driver.Lister.
func (d *wrongDriver) List(_ context.Context, prefix string, page func(driver.Page) error) error {
	var p driver.Page
	d.locked(func() {
		for key := range d.rows {
			state, err := d.read(key)
			switch {
			case err != nil:
				p.Damaged++
			case strings.HasPrefix(key, prefix):
				_, _, a, _ := d.decide(d.book, state, rules.At(time.Now()), driver.Request{Kind: driver.Inspect})
				p.Keys = append(p.Keys, driver.Listed{Key: key, Status: a.Status})
			}
		}
	})
	if d.has("list: a key twice in place of another one") && len(p.Keys) > 100 {
		p.Keys[0] = p.Keys[1]
	}
	return page(p)
}

// Extent implements driver.Lister.
func (d *wrongDriver) Extent(context.Context) (driver.Extent, error) { return driver.Extent{}, nil }

// harness has every field that the suite uses.
func (d *wrongDriver) harness() Harness {
	get := func(key string) (r row, there bool) {
		d.locked(func() { r, there = d.rows[key] })
		return r, there
	}
	put := func(key string, r row, there bool) {
		d.locked(func() {
			if d.rows[key] = r; !there {
				delete(d.rows, key)
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
			return NewFaulty(d.store(), func(Call) Fault { return Fault{Drop: lockstore.ErrUnavailable} }).Store
		},
		Other: func(*testing.T) *lockstore.Store {
			return (&wrongDriver{wrongServer: d.wrongServer, ahead: time.Hour}).store()
		},
		LoseReplies: on(&d.cut),
		Delay:       d.delay.Delay,
		Hang:        on(&d.hang),
	}
}
