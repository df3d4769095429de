package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
)

// place is where locks and accounts are.
type place struct {
	name  string   // for people
	env   []string // what the functions need to know
	left  string   // what stays behind, for people
	close func()
}

const leftBehind = "The server keeps two small accounts, account:demo-… (Redis) or demo-… (DynamoDB)."

// openPlace prepares the server that lockURL names, or an embedded one.
func openPlace(ctx context.Context, lockURL string, getenv func(string) string) (place, error) {
	if lockURL == "" {
		embedded, err := startEmbedded()
		if err != nil {
			return place{}, fmt.Errorf("the embedded Redis cannot start: %w", err)
		}
		u := "redis://" + embedded.Addr()
		return place{name: "an embedded Redis", env: []string{"LOCK_URL=" + u, "ACCOUNTS_URL=" + u}, close: embedded.Close}, nil
	}
	u, err := lockstore.ParseURL(lockURL)
	if err != nil {
		return place{}, fmt.Errorf("LOCK_URL: %w", err)
	}
	p := place{name: u.Scheme + "://" + u.Host, left: leftBehind, close: func() {}}
	accounts := *u
	switch u.Scheme {
	case "redis", "rediss", "valkey", "valkeys":
		// Locks and accounts have different prefixes already.
	case "dynamodb":
		accounts.Host = u.Host + "-accounts"
		if isLocal(u.Query().Get("endpoint")) {
			if err := createTables(ctx, u, accounts.Host); err != nil {
				return place{}, fmt.Errorf("the tables cannot be made on %s: %w", u.Query().Get("endpoint"), err)
			}
		}
		for _, name := range []string{"AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
			if value := getenv(name); value != "" && !isLocal(u.Query().Get("endpoint")) {
				p.env = append(p.env, name+"="+value)
			}
		}
	default:
		return place{}, fmt.Errorf("LOCK_URL: the demo knows dynamodb, redis, rediss, valkey and valkeys, not %q", u.Scheme)
	}
	p.env = append(p.env, "LOCK_URL="+u.String(), "ACCOUNTS_URL="+accounts.String())
	return p, nil
}

// startEmbedded starts a Redis in this process, on a free loopback port.
func startEmbedded() (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, err
	}
	return m, nil
}

// isLocal reports whether an endpoint is on this machine, where tables cost
// nothing and may be made without asking.
func isLocal(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil || endpoint == "" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func createTables(ctx context.Context, u *url.URL, accounts string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	region := u.Query().Get("region")
	if region == "" {
		region = "us-east-1" // the functions' own, see lambdatest
	}
	client := dynamodb.New(dynamodb.Options{
		BaseEndpoint: aws.String(u.Query().Get("endpoint")),
		Region:       region,
		Credentials:  credentials.NewStaticCredentialsProvider("local", "local", ""),
	})
	for _, t := range []struct{ name, key string }{{u.Host, "key"}, {accounts, "account"}} {
		_, err := client.CreateTable(ctx, &dynamodb.CreateTableInput{
			TableName:            &t.name,
			BillingMode:          types.BillingModePayPerRequest,
			AttributeDefinitions: []types.AttributeDefinition{{AttributeName: &t.key, AttributeType: types.ScalarAttributeTypeS}},
			KeySchema:            []types.KeySchemaElement{{AttributeName: &t.key, KeyType: types.KeyTypeHash}},
		})
		if _, exists := errors.AsType[*types.ResourceInUseException](err); err != nil && !exists {
			return lastCause(err)
		}
	}
	return nil
}

// lastCause is the innermost error: the SDK wraps it in a line of its own
// bookkeeping for each layer.
func lastCause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil || slices.Contains([]error{context.Canceled, context.DeadlineExceeded}, inner) {
			return err
		}
		if strings.HasPrefix(err.Error(), "dial ") {
			return err
		}
		err = inner
	}
}
