package dynamostore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// An abandon from an account that refuses late writers and keeps its own
// condition.
func ExampleFenced() {
	abandon := func(ctx context.Context, client *dynamodb.Client, account string, fence lockstore.Fence) error {
		in := &dynamodb.UpdateItemInput{
			TableName:           aws.String("accounts"),
			Key:                 map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: account}},
			UpdateExpression:    aws.String("SET balance = balance - :amount"),
			ConditionExpression: aws.String("balance >= :amount"),
			ExpressionAttributeValues: map[string]types.AttributeValue{
				":amount": &types.AttributeValueMemberN{Value: "10"},
			},
		}
		if err := dynamostore.Fenced(in, fence); err != nil {
			return err
		}
		_, err := client.UpdateItem(ctx, in)
		if dynamostore.IsStale(err, fence) {
			return fmt.Errorf("another works on account %s: %w", account, lockstore.ErrLost)
		}
		var refused *types.ConditionalCheckFailedException
		if errors.As(err, &refused) {
			return fmt.Errorf("account %s has less than 10", account)
		}
		return err
	}
	_ = abandon
}
