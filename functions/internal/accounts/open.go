package accounts

import (
	"fmt"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// Open opens the accounts that the URL names: dynamodb://TABLE, whose partition
// key is the string attribute "account", or the redis URLs that redisstore
// takes. It sends nothing. The role needs dynamodb:UpdateItem, and GetItem for
// Balance; on Redis EVALSHA and EVAL on keys "account:*", and HMGET for
// Balance.
func Open(cfg lockstore.Config) (*Ledger, error) {
	switch scheme := cfg.URL.Scheme; scheme {
	case "dynamodb":
		client, err := dynamostore.Client(cfg)
		if err != nil {
			return nil, err
		}
		return newLedger(newDynamo(client, cfg.URL.Host)), nil
	case "redis", "rediss", "valkey", "valkeys":
		client, err := redisstore.Client(cfg)
		if err != nil {
			return nil, err
		}
		return newLedger(newRedis(client)), nil
	default:
		return nil, fmt.Errorf("accounts: no accounts for the scheme %q; want dynamodb, redis, rediss, valkey or valkeys", scheme)
	}
}
