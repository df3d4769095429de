// Package accounts is the sample resource of the functions: balances of
// accounts, in whole cents, in DynamoDB.
//
// A withdrawal reads the balance, calls a payment provider, and writes the new
// balance back. Two at once on one account would lose one of the two updates,
// so each runs under the lock of [Key]. A process can stall past its lease and
// wake up in the middle, so the read and the write carry the lock's fencing
// token, and the account refuses a token that is smaller than one it has seen.
// From the read on an earlier holder can no longer change what was read.
//
// # Repeats
//
// A withdrawal has an id of its caller's choice. The account remembers its last
// 50 withdrawals, in the same write as the balance, and answers a repeated id
// with the first outcome. The same id with another amount is refused. Only
// withdrawals that were made are remembered: a refused one changed nothing, and
// the same id may succeed later. A repeat that comes more than 50 withdrawals
// later is a new withdrawal.
package accounts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Why a withdrawal was not made, found with errors.Is. After each of them but
// ErrStaleFence the balance is as it was. After ErrStaleFence and any other error the
// outcome is unknown, because an answer to this holder's write may have been lost:
// asking again with the same id tells.
var (
	ErrNotFound     = errors.New("the account does not exist")
	ErrInsufficient = errors.New("the account's balance is too low")
	ErrReused       = errors.New("the withdrawal's id was used before, with another amount")
	ErrStaleFence   = errors.New("a later holder of the lock has been at the account")
	ErrWrongLock    = errors.New("the lock is not the account's")
	ErrCorrupt      = errors.New("the account's entry cannot be read")
)

// Withdrawal asks for an amount in whole cents. Its ID is new for every
// withdrawal and the same for its repeats.
type Withdrawal struct {
	Account string
	ID      string
	Amount  int64
}

// Receipt is a withdrawal that was made, and the balance right after it.
type Receipt struct {
	Withdrawal
	Balance int64
}

// Ledger is a set of accounts. It is safe for concurrent use.
type Ledger struct {
	// Pay is the slow step between read and write. It must be safe to repeat for
	// the same id, because a crash after it makes the caller repeat the whole.
	Pay func(context.Context, Withdrawal) error

	store Store
}

// remembered is how many withdrawals an account remembers.
const remembered = 50

// Store is where the accounts are. Both methods return the errors above.
type Store interface {
	// Claim reads the account and, in the same request, makes it refuse smaller
	// fences from now on.
	Claim(ctx context.Context, account string, fence lockstore.Fence) (Record, error)
	// Write replaces the account's content unless it has seen a larger fence, or its balance is another one than Claim
	// has read: a late copy of this holder's earlier write changes nothing. If the account has r's last entry, it was written.
	Write(ctx context.Context, account string, fence lockstore.Fence, before int64, r Record) error
}

// Record is an account's content.
type Record struct {
	Balance int64
	Recent  []Entry // oldest first
}

// Entry is one remembered withdrawal.
type Entry struct {
	ID      string `json:"id"`
	Amount  int64  `json:"amount"`
	Balance int64  `json:"balance"` // right after it
}

// New returns the accounts of a store.
func New(s Store) *Ledger { return &Ledger{Pay: pay, store: s} }

// pay stands for the call to a payment provider.
func pay(ctx context.Context, _ Withdrawal) error {
	select {
	case <-time.After(20 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Key is the key whose lock guards an account.
func Key(account string) string { return lockstore.Key("account", account) }

// Withdraw makes a withdrawal under the account's lock.
func (l *Ledger) Withdraw(ctx context.Context, lock guard.Lock, w Withdrawal) (Receipt, error) {
	if lock.Key != Key(w.Account) || lock.Fence < 1 {
		return Receipt{}, fmt.Errorf("account %q under lock %q with fence %d: %w", w.Account, lock.Key, lock.Fence, ErrWrongLock)
	}
	r, err := l.store.Claim(ctx, w.Account, lock.Fence)
	if err != nil {
		return Receipt{}, fmt.Errorf("account %q: %w", w.Account, err)
	}
	if i := slices.IndexFunc(r.Recent, func(e Entry) bool { return e.ID == w.ID }); i >= 0 {
		if r.Recent[i].Amount != w.Amount {
			return Receipt{}, fmt.Errorf("account %q, withdrawal %q: %w", w.Account, w.ID, ErrReused)
		}
		return Receipt{w, r.Recent[i].Balance}, nil
	}
	if r.Balance < w.Amount {
		return Receipt{}, fmt.Errorf("account %q: %w", w.Account, ErrInsufficient)
	}
	if err := l.Pay(ctx, w); err != nil {
		return Receipt{}, fmt.Errorf("account %q, payment %q: %w", w.Account, w.ID, err)
	}
	before := r.Balance
	r.Balance -= w.Amount
	r.Recent = append(r.Recent, Entry{w.ID, w.Amount, r.Balance})
	r.Recent = r.Recent[max(0, len(r.Recent)-remembered):]
	if err := l.store.Write(ctx, w.Account, lock.Fence, before, r); err != nil {
		return Receipt{}, fmt.Errorf("account %q: %w", w.Account, err)
	}
	return Receipt{w, r.Balance}, nil
}
