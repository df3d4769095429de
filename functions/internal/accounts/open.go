package accounts

import (
	"fmt"
	"net/url"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// Open opens the accounts that u names: dynamodb://TABLE, whose partition
// key is the string attribute "account", or the redis URLs that redisstore
// takes. It sends nothing. The role needs dynamodb:UpdateItem, and GetItem for
// Balance; on Redis EVALSHA and EVAL on keys "account:*", and HMGET for
// Balance.
func Open(u *url.URL, getenv func(string) string) (*Ledger, error) {
	cfg := lockstore.Config{URL: u, Getenv: getenv}
	switch scheme := u.Scheme; scheme {
	case "dynamodb":
		client, err := dynamostore.Client(cfg)
		if err != nil {
			return nil, err
		}
		return newLedger(&dynamoShelf{client, u.Host}), nil
	case "redis", "rediss", "valkey", "valkeys":
		client, err := redisstore.Client(cfg)
		if err != nil {
			return nil, err
		}
		return newLedger(&redisShelf{client}), nil
	default:
		return nil, fmt.Errorf("accounts: no accounts for the scheme %q; want dynamodb, redis, rediss, valkey or valkeys", scheme)
	}
}
