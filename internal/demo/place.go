package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// place is where locks and accounts are.
type place struct {
	name  string   // for people
	env   []string // what the functions need to know
	needs string   // what has to be there already, for people
	left  string   // what stays behind, for people
	close func()
}

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
	// Opened here too, which sends nothing: a typing mistake is told before
	// anything is built. What the environment lacks is told below.
	if _, err := lockstore.Open(ctx, lockURL, functionEnv, dynamostore.Opener, redisstore.Opener); err != nil {
		return place{}, fmt.Errorf("LOCK_URL: %w", err)
	}
	u, err := lockstore.ParseURL(lockURL)
	if err != nil {
		return place{}, fmt.Errorf("LOCK_URL: %w", err)
	}
	if u.Scheme == "dynamodb" {
		return openDynamo(ctx, u, getenv)
	}
	// Locks and accounts have different prefixes already.
	return place{
		name:  u.Scheme + "://" + u.Host,
		env:   []string{"LOCK_URL=" + lockURL, "ACCOUNTS_URL=" + lockURL},
		left:  leftBehind + "; the lock goes an hour after its last lease.",
		close: func() {},
	}, nil
}

const leftBehind = "The server keeps two small accounts and one lock entry, all with demo- in their\nkey"

// functionEnv is the part of the functions' environment that a store reads, see
// lambdatest.
func functionEnv(name string) string {
	return map[string]string{"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}[name]
}

// openDynamo makes the tables on a DynamoDB Local. Elsewhere it makes nothing
// and wants the caller's own region and credentials.
func openDynamo(ctx context.Context, u *url.URL, getenv func(string) string) (place, error) {
	accounts := *u
	accounts.Host = u.Host + "-accounts"
	p := place{
		name:  u.Scheme + "://" + u.Host,
		env:   []string{"LOCK_URL=" + u.String(), "ACCOUNTS_URL=" + accounts.String()},
		needs: fmt.Sprintf("the tables %s (key S) and %s (account S) must exist", u.Host, accounts.Host),
		left:  leftBehind + "; the lock goes after 30 days if the table's time to live is on.",
		close: func() {},
	}
	endpoint := u.Query().Get("endpoint")
	if isLocal(endpoint) {
		if err := createTables(ctx, u, accounts.Host); err != nil {
			return place{}, fmt.Errorf("the tables cannot be made on %s: %w", endpoint, err)
		}
		return p, nil
	}
	region := cmp.Or(getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION"))
	if cmp.Or(u.Query().Get("region"), region) == "" || getenv("AWS_ACCESS_KEY_ID") == "" || getenv("AWS_SECRET_ACCESS_KEY") == "" {
		where := "on AWS"
		if endpoint != "" {
			where = "behind a remote endpoint"
		}
		return place{}, fmt.Errorf("LOCK_URL names DynamoDB %s: set AWS_REGION and export credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY); %s", where, p.needs)
	}
	// The functions inherit nothing, and have a region of their own if none is given.
	for _, v := range []struct{ name, value string }{
		{"AWS_REGION", region},
		{"AWS_DEFAULT_REGION", region},
		{"AWS_ACCESS_KEY_ID", getenv("AWS_ACCESS_KEY_ID")},
		{"AWS_SECRET_ACCESS_KEY", getenv("AWS_SECRET_ACCESS_KEY")},
		{"AWS_SESSION_TOKEN", getenv("AWS_SESSION_TOKEN")},
	} {
		if v.value != "" {
			p.env = append(p.env, v.name+"="+v.value)
		}
	}
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
	client := dynamodb.New(dynamodb.Options{
		BaseEndpoint: aws.String(u.Query().Get("endpoint")),
		Region:       cmp.Or(u.Query().Get("region"), functionEnv("AWS_REGION")),
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

var bookkeeping = regexp.MustCompile(`operation error DynamoDB: \w+, (exceeded maximum number of attempts, \d+, )?` +
	`(https response error StatusCode: \d+, RequestID: [^,]*, )?(request send failed, \w+ "[^"]*": )?`)

// shorten takes the SDK's bookkeeping out of an error's text, which is all that
// is left of an error that comes from a function.
func shorten(text string) string { return bookkeeping.ReplaceAllString(text, "") }
