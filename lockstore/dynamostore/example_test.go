package dynamostore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// A withdrawal from an account that refuses late writers and keeps its own
// condition.
func ExampleFenced() {
	withdraw := func(ctx context.Context, client *dynamodb.Client, lock guard.Lock, account string) error {
		in := &dynamodb.UpdateItemInput{
			TableName:           aws.String("accounts"),
			Key:                 map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: account}},
			UpdateExpression:    aws.String("SET balance = balance - :amount"),
			ConditionExpression: aws.String("balance >= :amount"),
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":amount": &types.AttributeValueMemberN{Value: "10"},
			},
		}
		if err := dynamostore.Fenced(in, lock.Fence); err != nil {
			return err
		}
		// One attempt: a second one would withdraw again if the reply to the first was lost.
		_, err := client.UpdateItem(ctx, in, func(o *dynamodb.Options) { o.RetryMaxAttempts = 1 })
		if dynamostore.IsStale(err, lock.Fence) {
			return fmt.Errorf("somebody else has worked on account %s since: %w", account, lockstore.ErrLost)
		}
		if _, refused := errors.AsType[*types.ConditionalCheckFailedException](err); refused {
			return fmt.Errorf("account %s has less than 10", account)
		}
		return err
	}
	_ = withdraw
}
