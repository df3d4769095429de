// Command withdraw is the Lambda behind POST /accounts/{id}/withdrawals.
package main

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/withdrawals"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
)

func main() {
	g := boot.MustGuard(dynamostore.Opener, redisstore.Opener, elasticache.Opener)
	ledger := boot.Must(accounts.Open(boot.MustURL("ACCOUNTS_URL"), boot.Getenv))
	boot.Start(g, httpapi.Wrap(g, key, handle(ledger)))
}

// key reads the whole request, so that a bad one takes no lock.
func key(_ context.Context, r httpapi.Request) (string, error) {
	w, err := withdrawals.Parse(r)
	return accounts.Key(w.Account), err
}

func handle(ledger *accounts.Ledger) guard.Handler[httpapi.Request, httpapi.Response] {
	return func(ctx context.Context, lock guard.Lock, r httpapi.Request) (httpapi.Response, error) {
		w, err := withdrawals.Parse(r)
		if err != nil {
			return httpapi.Response{}, err
		}
		return withdrawals.Answer(ledger.Withdraw(ctx, lock, w))
	}
}
