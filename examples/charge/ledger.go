package main

import (
	"context"
	"net/url"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// ledger keeps the charges in DynamoDB: a row for each order.
type ledger struct {
	client  *dynamodb.Client
	charges string             // the table
	locks   *dynamostore.Store // for the rows of the locks, as LOCK_URL names them
}

func openLedger(charges, locks *url.URL, getenv func(string) string) (*ledger, error) {
	client, err := dynamostore.Client(lockstore.Config{URL: charges, Getenv: getenv})
	if err != nil {
		return nil, err
	}
	store, err := dynamostore.Open(context.Background(), lockstore.Config{URL: locks, Getenv: getenv})
	if err != nil {
		return nil, err
	}
	return &ledger{client, charges.Host, store}, nil
}

// charge writes the charge and the result in one transaction: both or none. If the reply is
// lost, the next run of the same order finds out: it gets the result, or it charges.
func (l *ledger) charge(ctx context.Context, _ guard.Lock, o Order) (Receipt, error) {
	receipt := Receipt{o.ID, o.Cents}
	result, err := idempotency.Prepare(ctx, receipt)
	if err != nil {
		return Receipt{}, err
	}
	own := types.TransactWriteItem{Update: &types.Update{
		TableName:        &l.charges,
		Key:              map[string]types.AttributeValue{"order": &types.AttributeValueMemberS{Value: o.ID}},
		UpdateExpression: aws.String("ADD charges :one, cents :cents"),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":one":   &types.AttributeValueMemberN{Value: "1"},
			":cents": &types.AttributeValueMemberN{Value: strconv.FormatInt(o.Cents, 10)},
		},
	}}
	_, err = l.client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
		own,
		l.locks.CompleteItem(result.Lock.Key, result.Lock.Fence, result.Data, result.Time),
	}})
	return receipt, err
}
