package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// documents has the documents of all customers and their indexes.
type documents interface {
	// titles are those of all documents of a customer whose write had ended before the call, in the order of the documents' names.
	titles(ctx context.Context, customer string) ([]string, error)
	// putIndex replaces the index of a customer. It refuses an older fence.
	putIndex(ctx context.Context, lock guard.Lock, customer string, titles []string) error
}

func openDocuments(u *url.URL, getenv func(string) string) (documents, error) {
	cfg := lockstore.Config{URL: u, Getenv: getenv}
	if u.Scheme == "dynamodb" {
		client, err := dynamostore.Client(cfg)
		return table{client, u.Host}, err
	}
	client, err := redisstore.Client(cfg)
	return cache{client}, err
}

// table is a DynamoDB table with the partition key "customer" and the sort key "name": "document/NAME", or "index".
type table struct {
	client *dynamodb.Client
	name   string
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func (t table) titles(ctx context.Context, customer string) (titles []string, err error) {
	pages := dynamodb.NewQueryPaginator(t.client, &dynamodb.QueryInput{
		TableName:                 &t.name,
		ConsistentRead:            aws.Bool(true), // or a change that has just been made may be missing
		KeyConditionExpression:    aws.String("customer = :customer AND begins_with(#name, :document)"),
		ExpressionAttributeNames:  map[string]string{"#name": "name"},
		ExpressionAttributeValues: map[string]types.AttributeValue{":customer": text(customer), ":document": text("document/")},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			title, ok := item["title"].(*types.AttributeValueMemberS)
			if !ok {
				return nil, fmt.Errorf("a document has no title: %v", item["name"])
			}
			titles = append(titles, title.Value)
		}
	}
	return titles, nil
}

func (t table) putIndex(ctx context.Context, lock guard.Lock, customer string, titles []string) error {
	list := []types.AttributeValue{}
	for _, title := range titles {
		list = append(list, text(title))
	}
	in := &dynamodb.UpdateItemInput{
		TableName:                 &t.name,
		Key:                       map[string]types.AttributeValue{"customer": text(customer), "name": text("index")},
		UpdateExpression:          aws.String("SET titles = :titles"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":titles": &types.AttributeValueMemberL{Value: list}},
	}
	if err := dynamostore.Fenced(in, lock.Fence); err != nil {
		return err
	}
	_, err := t.client.UpdateItem(ctx, in)
	if dynamostore.IsStale(err, lock.Fence) {
		return stale(customer)
	}
	return err
}

// cache is the same in Redis: of each customer a hash of the documents, and one with the index.
type cache struct{ client redis.UniversalClient }

func (c cache) titles(ctx context.Context, customer string) (titles []string, err error) {
	all, err := c.client.HGetAll(ctx, "documents:"+customer).Result()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		titles = append(titles, all[name])
	}
	return titles, err
}

const putScript = `
if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then return false end
return redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'titles', ARGV[2])`

func (c cache) putIndex(ctx context.Context, lock guard.Lock, customer string, titles []string) error {
	list, err := json.Marshal(titles)
	if err != nil {
		return err
	}
	err = c.client.Eval(ctx, putScript, []string{"index:" + customer}, int64(lock.Fence), list).Err()
	if err == redis.Nil {
		return stale(customer)
	}
	return err
}

func stale(customer string) error {
	return fmt.Errorf("a later run has written the index of customer %s: %w", customer, lockstore.ErrLost)
}
