package casstore

import (
	"context"
	"errors"
	"time"
)

// Entry is what is kept for a key.
type Entry struct {
	Value []byte

	// Version names this write of the key. No two writes of a key ever have the
	// same one, also when the key was deleted between them. "" is no entry.
	Version string

	// WrittenAt is when the service wrote this version, by the service's own clock, cut
	// down to a whole Step: a time between the call of Write and its commit. Zero for no entry.
	WrittenAt time.Time
}

// ErrConflict is what Write returns when the entry is not at the version that it
// wants. The write was not applied, unless it was sent twice and the first copy was.
var ErrConflict = errors.New("the entry is at another version")

// MaxValue bounds a value in bytes. A key's entry is that large while it keeps an answer of
// lockstore.MaxResultBytes bytes, which are written as base64. Otherwise it has at most
// 36 KB, and 5 KB if owners are from lockstore.NewOwner.
const MaxValue = 350 << 10

// KV keeps one entry for each key and replaces it by compare-and-swap. It is
// all that a database has to do for a lock. It is safe for concurrent use.
//
// Its errors: ErrConflict; lockstore.ErrUnavailable when the service has certainly
// not applied the write; lockstore.ErrCorrupt when what is there is no entry of this
// register, or the service is set up so that it cannot keep one. Every other error of
// Write means that the write may have been applied. A method returns within 50 ms of
// the end of its context.
type KV interface {
	// Read returns the entry of a key. A fresh read sees every Write that ended
	// before it began, and returns the service's own time at some moment of the
	// request, cut down to a whole Step. A read that is not fresh may return an older
	// entry and no time.
	Read(ctx context.Context, key string, fresh bool) (e Entry, now time.Time, err error)

	// Write replaces the entry if it is at ifVersion; "" creates it. It returns the
	// new entry; its Value need not be set. The value is text in UTF-8 without control
	// characters, of at most MaxValue bytes, and never the one that the
	// entry has: some services do nothing then, and keep the version.
	Write(ctx context.Context, key string, value []byte, ifVersion string) (Entry, error)

	// ClockResolution is the resolution of Written and now.
	ClockResolution() time.Duration
}

// Waker is implemented by registers that can wake a waiter up. A store over another
// register reads the entry again and again while it waits.
type Waker interface {
	// Listen begins to listen for wake-ups of an owner. woken is closed at the first Wake
	// after Listen has returned, or earlier. The store calls stop once.
	Listen(ctx context.Context, key, owner string) (woken <-chan struct{}, stop func(), err error)

	// Wake wakes the owner if it listens, in this process or in another one.
	Wake(ctx context.Context, key, owner string) error
}
