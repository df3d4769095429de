// Command payment is a sample of httpapi.Once: POST /payments charges a card through a payment
// provider. A JWT authorizer of API Gateway has checked the caller. The client sends the
// header Idempotency-Key, and a repeat gets the first answer. To try it, in the clone:
//
//	make build/lockctl
//	go run ./examples/payment/provider 127.0.0.1:8090 &
//	build/lockctl local --event examples/payment/event.json --env PROVIDER_URL=http://127.0.0.1:8090 \
//		--after 'curl -s $PROVIDER_URL/charges' ./examples/payment
//
// It sends one request 200 times, and the provider has one charge. The Redis of lockctl is for a try: a failover can lose
// that a payment has begun. In production let LOCK_URL be a table of DynamoDB.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener)
	boot.Start(g, handler(g, boot.MustURLFromEnv("PROVIDER_URL")))
}

// handler charges each key at most once. After a run of unknown end the key is in doubt, and an
// operator looks the charge up.
func handler(g *guard.Guard, provider *url.URL) guard.Wrapped[httpapi.Request, httpapi.Response] {
	once := boot.Must(idempotency.New(g, idempotency.Options{InDoubt: idempotency.AtMostOnce}))
	return httpapi.Once(once, httpapi.OnceOptions{}, pay(provider)) // two users may choose the same key
}

// reference is the key that the provider gets: the same for each run of this request. An operator
// makes it of KEY in lockctl show: printf %s KEY | sha256sum
func reference(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func pay(provider *url.URL) guard.Handler[httpapi.Request, httpapi.Response] {
	return func(ctx context.Context, lock guard.Lock, r httpapi.Request) (httpapi.Response, error) {
		if !json.Valid(r.Body) {
			return httpapi.NewProblem(http.StatusBadRequest, "The body is not JSON.", nil), nil
		}
		a, err := charge(ctx, provider, reference(lock.Key), r.Body)
		if errors.Is(err, errNotSent) {
			// 409 is not stored: the client may send this key again.
			return httpapi.NewProblem(http.StatusConflict, "The payment provider cannot be reached, and nothing was charged. Try again.", nil), nil
		}
		if err != nil {
			return httpapi.Response{}, err // the key is in doubt
		}
		return httpapi.Response{StatusCode: a.status, Header: http.Header{"Content-Type": {"application/json"}}, Body: a.body}, nil
	}
}
