package driver

import (
	"context"
	"time"
)

// Lister is implemented by a driver that can list its keys. Its methods are those of lockstore.Store.
type Lister interface {
	List(ctx context.Context, prefix string, page func(Page) error) error
	Extent(ctx context.Context) (Extent, error)
}

// Page is a lockstore.Page. If Requests is 0, it took one.
type Page struct {
	Keys         []Listed
	Damaged      int
	DamagedNames []string
	Requests     int
	ReadUnits    float64
}

// Listed is a key of a listing.
type Listed struct {
	Key string
	Status
}

// Extent is a lockstore.Extent.
type Extent struct {
	Entries, Bytes int64
}

// Checker is implemented by a driver that can check the set-up of its own server or table.
type Checker interface {
	Check(ctx context.Context) ([]Finding, error)
}

// Finding is one thing that Check would change.
type Finding struct {
	Problem string // what is set, and what it does to locks
	Fix     string // what to set instead
}

// Parker is implemented by a driver whose queue has parked places, see Request.Parked. It keeps each
// address of their owners in an entry of its own, beside that of the key.
type Parker interface {
	// PutAddress keeps the address of an owner for the time d, in place of an earlier one. A copy of the request that arrives
	// when another address is there changes nothing. An error is like an error of Do.
	PutAddress(ctx context.Context, key string, owner Owner, address HiddenBytes, d time.Duration) error

	// TakeAddress returns the address and deletes it; nil if there is none.
	TakeAddress(ctx context.Context, key string, owner Owner) (HiddenBytes, error)
}

// As finds an optional interface, [Lister], [Checker], [Parker] or io.Closer, on d or on a driver that
// d wraps. A wrapper has a method Unwrap() Driver. A driver may have a method Optional() []any: what has the interface in its place.
func As[T any](d Driver) (T, bool) {
	for d != nil {
		all := []any{d}
		if o, ok := d.(interface{ Optional() []any }); ok {
			all = append(all, o.Optional()...)
		}
		for _, one := range all {
			if t, ok := one.(T); ok {
				return t, true
			}
		}
		w, ok := d.(interface{ Unwrap() Driver })
		if !ok {
			break
		}
		d = w.Unwrap()
	}
	var none T
	return none, false
}
