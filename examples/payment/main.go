// Command payment is a sample of httpapi.Once: POST /payments charges a card through a payment
// provider. A JWT authorizer of API Gateway has checked the caller. The client sends the
// header Idempotency-Key, and a repeat gets the first answer.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

func main() {
	g := boot.MustGuardFromEnv(dynamostore.Opener)
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
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.JoinPath("charges").String(), bytes.NewReader(r.Body))
		if err != nil {
			return httpapi.Response{}, idempotency.NoEffect(err)
		}
		request.Header.Set("Idempotency-Key", reference(lock.Key))
		response, err := http.DefaultClient.Do(request)
		if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
			// No connection, so no charge. 409 is not stored: the client may send this key again.
			return httpapi.NewProblem(http.StatusConflict, "The payment provider cannot be reached, and nothing was charged. Try again.", nil), nil
		}
		if err != nil {
			return httpapi.Response{}, err // the request may have arrived: the key is in doubt
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return httpapi.Response{}, err
		}
		if response.StatusCode >= 500 {
			return httpapi.Response{}, fmt.Errorf("the provider answered %s", response.Status)
		}
		return httpapi.Response{StatusCode: response.StatusCode, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
	}
}
