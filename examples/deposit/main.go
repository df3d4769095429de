// Command deposit is the program of README.md.
package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

type Deposit struct {
	Account string
	Amount  int
}

// add refuses a fence smaller than the one stored in the account.
const add = `
if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then return false end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
return redis.call('HINCRBY', KEYS[1], 'balance', ARGV[2])`

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener) // LOCK_URL says which
	accounts := boot.Must(redisstore.Client(lockstore.Config{URL: boot.MustURLFromEnv("ACCOUNTS_URL"), Getenv: boot.Getenv}))
	boot.Start(g, guard.Wrap(g, key, handle(accounts)))
}

func key(_ context.Context, d Deposit) (string, error) {
	return lockstore.Key("account", d.Account), nil
}

func handle(accounts redis.Scripter) guard.Handler[Deposit, int] {
	return func(ctx context.Context, lock guard.Lock, d Deposit) (int, error) {
		balance, err := accounts.Eval(ctx, add, []string{"account:" + d.Account}, int64(lock.Fence), d.Amount).Int()
		if err == redis.Nil {
			return 0, fmt.Errorf("somebody else has written account %s since: %w", d.Account, lockstore.ErrLost)
		}
		return balance, err
	}
}
