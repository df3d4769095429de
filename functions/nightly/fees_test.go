package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/lockstore"
)

// bench is a world with the accounts a, b and c, which have 1000 cents each.
type bench struct {
	functest.World
	paid []accounts.Withdrawal
}

func newBench(t *testing.T) *bench {
	b := &bench{World: functest.NewWorld(t)}
	b.Ledger.Pay = func(_ context.Context, w accounts.Withdrawal) error {
		b.paid = append(b.paid, w)
		return nil
	}
	for _, account := range []string{"a", "b", "c"} {
		b.Put(account, 1000)
	}
	return b
}

func feeEventOf(t *testing.T, text string) feeEvent {
	t.Helper()
	var e feeEvent
	require.NoError(t, json.Unmarshal([]byte(text), &e))
	return e
}

const abc = `{"time": "2026-11-21T22:00:00Z", "detail": {"accounts": ["a", "b", "c"], "fee": 10}}`

func TestBookedOnceADay(t *testing.T) {
	b := newBench(t)
	for _, at := range []string{"2026-11-21T22:00:00Z", "2026-11-21T22:03:00Z", "2026-11-22T01:30:00+02:00"} {
		require.NoError(t, chargeFees(t.Context(), b.Guard, b.Ledger, feeEventOf(t, strings.Replace(abc, "2026-11-21T22:00:00Z", at, 1))))
	}
	require.Len(t, b.paid, 3, "one date, one fee for each account")
	require.Equal(t, accounts.Withdrawal{Account: "a", ID: "fee-2026-11-21", Amount: 10}, b.paid[0])
	require.NoError(t, chargeFees(t.Context(), b.Guard, b.Ledger, feeEventOf(t, strings.NewReplacer("-21T", "-22T", `"fee": 10`, `"fee": 10.0`).Replace(abc))))
	assert.EqualValues(t, 980, b.Balance(t, "c"))
}

func TestAnAccountThatFailsKeepsNoOther(t *testing.T) {
	b := newBench(t)
	lease, err := b.Store.Acquire(t.Context(), lockstore.Request{Key: accounts.Key("a"), Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
	err = chargeFees(t.Context(), b.Guard, b.Ledger, feeEventOf(t, strings.Replace(abc, `"b"`, `"absent", "b"`, 1)))
	var failed *NotCharged
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, lockstore.ErrRefused)
	require.ErrorIs(t, err, accounts.ErrNotFound)
	require.ErrorContains(t, err, "the fee of 2026-11-21 is not charged on 2 of 4 accounts")
	assert.EqualValues(t, 1000, b.Balance(t, "a"))
	assert.EqualValues(t, 990, b.Balance(t, "c"))

	require.NoError(t, b.Store.Release(t.Context(), lease))
	require.NoError(t, chargeFees(t.Context(), b.Guard, b.Ledger, feeEventOf(t, abc)), "a repeat charges what is missing")
	assert.EqualValues(t, 990, b.Balance(t, "a"))
	assert.EqualValues(t, 990, b.Balance(t, "b"))
}

func TestOverInTheMiddle(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	pay := b.Ledger.Pay
	b.Ledger.Pay = func(ctx context.Context, w accounts.Withdrawal) error {
		if w.Account == "b" {
			cancel(over)
			return context.Cause(ctx)
		}
		return pay(ctx, w)
	}
	err := chargeFees(ctx, b.Guard, b.Ledger, feeEventOf(t, abc))
	require.ErrorIs(t, err, over)
	require.ErrorContains(t, err, "not charged on 2 of 3 accounts")
	require.ErrorContains(t, err, `account "c": not begun`)
	assert.EqualValues(t, 990, b.Balance(t, "a"))
	assert.EqualValues(t, 1000, b.Balance(t, "c"))
}

func TestBadInput(t *testing.T) {
	b := newBench(t)
	for text, want := range map[string]string{
		`{}`:                               "time: is missing",
		`{"time": "2026-11-21T22:00:00Z"}`: "detail.accounts: has 0 accounts; want 1 to 100",
		strings.Replace(abc, `"a"`, strings.Repeat(`"a",`, 98)+`"a"`, 1):  "detail.accounts: has 101 accounts",
		strings.Replace(abc, `"c"`, `"a/b"`, 1):                           "detail.accounts[2], detail.fee: account: want 1 to 64",
		`{"time": "2026-11-21T22:00:00Z", "detail": {"accounts": ["a"]}}`: `amount: is "0"`,
	} {
		t.Run("F52 "+want, func(t *testing.T) {
			err := chargeFees(t.Context(), b.Guard, b.Ledger, feeEventOf(t, text))
			var bad *BadInput
			require.ErrorAs(t, err, &bad, text)
			assert.ErrorContains(t, err, want, text)
		})
	}
	assert.Empty(t, b.paid, "nothing is charged before all of the event is good")
}
