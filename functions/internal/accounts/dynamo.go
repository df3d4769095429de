package accounts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// Open opens the accounts that u names: dynamodb://TABLE, whose partition key is the string attribute "account". It sends
// nothing. The role needs dynamodb:UpdateItem.
func Open(u *url.URL, getenv func(string) string) (*Ledger, error) {
	if u.Scheme != "dynamodb" {
		return nil, fmt.Errorf("accounts: no accounts for the scheme %q; want dynamodb", u.Scheme)
	}
	client, err := dynamostore.Client(lockstore.Config{URL: u, Getenv: getenv})
	if err != nil {
		return nil, err
	}
	return New(&shelf{client, u.Host}), nil
}

// shelf keeps an account in one item: account S (partition key), balance
// N, lock_fence N, recent S (JSON). An account made by hand needs the first two
// only.
type shelf struct {
	client *dynamodb.Client
	table  string
}

func (s *shelf) Claim(ctx context.Context, account string, fence lockstore.Fence) (Record, error) {
	out, err := s.fenced(ctx, account, fence, &dynamodb.UpdateItemInput{
		ConditionExpression: aws.String("attribute_exists(balance)"),
		ReturnValues:        types.ReturnValueAllNew,
	})
	if err != nil {
		return Record{}, err
	}
	return decode(out.Attributes)
}

func (s *shelf) Write(ctx context.Context, account string, fence lockstore.Fence, before int64, r Record) error {
	recent, err := json.Marshal(r.Recent)
	if err != nil {
		return err
	}
	_, err = s.fenced(ctx, account, fence, &dynamodb.UpdateItemInput{
		ConditionExpression: aws.String("balance = :before"),
		UpdateExpression:    aws.String("SET balance = :balance, recent = :recent"),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":before":  number(before),
			":balance": number(r.Balance),
			":recent":  &types.AttributeValueMemberS{Value: string(recent)},
		},
	})
	refused, ok := errors.AsType[*types.ConditionalCheckFailedException](err)
	if !ok {
		return err
	}
	now, err := decode(refused.Item)
	if err == nil && !slices.Contains(now.Recent, r.Recent[len(r.Recent)-1]) {
		err = errors.New("somebody has written the account since it was read")
	}
	return err
}

func (s *shelf) fenced(ctx context.Context, account string, fence lockstore.Fence, in *dynamodb.UpdateItemInput) (*dynamodb.UpdateItemOutput, error) {
	in.TableName, in.Key = &s.table, key(account)
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
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err) // no balance, another one than Write expects, or a fence that is no number
		}
	}
	return out, err
}

func key(account string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"account": &types.AttributeValueMemberS{Value: account}}
}

func decode(item map[string]types.AttributeValue) (r Record, err error) {
	balance, ok := item["balance"].(*types.AttributeValueMemberN)
	if !ok {
		return r, fmt.Errorf("balance is no number: %w", ErrCorrupt)
	}
	if r.Balance, err = strconv.ParseInt(balance.Value, 10, 64); err != nil {
		return r, fmt.Errorf("balance %q: %w", balance.Value, ErrCorrupt)
	}
	recent, there := item["recent"]
	if !there { // nobody has withdrawn yet
		return r, nil
	}
	text, ok := recent.(*types.AttributeValueMemberS)
	if !ok {
		return r, fmt.Errorf("recent is no string: %w", ErrCorrupt)
	}
	if err := json.Unmarshal([]byte(text.Value), &r.Recent); err != nil {
		return r, fmt.Errorf("recent: %w: %w", ErrCorrupt, err)
	}
	return r, nil
}

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}
