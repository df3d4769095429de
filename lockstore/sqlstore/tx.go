package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// StillHeld returns nil if the lease holds its key, alone or with others, by the server's clock. Only the Key and the Fence
// of the lease count, which a guard.Lock has, too. From then on nobody else is
// granted the key, and the lease is neither renewed nor ended, until the transaction ends; on DSQL its commit fails in
// that case. So what the transaction writes is committed only if no other owner has been granted the key. Call it last, just
// before Commit: other requests for the key wait for the end of the transaction, and so does the renewal of this lease.
//
// The error matches lockstore.ErrLost if the lease has ended. Roll the transaction back after every error. Do not call it behind a
// savepoint: to roll back to that would give the row free.
func (t Table) StillHeld(ctx context.Context, tx *sql.Tx, lease lockstore.Lease) error {
	if err := lockstore.ValidateResolveNoEffect(lease.Key, lease.Fence); err != nil {
		return err
	}
	return t.within(ctx, tx, lease, driver.Request{Kind: driver.Inspect})
}

// Complete is lockstore.Store.Complete in a transaction: the effect of the work and its result are committed together, or none
// of them. Call it last, just before Commit, as StillHeld. Of the lease only the Key and the Fence count. In a second
// transaction the error matches lockstore.ErrLost, so that the effect is not committed twice; lockstore.Store.Complete of the same lease
// returns nil afterwards.
//
// The errors are those of lockstore.Store.Complete. Roll the transaction back after every error. Nobody wakes the
// parked owners of the key.
func (t Table) Complete(ctx context.Context, tx *sql.Tx, lease lockstore.Lease, result []byte, d time.Duration) error {
	if err := lockstore.ValidateResolveEffect(lease.Key, lease.Fence, result, d); err != nil {
		return err
	}
	return t.within(ctx, tx, lease, driver.Request{Kind: driver.Complete, Fence: lease.Fence, Result: result, TTL: d})
}

// within locks the row in a transaction of the caller's. Then it looks for the lease, or completes it.
func (t Table) within(ctx context.Context, tx *sql.Tx, lease lockstore.Lease, r driver.Request) error {
	k, err := t.open()
	if err != nil {
		return err
	}
	if tx == nil {
		return lockstore.Invalidf("sqlstore: the *sql.Tx is nil")
	}
	k.tx = tx
	s, err := k.store(k)
	if err != nil {
		return err
	}
	a, err := s.Driver().Do(ctx, lease.Key, driver.Request{Kind: driver.Inspect})
	has := slices.ContainsFunc(a.Status.Holders, func(h driver.LiveLease) bool { return h.Fence == lease.Fence && h.State != driver.Revoked })
	if err == nil && r.Kind == driver.Complete {
		r.Owner = owner(k.seen, lease.Fence)
		a, err = s.Driver().Do(ctx, lease.Key, r)
		has = a.Outcome == driver.Done
	}
	switch {
	case err != nil && !errors.Is(err, errNoRow):
		return err
	case a.Outcome == driver.Exclusive:
		return lockstore.Invalidf("sqlstore: key %q: Complete needs a lease with MaxHolders 1", lease.Key)
	case !has:
		return fmt.Errorf("sqlstore: key %q: the lease with the fence %d does not hold it: %w", lease.Key, lease.Fence, lockstore.ErrLost)
	}
	return nil
}

// owner is that of a lease in a value that package casstore has read: it is a secret, which the caller may not know.
func owner(value []byte, fence lockstore.Fence) driver.Owner {
	var entry struct {
		Holders []struct {
			Owner driver.Owner
			Fence lockstore.Fence
		}
	}
	_, text, _ := strings.Cut(string(value), " {")
	_ = json.Unmarshal([]byte("{"+text), &entry) // it is JSON
	for _, h := range entry.Holders {
		if h.Fence == fence {
			return h.Owner
		}
	}
	return "nobody"
}
