package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
)

// errNotSent: the provider cannot have seen the request, so nothing was charged.
var errNotSent = errors.New("the payment provider was not reached")

// client follows no redirect: it would send the charge again, to another address.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

const maxAnswerBytes = 64 << 10

// answer is what the provider said of a charge: that it was made, or that it was refused.
type answer struct {
	status int
	body   []byte
}

// charge sends one request. reference is the key under which the provider keeps the charge. An error that is
// not errNotSent means that nobody knows whether the charge was made.
func charge(ctx context.Context, provider *url.URL, reference string, body []byte) (answer, error) {
	connected := false // without a connection nothing was sent
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.JoinPath("charges").String(), bytes.NewReader(body))
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", errNotSent, err)
	}
	request.Header.Set("Idempotency-Key", reference)
	// With this header and GetBody net/http sends a request again by itself when a connection closes, and returns the
	// error of the second request only.
	request.GetBody = nil
	response, err := client.Do(request)
	if err != nil && !connected {
		return answer{}, fmt.Errorf("%w: %w", errNotSent, err)
	}
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	switch code := response.StatusCode; {
	case code >= 200 && code < 300:
	case code == http.StatusBadRequest, code == http.StatusPaymentRequired, code == http.StatusUnprocessableEntity:
		// By the provider's documentation these refuse the charge for good.
	default:
		// Also 409 and 429: an earlier request may be at work, or a proxy may have answered. If your provider documents
		// an answer after which nothing was and will be charged, return errNotSent for it.
		return answer{}, fmt.Errorf("the provider answered %s", response.Status)
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, response.Body, maxAnswerBytes))
	return answer{response.StatusCode, text}, err
}
