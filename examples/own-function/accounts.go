package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// accounts is the function's own data.
type accounts interface {
	// add adds the amount of an order to its account, and returns the new balance. Each
	// account keeps the largest fence that has written it and refuses a smaller one.
	add(ctx context.Context, lock guard.Lock, o Order) (balance int64, err error)
}

func openAccounts(u *url.URL, getenv func(string) string) (accounts, error) {
	cfg := lockstore.Config{URL: u, Getenv: getenv}
	if u.Scheme == "dynamodb" {
		client, err := dynamostore.Client(cfg)
		return table{client, u.Host}, err
	}
	client, err := redisstore.Client(cfg)
	return cache{client}, err
}

// table is a DynamoDB table with the partition key "account".
type table struct {
	client *dynamodb.Client
	name   string
}

func (t table) add(ctx context.Context, lock guard.Lock, o Order) (int64, error) {
	in := &dynamodb.UpdateItemInput{
		TableName:                 &t.name,
		Key:                       map[string]types.AttributeValue{"account": &types.AttributeValueMemberS{Value: o.Account}},
		UpdateExpression:          aws.String("ADD balance :amount"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":amount": &types.AttributeValueMemberN{Value: strconv.FormatInt(o.Amount, 10)}},
		ReturnValues:              types.ReturnValueAllNew,
	}
	if err := dynamostore.Fenced(in, lock.Fence); err != nil {
		return 0, err
	}
	out, err := t.client.UpdateItem(ctx, in, noRetry)
	if dynamostore.IsStale(err, lock.Fence) {
		return 0, stale(o)
	}
	if err != nil {
		return 0, err
	}
	balance, ok := out.Attributes["balance"].(*types.AttributeValueMemberN)
	if !ok {
		return 0, fmt.Errorf("the balance of account %s is no number", o.Account)
	}
	return strconv.ParseInt(balance.Value, 10, 64)
}

// noRetry lets the client send a request once: ADD would count twice if the reply to the first one was lost.
func noRetry(o *dynamodb.Options) { o.RetryMaxAttempts = 1 }

// cache is the same in Redis. A script runs as a whole, so nobody writes between its
// comparison and its write.
type cache struct{ client redis.UniversalClient }

const addScript = `
if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then return false end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return redis.call('HINCRBY', KEYS[1], 'balance', ARGV[2])`

func (c cache) add(ctx context.Context, lock guard.Lock, o Order) (int64, error) {
	balance, err := c.client.Eval(ctx, addScript, []string{"account:" + o.Account}, int64(lock.Fence), o.Amount).Int64()
	if err == redis.Nil {
		return 0, stale(o)
	}
	return balance, err
}

func stale(o Order) error {
	return fmt.Errorf("somebody else has worked on account %s since: %w", o.Account, lockstore.ErrLost)
}
