package httpapi_test

import (
	"context"
	"fmt"
	"log"

	"github.com/aws/aws-lambda-go/events"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

func newGuard() *guard.Guard {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return g
}

func deposit(_ context.Context, lock guard.Lock, r httpapi.Request) (httpapi.Response, error) {
	// Write lock.Fence with the balance, and let the database refuse a smaller one.
	fmt.Println("deposit", r.Body)
	return httpapi.Response{StatusCode: 201, Body: r.Body}, nil
}

// Only one request of an account is in the handler at a time. While somebody else has the lock, the answer is
// a 409 with Retry-After.
func ExampleWrap() {
	g := newGuard()
	key := func(_ context.Context, r httpapi.Request) (string, error) {
		return lockstore.Key("account", r.PathParameters["account"]), nil
	}
	handler := httpapi.Wrap(g, key, deposit) // for boot.Start
	request := httpapi.Request{PathParameters: map[string]string{"account": "7"}, Body: "30"}

	response, err := handler.Handle(context.Background(), request)
	fmt.Println(response.StatusCode, err)
	err = g.Do(context.Background(), "account/7", func(ctx context.Context, _ guard.Lock) error {
		response, err := handler.Handle(context.Background(), request)
		fmt.Println(response.StatusCode, response.Headers["Retry-After"] != "", err)
		return nil
	})
	fmt.Println(err)
	// Output:
	// deposit 30
	// 201 <nil>
	// 409 true <nil>
	// <nil>
}

// A request that comes again with the same header Idempotency-Key gets the first answer.
func ExampleOnce() {
	once, err := idempotency.New(newGuard(), idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	caller := func(_ context.Context, r httpapi.Request) (string, error) {
		return r.RequestContext.Authorizer.JWT.Claims["sub"], nil
	}
	handler := httpapi.Once(once, httpapi.OnceOptions{Caller: caller}, deposit) // for boot.Start
	request := httpapi.Request{Headers: map[string]string{"idempotency-key": "k1"}, Body: "30", RawPath: "/deposits"}
	request.RequestContext.HTTP.Method = "POST"
	request.RequestContext.Authorizer = &events.APIGatewayV2HTTPRequestContextAuthorizerDescription{
		JWT: &events.APIGatewayV2HTTPRequestContextAuthorizerJWTDescription{Claims: map[string]string{"sub": "ada"}},
	}
	for range 2 {
		response, err := handler.Handle(context.Background(), request)
		fmt.Println(response.StatusCode, response.Body, err)
	}
	// Output:
	// deposit 30
	// 201 30 <nil>
	// 201 30 <nil>
}

// The answer of a handler that takes its locks itself.
func ExampleProblem() {
	g := newGuard()
	handler := guard.TakesOwnLocks(func(ctx context.Context, r httpapi.Request) (httpapi.Response, error) {
		err := g.Do(ctx, "", func(context.Context, guard.Lock) error { return nil })
		if response, ok := httpapi.Problem(err); ok {
			return response, nil
		}
		return httpapi.Response{StatusCode: 200}, err
	})
	response, err := handler.Handle(context.Background(), httpapi.Request{})
	fmt.Println(response.StatusCode, response.Headers["Content-Type"], err)
	// Output: 400 application/problem+json <nil>
}
