//go:build sam

package samtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"time"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
)

// service is functions that run, and the HTTP API before them.
type service struct {
	lambda string            // URL of Lambda's API
	api    string            // URL of the HTTP API
	names  map[string]string // logical id -> name; nil: the ids are the names
	sign   signer
}

// signer signs a request to one of AWS's services; nil signs none.
type signer func(ctx context.Context, service string, r *http.Request, body []byte) error

// alias is what the template publishes each function as.
const alias = "live"

// httpClient waits longer than any function runs, and changes nothing.
var httpClient = &http.Client{
	Timeout:       90 * time.Second,
	Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// request is what a client of the HTTP API sends.
type request struct {
	Method, Path string
	Header       http.Header
	Body         []byte
}

// response is what a client gets.
type response struct {
	status int
	header http.Header
	body   []byte
}

// send sends a request to one of AWS's services, with its path as it is.
func (sign signer) send(ctx context.Context, service, base string, r request) (response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, base+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return response{}, err
	}
	maps.Copy(req.Header, r.Header)
	if sign != nil {
		if err := sign(ctx, service, req, r.Body); err != nil {
			return response{}, err
		}
	}
	got, err := httpClient.Do(req)
	if err != nil {
		return response{}, err
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	return response{got.StatusCode, got.Header, body}, err
}

// once runs an event and returns the function's answer, also an error.
func (s *service) once(ctx context.Context, f fixture) ([]byte, error) {
	path := f.function + "/invocations"
	if s.names != nil {
		path = s.names[f.function] + "/invocations?Qualifier=" + alias
	}
	got, err := s.sign.send(ctx, "lambda", s.lambda, request{Method: http.MethodPost, Path: "/2015-03-31/functions/" + path, Body: f.Event})
	switch {
	case err != nil:
		return nil, err
	case got.status == http.StatusTooManyRequests:
		return nil, fmt.Errorf("%s (new accounts have a concurrency of 10)", got.body)
	case got.status >= http.StatusInternalServerError || got.status == http.StatusOK && len(got.body) == 0:
		return nil, fmt.Errorf("no answer of the function: status %d: %s", got.status, got.body)
	case got.status != http.StatusOK:
		return nil, fmt.Errorf("%s: status %d: %s", path, got.status, got.body)
	}
	return got.body, nil
}

// call sends a request to the HTTP API.
func (s *service) call(ctx context.Context, r request) (response, error) {
	return s.sign.send(ctx, "execute-api", s.api, r)
}

// patiently asks again, a few times, while the answer is that the store did not answer in time and nothing was begun. A
// busy machine has such answers, and a client asks again after them.
func patiently[T any](ctx context.Context, ask func() (T, error), slow func(T) bool) (got T, err error) {
	for range 10 {
		if got, err = ask(); err != nil || !slow(got) || ctx.Err() != nil {
			break
		}
	}
	return got, err
}

// slow says that a function's answer is one of a store that did not answer in time.
func slow(answer []byte) bool {
	var a struct {
		StatusCode int
		ErrorType  string
	}
	_ = json.Unmarshal(answer, &a) // what is no JSON is no such answer
	return a.StatusCode == http.StatusServiceUnavailable || a.ErrorType == "LockStoreUnavailable" || a.ErrorType == "LockNoTime"
}

func (r response) slow() bool { return r.status == http.StatusServiceUnavailable }

// same compares the response with the answer that the function gives for its
// request. There may be more headers.
func (r response) same(want []byte) error {
	var answer struct {
		StatusCode int
		Headers    map[string]string
		Body       string
	}
	if err := json.Unmarshal(want, &answer); err != nil {
		return err
	}
	if r.status != answer.StatusCode {
		return fmt.Errorf("want status %d\n     got  %d %s", answer.StatusCode, r.status, r.body)
	}
	for name, value := range answer.Headers {
		if got := r.header.Get(name); !eventfiles.SameText(value, got) {
			return fmt.Errorf("want %s: %s\n     got  %q", name, value, got)
		}
	}
	if !eventfiles.SameText(answer.Body, string(r.body)) {
		return fmt.Errorf("want %s\n     got  %s", answer.Body, r.body)
	}
	return nil
}
