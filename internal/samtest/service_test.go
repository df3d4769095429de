//go:build sam

package samtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
)

// service is functions that run, and the HTTP API before them.
type service struct {
	lambda *lambda.Client
	names  map[string]string // logical id -> name; nil: the ids are the names

	api  string // URL
	sign func(context.Context, *http.Request, []byte) error
}

// alias is what the template publishes each function as.
const alias = "live"

// httpClient waits longer than any function runs, and changes nothing.
var httpClient = &http.Client{
	Timeout:       90 * time.Second,
	Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func newLambda(region, endpoint string, keys aws.CredentialsProvider) *lambda.Client {
	return lambda.New(lambda.Options{
		Region: region, Credentials: keys, BaseEndpoint: endpointOrNil(endpoint),
		HTTPClient: httpClient, Retryer: aws.NopRetryer{}, // a repeated event may have another answer
	})
}

func endpointOrNil(endpoint string) *string {
	if endpoint == "" {
		return nil
	}
	return &endpoint
}

// invoke runs an event and fails where the function fails against expectation, or
// does not fail.
func (s *service) invoke(ctx context.Context, f fixture) (*lambda.InvokeOutput, error) {
	name, qualifier := f.function, (*string)(nil)
	if s.names != nil {
		name, qualifier = s.names[name], aws.String(alias)
	}
	out, err := s.lambda.Invoke(ctx, &lambda.InvokeInput{FunctionName: &name, Qualifier: qualifier, Payload: f.Event})
	if _, throttled := errors.AsType[*types.TooManyRequestsException](err); throttled {
		err = fmt.Errorf("%w (a run has up to %d invocations at once, and new accounts have a concurrency of 10)", err, burstSize)
	}
	if err != nil {
		return nil, err
	}
	if (out.FunctionError != nil) != f.fails() {
		return nil, fmt.Errorf("X-Amz-Function-Error is %q; the answer is %.300s", aws.ToString(out.FunctionError), out.Payload)
	}
	return out, nil
}

// once is invoke for who wants the answer alone.
func (s *service) once(ctx context.Context, f fixture) ([]byte, error) {
	out, err := s.invoke(ctx, f)
	if err != nil {
		return nil, err
	}
	return out.Payload, nil
}

// response is what a client of the HTTP API gets.
type response struct {
	status int
	header http.Header
	body   []byte
}

// call sends a request to the HTTP API, with its path as it is.
func (s *service) call(ctx context.Context, r request) (response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, s.api+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return response{}, err
	}
	maps.Copy(req.Header, r.Header)
	if s.sign != nil {
		if err := s.sign(ctx, req, r.Body); err != nil {
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
