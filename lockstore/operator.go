package lockstore

import (
	"context"
	"fmt"
)

// What follows is for operators and their tools. A guard does not use it.

// Revoker is implemented by a store that can end the lease of a holder that goes on
// renewing it. The lease of a dead holder needs no Revoke: without one it ends as early.
type Revoker interface {
	// Revoke ends the lease that has this key and this fence. From then on its owner can do
	// nothing more: Renew, MarkStarted, Complete and a late Acquire are ErrLost, and a Release returns nil.
	// What req.By says takes the place of the holder until the next grant.
	//
	// The end of the lease does not change. The key stays held until then, so that the old
	// holder, which trusts its lease for no longer, and the next one are never at work at
	// the same time. The queue stays as it is.
	//
	// A lease whose work has begun (see [Completer]) stays begun. So the key is not free at its
	// end: it is in doubt then, until a [Resolver] settles it.
	//
	// With req.OpenAtOnce the key is free at once, and two may be at work until the old holder
	// trusts its lease no longer. Only a resource that compares fences refuses the old
	// holder's writes, and only after a write of the next holder. For a lease whose work has
	// begun, req.OpenAtOnce is refused with a *BegunError.
	//
	// Revoke returns the state of the key after it. With req.OpenAtOnce, Remaining is for how long
	// the old holder may be at work. If the lease is broken already, nothing changes unless
	// req.OpenAtOnce asks for it, and Holder is who broke it first. So the same Revoke again, after
	// a lost reply, is no error.
	//
	// If no live lease of the key has this fence, the error is ErrLost, and nobody's lease
	// changes. A key that is kept or in doubt has no live lease, so the error is ErrLost there,
	// too. Revoke calls RevokeRequest.Validate first.
	Revoke(ctx context.Context, req RevokeRequest) (Status, error)
}

// RevokeRequest names a lease to break.
type RevokeRequest struct {
	Key        string
	Fence      Fence      // of the lease; Inspect knows it
	By         HolderInfo // who breaks it, and whose it was; for people
	OpenAtOnce bool       // open the key at once
}

// Validate checks the key and the fence. Its error matches ErrInvalid.
func (r RevokeRequest) Validate() error {
	if err := ValidateKey(r.Key); err != nil {
		return err
	}
	if r.Fence < 1 {
		return Invalidf("lockstore: Fence is %d; want that of a grant", r.Fence)
	}
	return nil
}

// BegunError says that Now is no way to end this lease: its work has begun, and may have
// had its effect. The key is not free before a [Resolver] settles it, after the end of the
// lease.
type BegunError struct{ HeldError }

func (e *BegunError) Error() string {
	return fmt.Sprintf("lock %q cannot be freed now: its work has begun (%v). When the lease has ended, after at most %v more, somebody has to settle the key", e.Key, e.Holder, e.Remaining)
}

// Unwrap returns the *HeldError, which matches ErrHeld.
func (e *BegunError) Unwrap() error { return &e.HeldError }

// Lister is implemented by a store that can list its keys. A listing reads the whole
// table or server, and may need more permissions than locking does.
type Lister interface {
	// List calls page for one page after the other, until page returns an error, which
	// List returns, or until the end. It lists the keys that begin with prefix; "" lists
	// all.
	//
	// A key that is held from the beginning of List to its end is listed, as held, and
	// once; so is one that is kept or in doubt. Every other key may be missing, or listed
	// with a state that is over. No key is listed twice. The order of keys says nothing.
	List(ctx context.Context, prefix string, page func(Page) error) error

	// Extent says how much a listing reads, whatever the prefix is.
	Extent(ctx context.Context) (Extent, error)
}

// Page is a part of a listing.
type Page struct {
	Keys     []Status
	Read     int // entries that the store has handed out, also those that are not listed; Redis hands out matching names only
	Requests int // that were sent
	Damaged  int // entries that are damaged, or that another program has written
	// DamagedNames are the names of the damaged entries, as the server has them, for people. It
	// has no name for an entry that has none.
	DamagedNames []string
}

// Extent is how much a listing reads. It may be hours old. 0 is not known.
type Extent struct {
	Entries, Bytes int64
	ReadUnits      int64 // of DynamoDB, which are paid for
}
