package lockstore

import (
	"context"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
)

// What follows is for operators and their tools. A guard does not use it.

// RevokeRequest names a lease to revoke.
type RevokeRequest struct {
	Key        string
	Fence      Fence      // of the lease; Inspect knows it
	By         HolderInfo // who revokes it, and whose it was; for people
	OpenAtOnce bool       // the key is free at once
}

// Revoke ends the lease that has this key and this fence. It is for a holder that goes on
// renewing: the lease of a dead holder ends as early without it. From then on its owner can do
// nothing more: Renew, MarkStarted, Complete and a late Acquire are [ErrLost].
// What req.By says takes the place of the holder until the next grant.
//
// The end of the lease does not change. The state is Revoked until then, so that the old
// holder, which trusts its lease for no longer, and the next one are never at work at
// the same time. The queue stays as it is. So do the leases of others who hold the key.
//
// A Release of the revoked lease is ErrLost. It opens the key if the work had not started, because its
// owner's work has ended.
//
// A lease whose work has started stays started. So the key is not free at its
// end: it is in doubt then, until somebody resolves it.
//
// With req.OpenAtOnce the key is free or handed over at once, and two may be at work until the old holder
// trusts its lease no longer. Only a resource that compares fences refuses the old
// holder's writes, and only after a write of the next holder. For a lease whose work has
// started, req.OpenAtOnce is refused with a *[Refused].
//
// Revoke returns the state of the key after it; Holders are those who hold the key then. Holder and
// Remaining are of this lease: who revoked it, and for how long the old holder may be at work. If the
// lease is revoked already, nothing changes unless req.OpenAtOnce asks for it, and Holder is who revoked
// it first. So the same Revoke again, after a lost reply, is no error. After OpenAtOnce the
// repeat knows nothing of this lease: Holder and Remaining are then the key's.
//
// If no live lease of the key has this fence, the error is [ErrLost], and nobody's lease
// changes. A key whose state is Completed, Cooldown or InDoubt has no live lease.
func (s *Store) Revoke(ctx context.Context, req RevokeRequest) (Status, error) {
	a, err := s.do(ctx, req.Key, driver.Request{Kind: driver.Revoke, Fence: req.Fence, Holder: req.By.Encode(), AtOnce: req.OpenAtOnce})
	if err != nil {
		return Status{}, err
	}
	status := statusOf(req.Key, a.Status)
	status.Holder, status.Remaining = DecodeHolderInfo(a.Status.Holder), a.Status.Remaining
	return status, nil
}

// ResolveEffect says that the work of a key in doubt had its effect: it stores the result for
// the time d, as Complete does. The lease is over, as after a Release: its owner, who comes
// too late with its own result, gets [ErrLost] from Complete. fence is that of the lease under
// which the work started, as Inspect shows it.
//
// ResolveEffect returns nil also when a result is stored under this fence already. It returns
// a *[Refused] while a lease of the key lasts. Otherwise it returns ErrLost when the key is not
// in doubt with this fence.
func (s *Store) ResolveEffect(ctx context.Context, key string, fence Fence, result []byte, d time.Duration) error {
	_, err := s.do(ctx, key, driver.Request{Kind: driver.Resolve, Fence: fence, Effect: true, Result: result, TTL: d})
	return err
}

// ResolveNoEffect says that the work of a key in doubt had no effect: it frees the key, as a
// Release would have done, and the work may run again. It returns nil also when the key has
// become free under this fence, and otherwise the errors of ResolveEffect.
func (s *Store) ResolveNoEffect(ctx context.Context, key string, fence Fence) error {
	_, err := s.do(ctx, key, driver.Request{Kind: driver.Resolve, Fence: fence})
	return err
}

// Page is a part of a listing.
type Page struct {
	Keys         []Status
	Damaged      int      // entries that are damaged, or that another program has written
	DamagedNames []string // as the server has them, for people; an entry without a name has none here
	Requests     int      // that the page took
	ReadUnits    float64  // of DynamoDB that they took; 0 elsewhere, and if the server does not say
}

// Extent is how much a listing reads. It may be hours old. 0 is not known.
type Extent = driver.Extent

// List calls page for one page after the other, until page returns an error, which
// List returns, or until the end. It lists the keys that begin with prefix; "" lists
// all. A listing reads the whole table or server, and may need more permissions than locking
// does. If the store cannot list, the error matches errors.ErrUnsupported.
//
// A key that is held from the beginning of List to its end is listed, as held, and
// once; so is one that is completed, in a cooldown or in doubt. Every other key may be missing,
// or listed with a state that is over. No key is listed twice. The order of keys says nothing.
func (s *Store) List(ctx context.Context, prefix string, page func(Page) error) error {
	lister, err := optional[driver.Lister](ctx, s, "list its keys")
	if err != nil {
		return err
	}
	return lister.List(ctx, prefix, func(p driver.Page) error {
		keys := make([]Status, len(p.Keys))
		for i, k := range p.Keys {
			keys[i] = statusOf(k.Key, k.Status)
		}
		return page(Page{Keys: keys, Damaged: p.Damaged, DamagedNames: p.DamagedNames, Requests: max(1, p.Requests), ReadUnits: p.ReadUnits})
	})
}

// Extent says how much a listing reads, whatever the prefix is. If the store cannot list, the
// error matches errors.ErrUnsupported.
func (s *Store) Extent(ctx context.Context) (Extent, error) {
	lister, err := optional[driver.Lister](ctx, s, "list its keys")
	if err != nil {
		return Extent{}, err
	}
	return lister.Extent(ctx)
}

// Finding is one thing that Check would change.
type Finding = driver.Finding

// Check checks the set-up of the store's own server or table. It is for deploy time and for
// operators. It may need more permissions than locking does. If the store cannot check, the
// error matches errors.ErrUnsupported.
func (s *Store) Check(ctx context.Context) ([]Finding, error) {
	checker, err := optional[driver.Checker](ctx, s, "check its server")
	if err != nil {
		return nil, err
	}
	return checker.Check(ctx)
}
