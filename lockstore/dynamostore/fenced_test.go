package dynamostore_test

import (
	"context"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// deposit is a caller's own write, fenced.
func deposit(ctx context.Context, client *dynamodb.Client, account string, amount string, fence lockstore.Fence) error {
	in := &dynamodb.UpdateItemInput{
		TableName:                 aws.String(dataTable),
		Key:                       item{"key": s(account)},
		UpdateExpression:          aws.String("ADD deposits :one SET balance = if_not_exists(balance, :zero) + :amount"),
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
	store, err := dynamostore.New(client, table, dynamostore.Options{})
	require.NoError(t, err)
	ctx := t.Context()
	account := func() item {
		out, err := client.GetItem(ctx, &dynamodb.GetItemInput{
			TableName: aws.String(dataTable), Key: item{"key": s("7")}, ConsistentRead: aws.Bool(true),
		})
		require.NoError(t, err)
		return out.Item
	}
	lock := func() lockstore.Lease {
		lease, err := store.Acquire(ctx, lockstore.Request{Key: "fenced/7", Owner: lockstore.NewOwner(), TTL: time.Minute})
		require.NoError(t, err)
		return lease
	}
	old := lock()
	require.NoError(t, deposit(ctx, client, "7", "10", old.Fence))
	require.NoError(t, deposit(ctx, client, "7", "5", old.Fence), "one holder writes as often as it likes")
	require.Equal(t, int64(15), number(t, account(), "balance"))
	require.Equal(t, int64(old.Fence), number(t, account(), dynamostore.FenceAttribute))

	require.NoError(t, store.Release(ctx, old))
	held := lock()
	require.NoError(t, deposit(ctx, client, "7", "1", held.Fence))

	t.Run("F12 F07 a stale fence is refused and told apart", func(t *testing.T) {
		err := deposit(ctx, client, "7", "1000", old.Fence)
		require.True(t, dynamostore.IsStale(err, old.Fence), "%v", err)
		require.False(t, dynamostore.IsStale(err, held.Fence))
		require.Equal(t, int64(16), number(t, account(), "balance"))
	})

	transact := func(key string, fence lockstore.Fence) error {
		_, err := client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
			dynamostore.StillHeld(table, key, fence),
			{Update: &types.Update{
				TableName: aws.String(dataTable), Key: item{"key": s("8")},
				UpdateExpression: aws.String("ADD balance :one"), ExpressionAttributeValues: item{":one": n("1")},
			}},
		}})
		return err
	}
	refused := func(t *testing.T, err error) {
		t.Helper()
		var cancelled *types.TransactionCanceledException
		require.ErrorAs(t, err, &cancelled)
		require.Equal(t, "ConditionalCheckFailed", *cancelled.CancellationReasons[0].Code)
	}
	t.Run("a transaction while the lock is held", func(t *testing.T) {
		require.NoError(t, transact("fenced/7", held.Fence))
		refused(t, transact("fenced/7", old.Fence))
		refused(t, transact("fenced/never", held.Fence))
	})
	t.Run("a transaction after the release", func(t *testing.T) {
		require.NoError(t, store.Release(ctx, held))
		refused(t, transact("fenced/7", held.Fence))
		closed := lock()
		require.NoError(t, store.ReleaseAfter(ctx, closed, time.Minute))
		refused(t, transact("fenced/7", closed.Fence))
	})
	t.Run("the caller's own condition is told apart", func(t *testing.T) {
		_, err := client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: aws.String(dataTable), Key: item{"key": s("7")},
			UpdateExpression: aws.String("SET closed = :one"), ExpressionAttributeValues: item{":one": n("1")},
		})
		require.NoError(t, err)
		err = deposit(ctx, client, "7", "1", held.Fence)
		var refusal *types.ConditionalCheckFailedException
		require.ErrorAs(t, err, &refusal)
		require.False(t, dynamostore.IsStale(err, held.Fence))
	})
}

func TestFencedExpressions(t *testing.T) {
	const set = "lock_fence = :lock_fence"
	for expression, want := range map[string]string{
		"":                              "SET " + set + " ",
		"SET a = :a":                    "SET " + set + ", a = :a",
		"set a = :a":                    "set " + set + ", a = :a",
		"REMOVE b SET a = :a":           "REMOVE b SET " + set + ", a = :a",
		"REMOVE b\nSET\ta = :a":         "REMOVE b\nSET " + set + ",\ta = :a",
		"REMOVE b":                      "SET " + set + " REMOVE b",
		"REMOVE #set ADD n :set":        "SET " + set + " REMOVE #set ADD n :set",
		"ADD offset :n":                 "SET " + set + " ADD offset :n",
		"ADD setting :n SET reset = :x": "ADD setting :n SET " + set + ", reset = :x",
	} {
		in := &dynamodb.UpdateItemInput{UpdateExpression: aws.String(expression)}
		require.NoError(t, dynamostore.Fenced(in, 7))
		require.Equal(t, want, *in.UpdateExpression)
		require.Equal(t, "(attribute_not_exists(lock_fence) OR lock_fence <= :lock_fence)", *in.ConditionExpression)
		require.Equal(t, n("7"), in.ExpressionAttributeValues[":lock_fence"])
	}
	in := &dynamodb.UpdateItemInput{ConditionExpression: aws.String("a = :a OR b = :b"), ExpressionAttributeValues: item{":a": n("1")}}
	values := in.ExpressionAttributeValues
	require.NoError(t, dynamostore.Fenced(in, 7))
	require.Equal(t, "(a = :a OR b = :b) AND (attribute_not_exists(lock_fence) OR lock_fence <= :lock_fence)", *in.ConditionExpression)
	require.Equal(t, "SET lock_fence = :lock_fence", *in.UpdateExpression)
	require.Len(t, values, 1, "the caller's own map stays as it is")

	require.ErrorIs(t, dynamostore.Fenced(nil, 7), lockstore.ErrInvalid)
	require.ErrorIs(t, dynamostore.Fenced(in, 0), lockstore.ErrInvalid)
	require.False(t, dynamostore.IsStale(nil, 7))
	require.False(t, dynamostore.IsStale(&types.ConditionalCheckFailedException{}, 7), "without ALL_OLD nothing is known")
}
