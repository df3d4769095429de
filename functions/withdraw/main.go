// Command withdraw is the Lambda behind POST /accounts/{id}/withdrawals. openapi.json
// describes its requests and answers.
package main

import (
	"context"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore/elasticache"
	"github.com/lambdalock/lambdalock/lockstore/zkstore"
)

func main() {
	wake := boot.Must(sfnwake.FromEnv(boot.EnvVar)) // payouts that wait for an account
	g := boot.MustGuardFromEnvWith(func(o *guard.Options) { o.Wake = wake }, dynamostore.Opener, redisstore.Opener, elasticache.Opener, zkstore.Opener)
	ledger := boot.Must(accounts.Open(boot.MustURLFromEnv("ACCOUNTS_URL"), boot.EnvVar))
	boot.Start(g, serve(g, key, handle(ledger)))
}

// serve runs a request under the lock of its account. A request with an Idempotency-Key has
// a record around this lock, in the same store. After a run that was killed, a repeat works
// again: the ledger knows the id.
func serve(g *guard.Guard, key guard.KeyFunc[httpapi.Request], next guard.Handler[httpapi.Request, httpapi.Response]) guard.Wrapped[httpapi.Request, httpapi.Response] {
	once := boot.Must(idempotency.New(g, idempotency.Options{}))
	return httpapi.Once(once, httpapi.OnceOptions{Caller: caller, Optional: true, Lock: g, Key: key}, next)
}

// key reads the whole request, so that a bad one takes no account's lock.
func key(_ context.Context, r httpapi.Request) (string, error) {
	w, err := parse(r)
	return accounts.Key(w.Account), err
}

func handle(ledger *accounts.Ledger) guard.Handler[httpapi.Request, httpapi.Response] {
	return func(ctx context.Context, lock guard.Lock, r httpapi.Request) (httpapi.Response, error) {
		w, err := parse(r)
		if err != nil {
			return httpapi.Response{}, err
		}
		return answer(ledger.Withdraw(ctx, lock, w))
	}
}
