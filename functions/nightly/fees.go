// The schedule's work: it charges the day's fee to accounts, when a schedule says so:
//
//	{"time": "2026-11-21T22:00:00Z", "detail": {"accounts": ["7", "9"], "fee": 150}}
//
// time is when the schedule was due, of which the date in UTC counts; fee is in
// whole cents. Other fields, as an EventBridge event has them, are not read.
//
// The event's lock keeps two runs from doing the same work side by side. What
// keeps the accounts right is another thing: each account is written under its own
// lock, whose fence it checks, and the date is the withdrawal's id, so that a run
// that comes again charges only what is missing. That holds as long as an account
// remembers the fee: until 50 other withdrawals, see package accounts. Lambda's own retries come within
// minutes. A person who sends an event again after that charges twice.

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/lib/strictjson"
	"github.com/lambdalock/lambdalock/lockstore"
)

// feeEvent is what the schedule sends.
type feeEvent struct {
	Time   time.Time `json:"time"`
	Detail struct {
		Accounts []string       `json:"accounts"`
		Fee      strictjson.Int `json:"fee"`
	} `json:"detail"`
}

const maxAccounts = 100

// BadInput: the event cannot be worked on, now or later. Nothing was charged.
type BadInput struct{ Err error }

func (e *BadInput) Error() string { return e.Err.Error() }

func (e *BadInput) Unwrap() error { return e.Err }

// NotCharged: the fee is not known to be charged on some of the accounts, and is
// charged on the others. Running the event again charges what is missing, as long as each
// account remembers its fee, see package accounts.
type NotCharged struct {
	Date string
	Of   int     // how many accounts there were
	Errs []error // of each account without the fee
}

func (e *NotCharged) Error() string {
	return fmt.Sprintf("the fee of %s is not charged on %d of %d accounts: %v", e.Date, len(e.Errs), e.Of, errors.Join(e.Errs...))
}

func (e *NotCharged) Unwrap() []error { return e.Errs }

// chargeFees charges the fee to each account, under its lock. An account that fails does
// not keep the fee from the others.
func chargeFees(ctx context.Context, g *guard.Guard, ledger *accounts.Ledger, e feeEvent) error {
	withdrawals, err := e.withdrawals()
	if err != nil {
		return &BadInput{err}
	}
	failed := &NotCharged{Date: e.date(), Of: len(withdrawals)}
	for _, w := range withdrawals {
		if err := charge(ctx, g, ledger, w); err != nil {
			failed.Errs = append(failed.Errs, err)
		}
	}
	if failed.Errs != nil {
		return failed
	}
	return nil
}

func charge(ctx context.Context, g *guard.Guard, ledger *accounts.Ledger, w accounts.Withdrawal) error {
	if ctx.Err() != nil {
		return fmt.Errorf("account %q: not begun: %w", w.Account, context.Cause(ctx))
	}
	return g.Do(ctx, accounts.Key(w.Account), func(ctx context.Context, lock guard.Lock) error {
		_, err := ledger.Withdraw(ctx, lock, w)
		return err
	})
}

// key names the work of a good event. Two events have the same key only if they ask for the same.
func (e feeEvent) key() (string, error) {
	if _, err := e.withdrawals(); err != nil {
		return "", &BadInput{err}
	}
	work := []string{"schedule", "nightly", e.date(), strconv.FormatInt(int64(e.Detail.Fee), 10)}
	return lockstore.KeyOrHash(append(work, e.Detail.Accounts...)...), nil
}

func (e feeEvent) date() string { return e.Time.UTC().Format(time.DateOnly) }

// withdrawals is the fee of each account. Nothing is charged before all of the
// event is known to be good.
func (e feeEvent) withdrawals() ([]accounts.Withdrawal, error) {
	switch n := len(e.Detail.Accounts); {
	case e.Time.IsZero():
		return nil, errors.New("time: is missing")
	case n < 1 || n > maxAccounts:
		return nil, fmt.Errorf("detail.accounts: has %d accounts; want 1 to %d", n, maxAccounts)
	}
	var all []accounts.Withdrawal
	for i, account := range e.Detail.Accounts {
		w := accounts.Withdrawal{Account: account, ID: "fee-" + e.date(), Amount: int64(e.Detail.Fee)}
		if err := w.Validate(); err != nil {
			return nil, fmt.Errorf("detail.accounts[%d], detail.fee: %w", i, err)
		}
		all = append(all, w)
	}
	return all, nil
}
