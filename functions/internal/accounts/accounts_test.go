package accounts

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
)

func TestAccounts(t *testing.T) {
	const table = "accounts"
	u, err := lockstore.ParseURL(testservers.Table(t, testservers.DynamoDB(t), table, "account"))
	require.NoError(t, err)
	opened, err := Open(u, func(string) string { return "local" })
	require.NoError(t, err)
	store := opened.store.(*shelf)
	put := func(t *testing.T, account string, item map[string]types.AttributeValue) {
		item["account"] = &types.AttributeValueMemberS{Value: account}
		_, err := store.client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String(table), Item: item})
		require.NoError(t, err)
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			ledger := New(store)
			ledger.Pay = func(context.Context, Withdrawal) error { return nil }
			account := fmt.Sprint("case-", i)
			put(t, account, map[string]types.AttributeValue{"balance": number(1000)})
			c.run(t, ctx, ledger, account)
		})
	}
	text := &types.AttributeValueMemberS{Value: "{"}
	for what, item := range map[string]map[string]types.AttributeValue{ // an entry that is not ours is refused
		"a balance that is no number": {"balance": text}, "a balance with cents": {"balance": &types.AttributeValueMemberN{Value: "12.5"}},
		"a fence": {"balance": number(12), "lock_fence": text}, "recent": {"balance": number(12), "recent": text}, "recent's type": {"balance": number(12), "recent": number(1)},
	} {
		t.Run("F54 "+what, func(t *testing.T) {
			account := fmt.Sprint("corrupt-", time.Now().UnixNano())
			put(t, account, item)
			ledger := New(store)
			ledger.Pay = func(context.Context, Withdrawal) error { t.Error("paid on a corrupt account"); return nil }
			_, err := ledger.Withdraw(t.Context(), lock(account, fence), Withdrawal{account, "w", 1})
			require.ErrorIs(t, err, ErrCorrupt)
			require.ErrorContains(t, err, account)
		})
	}
}

// fence is a fence as the stores give them: microseconds since 1970.
const fence lockstore.Fence = 1_795_235_467_123_456

func lock(account string, f lockstore.Fence) guard.Lock {
	return guard.Lock{Key: Key(account), Fence: f}
}

func read(t *testing.T, ctx context.Context, ledger *Ledger, account string) Record {
	t.Helper()
	s := ledger.store.(*shelf)
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &s.table, Key: key(account), ConsistentRead: aws.Bool(true)})
	require.NoError(t, err)
	r, err := decode(out.Item)
	require.NoError(t, err)
	return r
}

func balance(t *testing.T, ctx context.Context, ledger *Ledger, account string) int64 {
	t.Helper()
	return read(t, ctx, ledger, account).Balance
}

var cases = []struct {
	name string
	run  func(t *testing.T, ctx context.Context, ledger *Ledger, account string)
}{
	{"down to zero and no further, and a refused withdrawal is not remembered", func(t *testing.T, ctx context.Context, ledger *Ledger, account string) {
		_, err := ledger.Withdraw(ctx, lock(account, fence), Withdrawal{account, "w", 1001})
		require.ErrorIs(t, err, ErrInsufficient)
		w := Withdrawal{account, "w", 1000}
		r, err := ledger.Withdraw(ctx, lock(account, fence), w)
		require.NoError(t, err)
		assert.Equal(t, Receipt{w, 0}, r)
		_, err = ledger.Withdraw(ctx, lock(account, fence+1), Withdrawal{account, "one more", 1})
		require.ErrorIs(t, err, ErrInsufficient)
		assert.Zero(t, balance(t, ctx, ledger, account))
	}},
	{"F03 a repeat after a crash before the release sees the first outcome", func(t *testing.T, ctx context.Context, ledger *Ledger, account string) {
		paid := 0
		ledger.Pay = func(context.Context, Withdrawal) error { paid++; return nil }
		w := Withdrawal{account, "w", 100}
		first, err := ledger.Withdraw(ctx, lock(account, fence), w)
		require.NoError(t, err)
		_, err = ledger.Withdraw(ctx, lock(account, fence+1), Withdrawal{account, "other", 1})
		require.NoError(t, err)
		again, err := ledger.Withdraw(ctx, lock(account, fence+2), w)
		require.NoError(t, err)
		assert.Equal(t, first, again)
		_, err = ledger.Withdraw(ctx, lock(account, fence+2), Withdrawal{account, "w", 101})
		require.ErrorIs(t, err, ErrReused, "it has another amount")
		assert.Equal(t, 2, paid)
		assert.EqualValues(t, 899, balance(t, ctx, ledger, account))
	}},
	{"the last 50 withdrawals are remembered", func(t *testing.T, ctx context.Context, ledger *Ledger, account string) {
		for i := range remembered + 1 {
			_, err := ledger.Withdraw(ctx, lock(account, fence), Withdrawal{account, fmt.Sprint("w-", i), 1})
			require.NoError(t, err)
		}
		_, err := ledger.Withdraw(ctx, lock(account, fence), Withdrawal{account, "w-1", 1})
		require.NoError(t, err)
		require.EqualValues(t, 949, balance(t, ctx, ledger, account), "w-1 is the oldest that is remembered")
		_, err = ledger.Withdraw(ctx, lock(account, fence), Withdrawal{account, "w-0", 1})
		require.NoError(t, err)
		require.EqualValues(t, 948, balance(t, ctx, ledger, account), "w-0 was forgotten and is a new one")
		require.Len(t, read(t, ctx, ledger, account).Recent, remembered)
	}},
	{"F12 a pause between read and write: the fence refuses", func(t *testing.T, ctx context.Context, ledger *Ledger, account string) {
		slow := *ledger
		slow.Pay = func(ctx context.Context, _ Withdrawal) error { // the lease ends here, and another takes over
			_, err := ledger.Withdraw(ctx, lock(account, fence+1), Withdrawal{account, "second", 10})
			return err
		}
		_, err := slow.Withdraw(ctx, lock(account, fence), Withdrawal{account, "first", 100})
		require.ErrorIs(t, err, ErrStaleFence)
		assert.EqualValues(t, 990, balance(t, ctx, ledger, account), "only the later holder's withdrawal is there")
	}},
	{"F12 a later holder's read is enough to refuse", func(t *testing.T, ctx context.Context, ledger *Ledger, account string) {
		var stale error
		later := *ledger
		later.Pay = func(ctx context.Context, _ Withdrawal) error { // it has read; now the earlier one wakes up
			r := Record{Balance: 900}
			stale = ledger.store.Write(ctx, account, fence, 1000, r)
			return nil
		}
		_, err := ledger.store.Claim(ctx, account, fence)
		require.NoError(t, err)
		_, err = later.Withdraw(ctx, lock(account, fence+1), Withdrawal{account, "w", 10})
		require.NoError(t, err)
		require.ErrorIs(t, stale, ErrStaleFence)
		_, err = ledger.store.Claim(ctx, account, fence)
		require.ErrorIs(t, err, ErrStaleFence, "a smaller fence may not even read")
		assert.EqualValues(t, 990, balance(t, ctx, ledger, account))
	}},
	{"F12 a late copy of this run's own earlier write changes nothing", func(t *testing.T, ctx context.Context, ledger *Ledger, account string) {
		_, err := ledger.Withdraw(ctx, lock(account, fence), Withdrawal{account, "a", 100})
		require.NoError(t, err)
		_, err = ledger.Withdraw(ctx, lock(account, fence), Withdrawal{account, "b", 10}) // another message of the batch
		require.NoError(t, err)
		now := read(t, ctx, ledger, account)
		require.NoError(t, ledger.store.Write(ctx, account, fence, 1000, Record{900, []Entry{{"a", 100, 900}}}), "it was written")
		require.Equal(t, now, read(t, ctx, ledger, account))

		// The first copy comes when the next message has read: this message is not written, and its repeat is.
		pay := ledger.Pay
		ledger.Pay = func(ctx context.Context, w Withdrawal) error {
			return ledger.store.Write(ctx, account, fence, now.Balance, Record{880, append(now.Recent, Entry{"c", 10, 880})})
		}
		d := Withdrawal{account, "d", 80}
		_, err = ledger.Withdraw(ctx, lock(account, fence), d)
		require.ErrorContains(t, err, "since it was read")
		require.EqualValues(t, 880, balance(t, ctx, ledger, account))
		ledger.Pay = pay
		r, err := ledger.Withdraw(ctx, lock(account, fence+1), d)
		require.NoError(t, err)
		require.EqualValues(t, 800, r.Balance)
	}},
	{"the payment fails", func(t *testing.T, ctx context.Context, ledger *Ledger, account string) {
		declined := errors.New("declined")
		ledger.Pay = func(context.Context, Withdrawal) error { return declined }
		_, err := ledger.Withdraw(ctx, lock(account, fence), Withdrawal{account, "w", 10})
		require.ErrorIs(t, err, declined)
		assert.EqualValues(t, 1000, balance(t, ctx, ledger, account))
	}},
	{"another account's lock, and none", func(t *testing.T, ctx context.Context, ledger *Ledger, account string) {
		for _, l := range []guard.Lock{lock("other", fence), lock(account, 0), {}} {
			_, err := ledger.Withdraw(ctx, l, Withdrawal{account, "w", 10})
			require.ErrorIs(t, err, ErrWrongLock)
		}
	}},
	{"an account that does not exist", func(t *testing.T, ctx context.Context, ledger *Ledger, account string) {
		for range 2 { // the refused withdrawal made no account
			_, err := ledger.Withdraw(ctx, lock("absent", fence), Withdrawal{"absent", "w", 10})
			require.ErrorIs(t, err, ErrNotFound)
		}
	}},
}

func TestPause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	require.ErrorIs(t, pay(ctx, Withdrawal{}), gone)
}

func TestOpen(t *testing.T) {
	for bad, want := range map[string]string{"etcd://host": `the scheme "etcd"; want dynamodb`, "dynamodb://accounts": "region"} {
		u, err := lockstore.ParseURL(bad)
		require.NoError(t, err)
		_, err = Open(u, func(name string) string {
			return map[string]string{"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}[name]
		})
		assert.ErrorContains(t, err, want, bad)
	}
}
