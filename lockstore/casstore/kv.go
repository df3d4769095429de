package casstore

import (
	"context"
	"errors"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Entry is what a KV has for a key.
type Entry struct {
	Value []byte

	// Version names this write of the key. No two writes of a key have the same Version,
	// even if the key was deleted between them. "" is no entry.
	Version string

	// WrittenAt is when the service wrote this version, by the service's own clock: a time between
	// the call of Write and its commit, cut down to the clock's resolution. Zero for no entry.
	WrittenAt time.Time
}

// ErrConflict is what Write returns when the entry is not at the version that it
// wants. This copy of the write was not applied; if the client sent it twice, the first one may have been.
var ErrConflict = errors.New("the entry is at another version")

// MaxValue bounds a value in bytes. An entry is this large only with the largest result: 256 KiB
// (lockstore.MaxResultBytes), written as base64. Without a result it usually has at most 7 KB with one holder,
// and 17 KB with 32 holders; with long owners and texts that JSON escapes, 36 KB and 85 KB.
const MaxValue = 350 << 10

// KV has one entry for each key and replaces it by compare-and-swap. It is all that a
// database has to do for a lock. It is safe for concurrent use. A KV may also implement
// [Waker], [Lister], a method Check(context.Context) ([]lockstore.Finding, error) for the store's Check, and io.Closer for its Close.
//
// Its errors: ErrConflict; lockstore.ErrUnavailable when the service has certainly
// not applied the write; lockstore.ErrCorrupt when what is there is no entry of this
// KV, or the service is set up so that it cannot keep one. Every other error of
// Write means that the write may have been applied. A method returns within 50 ms of
// the end of its context.
type KV interface {
	// Read returns the entry of a key. A fresh read sees every Write that ended
	// before it began, and returns the service's own time at some moment of the
	// request, cut down to its resolution. A read that is not fresh may return an older
	// entry and no time.
	Read(ctx context.Context, key string, fresh bool) (e Entry, now time.Time, err error)

	// Write replaces the entry if it is at ifVersion; "" creates it. It returns the
	// new entry; its Value need not be set. The value is text in UTF-8 without control
	// characters, of at most MaxValue bytes. It is never equal to the present value, because some services
	// do nothing then, and keep the version.
	Write(ctx context.Context, key string, value []byte, ifVersion string) (Entry, error)

	// ClockResolution is the resolution of WrittenAt and now: both are whole multiples of it. It is
	// more than 0 and at most 1 s.
	ClockResolution() time.Duration
}

// Waker is implemented by a KV that can wake a waiter up. If the KV is no Waker, the store reads
// the entry much more often while a run waits. Wake-ups may get lost. A Listen that takes
// long delays the first read by at most 250 ms.
type Waker interface {
	// Listen begins to listen for wake-ups of an owner. woken gets the note of the first wake-up after
	// since, or is closed: the owner then reads. It may be closed without a wake-up, too. If all is true, no wake-up since then
	// is missing, so that the owner need not read first. The store calls stop once.
	Listen(ctx context.Context, key, owner string, since time.Time) (woken <-chan string, all bool, stop func(), err error)

	// WriteAndWake is Write. If it has written, it wakes the owners that listen, in this process or in
	// another one; notes are by owner. A note has up to 100 letters, digits and spaces, and is no secret. A KV need not pass it on. What
	// WriteAndWake returns is only about the write. If the wake-ups are requests of
	// their own, they come after the write, on a goroutine of their own: a release must not wait for them.
	WriteAndWake(ctx context.Context, key string, value []byte, ifVersion string, notes map[string]string) (Entry, error)
}

// Lister is implemented by a KV that can list its entries. The store can then list its keys. The suite lists about 150: test it
// with pages of at most 100 entries.
type Lister interface {
	// List calls page for one page after the other, until page returns an error, which
	// List returns, or until the end. An entry whose key begins with prefix and that is there
	// from the beginning of List to its end is in one page, and in no other. The pages show every
	// Write that ended before List began.
	List(ctx context.Context, prefix string, page func(Page) error) error

	// Extent says how much a listing reads, whatever the prefix is.
	Extent(ctx context.Context) (lockstore.Extent, error)
}

// Page is a part of a listing. The store counts an entry whose value is not that of a lock as damaged, too.
type Page struct {
	Entries      []Listed
	Now          time.Time // the service's own time at a moment after the call of List, and before it read these entries
	Damaged      int       // entries that no KV of this kind has written; they are not in Entries
	DamagedNames []string  // as the service has them, for people
	Requests     int       // that the page took, for people; 0 is 1
}

// Listed is an entry of a listing.
type Listed struct {
	Key  string
	Name string // of the entry, as the service has it
	Entry
}
