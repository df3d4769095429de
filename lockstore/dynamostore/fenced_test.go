package dynamostore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// transact sends items in one transaction.
func transact(ctx context.Context, client *dynamodb.Client, items ...types.TransactWriteItem) error {
	_, err := client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: items})
	return err
}

// addsOne adds 1 to a number in the caller's own item.
func addsOne(table string, key item, name string) types.TransactWriteItem {
	return types.TransactWriteItem{Update: &types.Update{
		TableName: &table, Key: key, UpdateExpression: aws.String("ADD " + name + " :one"), ExpressionAttributeValues: item{":one": n("1")},
	}}
}

// deposit is a write to the caller's own item, with the fence.
func deposit(ctx context.Context, client *dynamodb.Client, account string, amount string, fence lockstore.Fence) error {
	in := &dynamodb.UpdateItemInput{
		TableName:                 aws.String(dataTable),
		Key:                       item{"key": s(account)},
		UpdateExpression:          aws.String("ADD balance :amount SET latest = :one"),
		ConditionExpression:       aws.String("attribute_not_exists(closed) OR closed = :zero"),
		ExpressionAttributeValues: item{":amount": n(amount), ":zero": n("0"), ":one": n("1")},
	}
	if err := dynamostore.Fenced(in, fence); err != nil {
		return err
	}
	_, err := client.UpdateItem(ctx, in)
	return err
}

const dataTable = "accounts"

// testFenced runs on DynamoDB Local, see TestOnDynamoDBLocal.
func testFenced(t *testing.T, client *dynamodb.Client) {
	ctx, store := t.Context(), appStore(t, client)
	data := rows{ctx, client, dataTable, tableKey}
	lock := func() lockstore.Lease {
		return acquired(t, store, lockstore.Request{Key: "fenced/7", Owner: lockstore.NewOwner(), TTL: time.Minute})
	}
	old := lock()
	require.NoError(t, deposit(ctx, client, "7", "10", old.Fence))
	require.NoError(t, deposit(ctx, client, "7", "5", old.Fence), "a holder may write many times")
	require.Equal(t, int64(15), number(t, data.get(t, "7"), "balance"))
	require.Equal(t, int64(old.Fence), number(t, data.get(t, "7"), "lock_fence"))

	require.NoError(t, store.Release(ctx, old))
	lease := lock()
	require.NoError(t, deposit(ctx, client, "7", "1", lease.Fence))

	t.Run("F12 F07 a stale fence is refused", func(t *testing.T) {
		err := deposit(ctx, client, "7", "1000", old.Fence)
		require.True(t, dynamostore.IsStale(err, old.Fence), "%v", err)
		require.False(t, dynamostore.IsStale(err, lease.Fence))
		require.Equal(t, int64(16), number(t, data.get(t, "7"), "balance"))
	})
	t.Run("what is accepted without a fence is accepted with it", func(t *testing.T) {
		for _, condition := range []string{
			"n = :one OR x = :one", "(n = :one)", " (n = :one OR x = :one)\n", "(n = :one) OR (x = :one)", "((n = :one) AND (x = :one))", "((n = :one) AND x = :one) OR x = :one", "NOT n <> :one",
		} {
			for _, update := range []string{"SET #l = :one, x = :one", "SET#l = :one, x = :one", "REMOVE #l[1]SET x = :one", "SET\n#l = :one REMOVE y", "REMOVE #l ADD x :one"} {
				for _, fenced := range []bool{false, true} {
					data.put(t, "accepted", item{"n": n("1"), "x": n("1"), "l": listOf(n("1"), n("2"))})
					in := &dynamodb.UpdateItemInput{
						TableName: aws.String(dataTable), Key: item{"key": s("accepted")}, UpdateExpression: &update, ConditionExpression: &condition,
						ExpressionAttributeNames: map[string]string{"#l": "l"}, ExpressionAttributeValues: item{":one": n("1")},
					}
					if fenced {
						require.NoError(t, dynamostore.Fenced(in, 7))
					}
					_, err := client.UpdateItem(ctx, in)
					require.NoError(t, err, "fenced %v: %s, if %s", fenced, *in.UpdateExpression, *in.ConditionExpression)
				}
				require.Equal(t, int64(7), number(t, data.get(t, "accepted"), "lock_fence"))
			}
		}
	})
}

func TestFencedExpressions(t *testing.T) {
	const set = "lock_fence = :lock_fence"
	const guard = "(attribute_not_exists(lock_fence) OR lock_fence <= :lock_fence)"
	for expression, want := range map[string]string{
		"":                              "SET " + set,
		"SET a = :a":                    "SET " + set + ", a = :a",
		"set a = :a":                    "set " + set + ", a = :a",
		"REMOVE b SET a = :a":           "REMOVE b SET " + set + ", a = :a",
		"REMOVE b\nSET\ta = :a":         "REMOVE b\nSET " + set + ",\ta = :a",
		"SET#a = :a":                    "SET " + set + ",#a = :a",
		"REMOVE b[0]SET a = :a":         "REMOVE b[0]SET " + set + ", a = :a",
		"REMOVE b":                      "SET " + set + " REMOVE b",
		"REMOVE #set ADD n :set":        "SET " + set + " REMOVE #set ADD n :set",
		"ADD offset :n":                 "SET " + set + " ADD offset :n",
		"ADD setting :n SET reset = :x": "ADD setting :n SET " + set + ", reset = :x",
		"SET lock_fence = :lock_fences": "SET " + set + ", lock_fence = :lock_fences",
		"REMOVE a SET":                  "SET " + set + " REMOVE a SET", // DynamoDB refuses it
	} {
		in := &dynamodb.UpdateItemInput{UpdateExpression: aws.String(expression)}
		for fence := range 3 { // the second and third time change the fence only
			require.NoError(t, dynamostore.Fenced(in, lockstore.Fence(7+fence)))
			require.Equal(t, want, *in.UpdateExpression)
			require.Equal(t, guard, *in.ConditionExpression)
			require.Equal(t, item{":lock_fence": n(strconv.Itoa(7 + fence))}, in.ExpressionAttributeValues)
		}
	}
	for condition, want := range map[string]string{
		"a = :a OR b = :b":                  "(a = :a OR b = :b) AND " + guard,
		"(a = :a) OR (b = :b)":              "((a = :a) OR (b = :b)) AND " + guard,
		"c = :c OR (a = :a) AND " + guard:   "(c = :c OR (a = :a) AND " + guard + ") AND " + guard,
		"(a = :a) OR (b = :b) AND " + guard: "((a = :a) OR (b = :b) AND " + guard + ") AND " + guard,
		"a = :a OR " + guard:                "(a = :a OR " + guard + ") AND " + guard,
		"(a = :a AND (b = :b))":             "(a = :a AND (b = :b)) AND " + guard,
		" (a = :a)\n":                       "(a = :a) AND " + guard,
		" a = :a AND (b = :b)":              "(a = :a AND (b = :b)) AND " + guard,
	} {
		in := &dynamodb.UpdateItemInput{ConditionExpression: aws.String(condition)}
		for range 3 {
			require.NoError(t, dynamostore.Fenced(in, 7))
			require.Equal(t, want, *in.ConditionExpression)
		}
	}
	in := &dynamodb.UpdateItemInput{ExpressionAttributeValues: item{":a": n("1")}}
	first := in.ExpressionAttributeValues
	require.NoError(t, dynamostore.Fenced(in, 7))
	require.Equal(t, "SET lock_fence = :lock_fence", *in.UpdateExpression)
	second := in.ExpressionAttributeValues
	require.NoError(t, dynamostore.Fenced(in, 8))
	require.Equal(t, item{":a": n("1")}, first, "the caller's own map is not changed")
	require.Equal(t, item{":a": n("1"), ":lock_fence": n("7")}, second)

	require.ErrorIs(t, dynamostore.Fenced(nil, 7), lockstore.ErrInvalid)
	require.ErrorIs(t, dynamostore.Fenced(in, 0), lockstore.ErrInvalid)
	require.ErrorIs(t, dynamostore.Fenced(in, -1), lockstore.ErrInvalid)
}

// IsStale needs the refused row. The method knows a lock row by the row's attributes; the
// function knows the caller's own items only.
func TestIsStale(t *testing.T) {
	const fence = 7
	store := newStore(t, fakedynamo.New(table), 0, dynamostore.Options{})
	lock := func(change func(item)) item {
		row := item{"key": s("k"), "owner": s("me"), "fence": n("7"), "expires": n("9"), "ttl": n("9")}
		change(row)
		return row
	}
	refusal := func(row item) error { return &types.ConditionalCheckFailedException{Item: row} }
	cancelled := func(code string, row item) error {
		return &types.TransactionCanceledException{CancellationReasons: []types.CancellationReason{{}, {Code: &code, Item: row}}}
	}
	const failed = "ConditionalCheckFailed"
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"no error":                      {},
		"another error":                 {err: lockstore.ErrLost},
		"no row":                        {err: refusal(nil)},
		"a larger fence in a text":      {err: refusal(item{"lock_fence": s("8")})},
		"a fence that is not whole":     {err: refusal(item{"lock_fence": n("8.5")})},
		"an update's refusal by a lock": {err: refusal(lock(func(row item) { row["fence"] = n("8") }))},
		"a transaction without reasons": {err: &types.TransactionCanceledException{}},
		"a transaction, no row":         {err: cancelled(failed, nil)},
		"a transaction, a larger fence": {err: cancelled(failed, item{"lock_fence": n("8")}), want: true},
		"a transaction, the same fence": {err: cancelled(failed, item{"lock_fence": n("7")})},
		"a transaction, another reason": {err: cancelled("TransactionConflict", item{"lock_fence": n("8")})},
		"a lock with a larger fence":    {err: cancelled(failed, lock(func(row item) { row["fence"] = n("8") })), want: true},
		"a lock with a smaller fence":   {err: cancelled(failed, lock(func(row item) { row["fence"] = n("6") })), want: true},
		"a damaged lock":                {err: cancelled(failed, lock(func(row item) { row["fence"] = s("8") }))},
		"an item with a fence, no key":  {err: cancelled(failed, lock(func(row item) { row["fence"] = n("8"); delete(row, "key") }))},
		"an item with a fence, no ttl":  {err: cancelled(failed, lock(func(row item) { row["fence"] = n("8"); delete(row, "ttl") }))},
		"an item whose key is a number": {err: cancelled(failed, lock(func(row item) { row["fence"] = n("8"); row["key"] = n("1") }))},
		"an item whose ttl is a text":   {err: cancelled(failed, lock(func(row item) { row["fence"] = n("8"); row["ttl"] = s("1") }))},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, store.IsStale(tc.err, fence))
			require.Equal(t, tc.want && !strings.HasPrefix(name, "a lock "), dynamostore.IsStale(tc.err, fence))
		})
	}
}

// testTransactions runs on DynamoDB Local, see TestOnDynamoDBLocal.
func testTransactions(t *testing.T, client *dynamodb.Client) {
	ctx, store, result := t.Context(), appStore(t, client), []byte("201\n\x00")
	data := rows{ctx, client, dataTable, tableKey}
	lock := func(name string) lockstore.Lease {
		return acquired(t, store, lockstore.Request{Key: "effect/" + name, Owner: lockstore.NewOwner(), TTL: time.Minute})
	}
	charge := func(name string, in types.TransactWriteItem) error {
		return transact(ctx, client, addsOne(dataTable, item{"key": s(name)}, "charges"), in)
	}
	completes := func(lease lockstore.Lease, data []byte, d time.Duration) types.TransactWriteItem {
		return store.CompleteItem(lease.Key, lease.Fence, data, d)
	}
	revoke := func(lease lockstore.Lease, openAtOnce bool) error {
		_, err := store.Revoke(ctx, lockstore.RevokeRequest{Key: lease.Key, Fence: lease.Fence, OpenAtOnce: openAtOnce})
		return err
	}
	completed := func(t *testing.T, key string, result []byte) {
		t.Helper()
		refused := refusal(t, store, lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.Equal(t, string(result), string(refused.Result))
		require.InDelta(t, time.Hour.Seconds(), refused.StateEndsIn.Seconds(), 10)
	}

	for name, end := range map[string]func(lockstore.Lease) error{
		"released": func(l lockstore.Lease) error { return store.Release(ctx, l) },
		"granted to another": func(l lockstore.Lease) error {
			defer lock("granted to another")
			return store.Release(ctx, l)
		},
		"completed":           func(l lockstore.Lease) error { return store.Complete(ctx, l, nil, time.Minute) },
		"revoked":             func(l lockstore.Lease) error { return revoke(l, false) },
		"opened":              func(l lockstore.Lease) error { return revoke(l, true) },
		"started and revoked": func(l lockstore.Lease) error { return errors.Join(store.MarkStarted(ctx, l), revoke(l, false)) },
	} {
		t.Run("F12 "+name, func(t *testing.T) {
			lease := lock(name)
			require.NoError(t, charge(name, store.StillHeld(lease.Key, lease.Fence)))
			require.NoError(t, end(lease))
			for _, in := range []types.TransactWriteItem{store.StillHeld(lease.Key, lease.Fence), completes(lease, result, time.Hour)} {
				err := charge(name, in)
				require.True(t, store.IsStale(fmt.Errorf("wrapped: %w", err), lease.Fence), "%v", err)
			}
			require.Equal(t, int64(1), number(t, data.get(t, name), "charges"))
		})
	}
	t.Run("the caller's own condition", func(t *testing.T) {
		lease, adds := lock("own"), addsOne(dataTable, item{"key": s("own")}, "charges")
		adds.Update.ConditionExpression, adds.Update.ReturnValuesOnConditionCheckFailure = aws.String("attribute_exists(closed)"), types.ReturnValuesOnConditionCheckFailureAllOld
		for _, ended := range []bool{false, true} {
			err := transact(ctx, client, adds, store.StillHeld(lease.Key, lease.Fence))
			require.Error(t, err)
			require.Equal(t, ended, store.IsStale(err, lease.Fence), "%v", err)
			require.NoError(t, store.Release(ctx, lease))
		}
		err := charge("own", store.StillHeld("never", lease.Fence))
		require.ErrorContains(t, err, "ConditionalCheckFailed")
		require.False(t, store.IsStale(err, lease.Fence), "a key without a row: the error does not say whose condition failed")
	})
	t.Run("one of several holders", func(t *testing.T) { // CompleteItem wants a lease that is alone
		leases := sharing(t, store, 3)
		require.NoError(t, revoke(leases[1], false))
		require.NoError(t, store.Release(ctx, leases[2]))
		require.NoError(t, transact(ctx, client, store.StillHeld(key, leases[0].Fence)))
		err := transact(ctx, client, completes(leases[0], nil, time.Hour))
		require.Error(t, err)
		require.False(t, store.IsStale(err, leases[0].Fence))
		for _, lease := range leases[1:] {
			err := transact(ctx, client, store.StillHeld(key, lease.Fence))
			require.True(t, store.IsStale(err, lease.Fence), "%v", err)
		}
	})
	t.Run("F13 the effect and the result are written together, once", func(t *testing.T) {
		for _, started := range []bool{false, true} {
			account := fmt.Sprint("once/", started)
			lease := lock(account)
			if started {
				require.NoError(t, store.MarkStarted(ctx, lease))
			}
			require.NoError(t, charge(account, completes(lease, result, time.Hour)))
			err := charge(account, completes(lease, result, time.Hour))
			require.True(t, store.IsStale(err, lease.Fence), "%v", err)
			require.NoError(t, store.Complete(ctx, lease, []byte("another"), time.Hour), "the guard's own Complete finds it done")
			require.NoError(t, store.Release(ctx, lease))
			completed(t, lease.Key, result)
			require.Equal(t, int64(1), number(t, data.get(t, account), "charges"))
		}
	})
	t.Run("F48 not with arguments out of bounds", func(t *testing.T) {
		lease := lock("bad")
		for _, d := range []time.Duration{0, -time.Hour, lockstore.MaxResultTime + 1} {
			require.Error(t, charge("bad", completes(lease, result, d)))
		}
		require.Error(t, charge("bad", completes(lease, make([]byte, lockstore.MaxResultBytes+1), time.Hour)))
		require.Nil(t, data.get(t, "bad"))
		largest := bytes.Repeat([]byte{7}, lockstore.MaxResultBytes)
		require.NoError(t, charge("bad", completes(lease, largest, time.Hour)))
		completed(t, lease.Key, largest)
	})
}

// The end of what a transaction completes is d and the skew after the local time.
func TestEndInATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		update := newStore(t, fakedynamo.New(table), 0, dynamostore.Options{}).CompleteItem(key, 7, nil, time.Hour).Update
		require.Equal(t, time.Now().Add(time.Hour+dynamostore.DefaultSkew).UnixMilli(), number(t, update.ExpressionAttributeValues, ":expires"))
	})
}

// Another request for one of the items cancels a transaction, and the client sends it again. It does not
// if a condition was false.
func TestTransactionConflict(t *testing.T) {
	for last, sent := range map[string]int{"None": 2, "TransactionConflict": 2, "ConditionalCheckFailed": 1} {
		bubble(t, "F42 "+last, func(t *testing.T) {
			service, store := newFake(t)
			lease := held(t, store)
			service.Fault = on(fakedynamo.Fault{Refuse: &fakedynamo.Failure{
				Status: 400, Code: "TransactionCanceledException", Reasons: []any{map[string]string{"Code": "TransactionConflict"}, map[string]string{"Code": last}},
			}}, service.Requests()+1)
			err := transact(t.Context(), dynamostore.ClientOver(service, fakeEndpoint), store.CompleteItem(key, lease.Fence, []byte("result"), time.Hour))
			require.Equal(t, sent, service.Actions()["TransactWriteItems"])
			require.False(t, store.IsStale(err, lease.Fence))
		})
	}
}
