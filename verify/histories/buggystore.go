package histories

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// buggyStore is a store in memory with one planted bug, or none. The checkers have to
// find each.
type buggyStore struct {
	bug string

	mu      sync.Mutex
	entries map[string]*buggyEntry
}

type buggyEntry struct {
	lockstore.Lease
	expires time.Time
	ended   map[lockstore.Owner]bool
	keeps   map[lockstore.Owner]bool // the owners that have kept an answer
	begun   bool
	kept    []byte // the answer, until expires, if there is no owner
}

// buggyClient is the store as one process sees it.
type buggyClient struct {
	*buggyStore
	fence lockstore.Fence // of M13
	calls int
}

var errServer = errors.New("the server failed")

func (b *buggyClient) entry(key string) *buggyEntry {
	e := b.entries[key]
	if e == nil {
		e = &buggyEntry{ended: map[lockstore.Owner]bool{}, keeps: map[lockstore.Owner]bool{}}
		b.entries[key] = e
	}
	return e
}

func (b *buggyClient) Acquire(_ context.Context, req lockstore.Request) (lockstore.Lease, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(req.Key)
	b.calls++
	if b.calls%8 == 0 {
		if b.bug == "M36 a failure reads as busy" {
			return lockstore.Lease{}, lockstore.ErrHeld
		}
		return lockstore.Lease{}, errServer
	}
	now := time.Now()
	held := now.Before(e.expires)
	if b.bug == "M19 looks, then sets" {
		b.mu.Unlock()
		time.Sleep(time.Millisecond)
		b.mu.Lock()
	}
	if e.Owner == "" && held && !e.ended[req.Owner] {
		return lockstore.Lease{}, &lockstore.KeptError{HeldError: lockstore.HeldError{Key: req.Key}, Result: e.kept}
	}
	if e.begun && !held && e.Owner != req.Owner && !e.ended[req.Owner] && b.bug != "an expired begun lease is granted" {
		return lockstore.Lease{}, &lockstore.DoubtError{HeldError: lockstore.HeldError{Key: req.Key}}
	}
	switch {
	case e.ended[req.Owner] && b.bug != "M18 a late acquire locks":
		return lockstore.Lease{}, lockstore.ErrLost
	case e.Owner == req.Owner && held && b.bug == "M15 its own retry reads as busy":
		return lockstore.Lease{}, lockstore.ErrHeld
	case e.Owner == req.Owner && held:
		return lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: e.Fence, TTL: e.expires.Sub(now)}, nil
	case e.Owner == req.Owner && b.bug != "M18 a late acquire locks":
		return lockstore.Lease{}, lockstore.ErrLost
	case held && b.bug != "M01 takes live leases":
		return lockstore.Lease{}, lockstore.ErrHeld
	}
	fence := lockstore.NextFence(e.Fence, now)
	if b.bug == "M13 a fence from a local counter" {
		b.fence++
		fence = b.fence
	}
	e.Lease = lockstore.Lease{Key: req.Key, Owner: req.Owner, Fence: fence, TTL: req.TTL}
	e.expires, e.begun = now.Add(req.TTL), false
	return e.Lease, nil
}

func (b *buggyClient) Renew(_ context.Context, l lockstore.Lease, ttl time.Duration) (time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, now := b.entry(l.Key), time.Now()
	mine := e.Owner == l.Owner && e.Fence == l.Fence
	switch {
	case mine && now.Before(e.expires):
	case mine && b.bug == "M08 renews what has expired":
	case b.bug == "M07 renewing makes a lost lease again":
		e.Lease = l
	default:
		return 0, lockstore.ErrLost
	}
	if end := now.Add(ttl); end.After(e.expires) {
		e.expires = end
	}
	return e.expires.Sub(now), nil
}

func (b *buggyClient) Release(_ context.Context, l lockstore.Lease) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, now := b.entry(l.Key), time.Now()
	live := now.Before(e.expires)
	switch {
	case e.Owner == l.Owner && (l.Fence == 0 || l.Fence == e.Fence) && (live || e.begun):
	case e.Owner == l.Owner && live && b.bug == "M05 releases by any fence":
	case b.bug == "M04 ignores owners at release":
	case l.Fence == 0, e.ended[l.Owner]:
		e.ended[l.Owner] = true
		return nil
	default:
		return lockstore.ErrLost
	}
	e.ended[e.Owner], e.ended[l.Owner] = true, true
	e.free()
	return nil
}

func (e *buggyEntry) free() { e.Owner, e.expires, e.begun = "", time.Time{}, false }

func (e *buggyEntry) has(l lockstore.Lease) bool { return e.Owner == l.Owner && e.Fence == l.Fence }

func (b *buggyClient) MarkStarted(_ context.Context, l lockstore.Lease) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(l.Key)
	if !e.has(l) || !time.Now().Before(e.expires) {
		return lockstore.ErrLost
	}
	e.begun = true
	return nil
}

func (b *buggyClient) Complete(_ context.Context, l lockstore.Lease, data []byte, d time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(l.Key)
	switch {
	case e.has(l):
	case e.keeps[l.Owner]:
		return nil
	case e.Fence == l.Fence && e.Owner != "" && b.bug == "Keep does not compare owners":
	default:
		return lockstore.ErrLost
	}
	b.keep(e, data, d)
	return nil
}

func (b *buggyClient) keep(e *buggyEntry, data []byte, d time.Duration) {
	e.ended[e.Owner], e.keeps[e.Owner] = true, true
	e.free()
	if b.bug == "a kept key opens too early" {
		d /= 2
	}
	e.kept, e.expires = data, time.Now().Add(d)
}

func (b *buggyClient) ResolveEffect(_ context.Context, key string, fence lockstore.Fence, data []byte, d time.Duration) error {
	return b.settle(key, fence, true, func(e *buggyEntry) { b.keep(e, data, d) })
}

func (b *buggyClient) ResolveNoEffect(_ context.Context, key string, fence lockstore.Fence) error {
	return b.settle(key, fence, false, func(e *buggyEntry) {
		e.ended[e.Owner] = true
		e.free()
	})
}

func (b *buggyClient) settle(key string, fence lockstore.Fence, keeps bool, change func(*buggyEntry)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(key)
	held := time.Now().Before(e.expires)
	switch {
	case e.Fence == fence && e.Owner == "" && held == keeps: // settled already
	case e.Fence == fence && e.begun && !held:
		change(e)
	case e.Owner != "" && held:
		return lockstore.ErrHeld
	default:
		return lockstore.ErrLost
	}
	return nil
}

func (b *buggyClient) Inspect(_ context.Context, key string) (lockstore.Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(key)
	return lockstore.Status{Key: key, Fence: e.Fence, InDoubt: e.begun && !time.Now().Before(e.expires)}, nil
}
