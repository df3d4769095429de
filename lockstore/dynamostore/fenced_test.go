package dynamostore_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

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
	data := realRows{client, dataTable, tableKey}
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

	both := func(key string, fence lockstore.Fence, condition string) error {
		adds := addsOne(dataTable, item{"key": s("8")}, "balance")
		adds.Update.ConditionExpression, adds.Update.ReturnValuesOnConditionCheckFailure = &condition, types.ReturnValuesOnConditionCheckFailureAllOld
		return transact(ctx, client, adds, store.StillHeld(key, fence))
	}
	const holds, fails = "attribute_not_exists(closed)", "attribute_exists(closed)"
	t.Run("F12 a transaction", func(t *testing.T) {
		stale := func(fence lockstore.Fence) {
			t.Helper()
			for _, condition := range []string{holds, fails} {
				err := both("fenced/7", fence, condition)
				require.True(t, store.IsStale(fmt.Errorf("wrapped: %w", err), fence), "%v", err)
			}
		}
		require.NoError(t, both("fenced/7", lease.Fence, holds))
		err := both("fenced/7", lease.Fence, fails)
		require.Error(t, err)
		require.False(t, store.IsStale(err, lease.Fence), "the caller's own condition: %v", err)
		stale(old.Fence)
		require.NoError(t, store.Release(ctx, lease))
		stale(lease.Fence)
		revoked := lock()
		for _, now := range []bool{false, true} {
			_, err = store.Revoke(ctx, lockstore.RevokeRequest{Key: "fenced/7", Fence: revoked.Fence, OpenAtOnce: now})
			require.NoError(t, err)
			stale(revoked.Fence)
		}
		completed := lock()
		require.NoError(t, store.Complete(ctx, completed, nil, time.Minute))
		stale(completed.Fence)
		require.Equal(t, int64(1), number(t, data.get(t, "8"), "balance"))

		err = both("fenced/never", lease.Fence, holds)
		var cancelled *types.TransactionCanceledException
		require.ErrorAs(t, err, &cancelled)
		require.Equal(t, "ConditionalCheckFailed", *cancelled.CancellationReasons[1].Code)
		require.False(t, store.IsStale(err, lease.Fence), "a key without a row: the error does not say whose condition failed")
	})
	t.Run("one of several holders", func(t *testing.T) { // CompleteItem wants a lease that is alone
		leases := sharing(t, store, 3)
		_, err := store.Revoke(ctx, lockstore.RevokeRequest{Key: key, Fence: leases[1].Fence})
		require.NoError(t, err)
		require.NoError(t, store.Release(ctx, leases[2]))
		require.NoError(t, transact(ctx, client, store.StillHeld(key, leases[0].Fence)))
		err = transact(ctx, client, store.CompleteItem(key, leases[0].Fence, nil, time.Hour))
		require.Error(t, err)
		require.False(t, store.IsStale(err, leases[0].Fence))
		for _, lease := range leases[1:] {
			err := transact(ctx, client, store.StillHeld(key, lease.Fence))
			require.True(t, store.IsStale(err, lease.Fence), "%v", err)
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
		"(a = :a AND (b = :b))":             "((a = :a AND (b = :b))) AND " + guard,
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
		"the same fence":                {err: refusal(item{"lock_fence": n("7")})},
		"a larger fence":                {err: refusal(item{"lock_fence": n("8")}), want: true},
		"a larger fence in a text":      {err: refusal(item{"lock_fence": s("8")})},
		"a fence that is not whole":     {err: refusal(item{"lock_fence": n("8.5")})},
		"an update's refusal by a lock": {err: refusal(lock(func(row item) { row["fence"] = n("8") }))},
		"a transaction without reasons": {err: &types.TransactionCanceledException{}},
		"a transaction, no row":         {err: cancelled(failed, nil)},
		"a transaction, a larger fence": {err: cancelled(failed, item{"lock_fence": n("8")}), want: true},
		"a transaction, the same fence": {err: cancelled(failed, item{"lock_fence": n("7")})},
		"a transaction, another reason": {err: cancelled("TransactionConflict", item{"lock_fence": n("8")})},
		"a lock that is held":           {err: cancelled(failed, lock(func(item) {}))},
		"a lock with a larger fence":    {err: cancelled(failed, lock(func(row item) { row["fence"] = n("8") })), want: true},
		"a lock with a smaller fence":   {err: cancelled(failed, lock(func(row item) { row["fence"] = n("6") })), want: true},
		"a lock that is free":           {err: cancelled(failed, lock(func(row item) { delete(row, "owner"); delete(row, "fence"); row["lastFence"] = n("7") })), want: true},
		"a lock in its cooldown":        {err: cancelled(failed, lock(func(row item) { row["owner"] = s(dynamostore.ClosedOwner) })), want: true},
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
