package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

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
	fmt.Println("deposit", string(r.Body))
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
	request := httpapi.Request{PathParameters: map[string]string{"account": "7"}, Body: []byte("30")}

	response, err := handler.Handle(context.Background(), request)
	fmt.Println(response.StatusCode, err)
	err = g.Do(context.Background(), "account/7", func(ctx context.Context, _ guard.Lock) error {
		response, err := handler.Handle(context.Background(), request)
		fmt.Println(response.StatusCode, response.Header.Get("Retry-After") != "", err)
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
	handler := httpapi.Once(once, httpapi.OnceOptions{}, deposit) // for boot.Start
	var request httpapi.Request                                   // as an HTTP API with a JWT authorizer sends it
	err = json.Unmarshal([]byte(`{
		"version": "2.0", "routeKey": "POST /deposits", "rawPath": "/deposits", "body": "30",
		"headers": {"idempotency-key": "k1"},
		"requestContext": {
			"apiId": "a1", "http": {"method": "POST"},
			"authorizer": {"jwt": {"claims": {"iss": "https://id.example.com", "sub": "ada"}}}
		}
	}`), &request)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(request.Caller)
	for range 2 {
		response, err := handler.Handle(context.Background(), request)
		fmt.Println(response.StatusCode, string(response.Body), err)
	}
	// Output:
	// https://id.example.com#ada
	// deposit 30
	// 201 30 <nil>
	// 201 30 <nil>
}

// The answer of a handler that takes its locks itself.
func ExampleProblem() {
	g := newGuard()
	handler := guard.WrapUnlocked(func(ctx context.Context, r httpapi.Request) (httpapi.Response, error) {
		err := g.Do(ctx, "", func(context.Context, guard.Lock) error { return nil })
		if response, ok := httpapi.Problem(err); ok {
			return response.For(r), nil
		}
		return httpapi.Response{StatusCode: 200}.For(r), err
	})
	response, err := handler.Handle(context.Background(), httpapi.Request{})
	fmt.Println(response.StatusCode, response.Header.Get("Content-Type"), err)
	// Output: 400 application/problem+json <nil>
}
