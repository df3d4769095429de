package accounts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// dynamoShelf keeps an account in one item: account S (partition key), balance
// N, lock_fence N, recent S (JSON). An account made by hand needs the first two
// only.
type dynamoShelf struct {
	client *dynamodb.Client
	table  string
}

func (s *dynamoShelf) claim(ctx context.Context, account string, fence lockstore.Fence) (record, error) {
	out, err := s.fenced(ctx, fence, &dynamodb.UpdateItemInput{
		Key:                 s.key(account),
		ConditionExpression: aws.String("attribute_exists(balance)"),
		ReturnValues:        types.ReturnValueAllNew,
	})
	if err != nil {
		return record{}, err
	}
	return decodeItem(out.Attributes)
}

func (s *dynamoShelf) write(ctx context.Context, account string, fence lockstore.Fence, r record) error {
	recent, err := json.Marshal(r.Recent)
	if err != nil {
		return err
	}
	_, err = s.fenced(ctx, fence, &dynamodb.UpdateItemInput{
		Key:                 s.key(account),
		ConditionExpression: aws.String("attribute_exists(balance)"),
		UpdateExpression:    aws.String("SET balance = :balance, recent = :recent"),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":balance": number(r.Balance),
			":recent":  &types.AttributeValueMemberS{Value: string(recent)},
		},
	})
	return err
}

func (s *dynamoShelf) fenced(ctx context.Context, fence lockstore.Fence, in *dynamodb.UpdateItemInput) (*dynamodb.UpdateItemOutput, error) {
	in.TableName = &s.table
	if err := dynamostore.Fenced(in, fence); err != nil {
		return nil, err
	}
	out, err := s.client.UpdateItem(ctx, in)
	if refused, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		switch {
		case dynamostore.IsStale(err, fence):
			return nil, ErrStaleFence
		case len(refused.Item) == 0:
			return nil, ErrNotFound
		default:
			return nil, ErrCorrupt // no balance, or a fence that is no number
		}
	}
	return out, err
}

func (s *dynamoShelf) create(ctx context.Context, account string, r record) error {
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                 &s.table,
		Key:                       s.key(account),
		ConditionExpression:       aws.String("attribute_not_exists(account)"),
		UpdateExpression:          aws.String("SET balance = :balance"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":balance": number(r.Balance)},
	})
	if _, refused := errors.AsType[*types.ConditionalCheckFailedException](err); refused {
		return ErrExists
	}
	return err
}

func (s *dynamoShelf) read(ctx context.Context, account string) (record, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName:      &s.table,
		Key:            s.key(account),
		ConsistentRead: aws.Bool(true),
	})
	if err != nil {
		return record{}, err
	}
	if len(out.Item) == 0 {
		return record{}, ErrNotFound
	}
	return decodeItem(out.Item)
}

func (s *dynamoShelf) key(account string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"account": &types.AttributeValueMemberS{Value: account}}
}

func decodeItem(item map[string]types.AttributeValue) (record, error) {
	balance, ok := item["balance"].(*types.AttributeValueMemberN)
	if !ok {
		return record{}, fmt.Errorf("balance is no number: %w", ErrCorrupt)
	}
	if recent, there := item["recent"]; there {
		text, ok := recent.(*types.AttributeValueMemberS)
		if !ok {
			return record{}, fmt.Errorf("recent is no string: %w", ErrCorrupt)
		}
		return decode(balance.Value, text.Value)
	}
	return decode(balance.Value, "")
}

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}
