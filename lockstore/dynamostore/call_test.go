package dynamostore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// A call that fails before anything left this machine has no unknown outcome. The error of a context that ends before there is a
// connection would not say so.
func TestNothingSent(t *testing.T) {
	noRole := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{}, errors.New("no role was found")
	})
	theirs := func(code string) func(*dynamodb.Options) { // the answer of a service for credentials
		return func(o *dynamodb.Options) {
			o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{}, &smithy.OperationError{ServiceID: "SSO", OperationName: "GetRoleCredentials", Err: &smithy.GenericAPIError{Code: code, Message: "no key element"}}
			})
		}
	}
	refusesAfter := func(d time.Duration) func(*dynamodb.Options) {
		dial := func(context.Context, string, string) (net.Conn, error) {
			pass(d)
			return nil, errRefused
		}
		return func(o *dynamodb.Options) { o.HTTPClient = &http.Client{Transport: &http.Transport{DialContext: dial}} }
	}
	for name, tc := range map[string]struct {
		change func(*dynamodb.Options)
		says   string
	}{
		"F71 no credentials": {func(o *dynamodb.Options) { o.Credentials = noRole }, "no role was found"},
		"F71 no role":        {theirs("ResourceNotFoundException"), "no key element"},
		"F71 no such role":   {theirs("ValidationException"), "no key element"},
		"F71 role throttled": {theirs("ThrottlingException"), "no key element"},
		"F21 no region":      {func(o *dynamodb.Options) { o.Region, o.BaseEndpoint = "", nil }, "Invalid Configuration: Missing Region"},
		"F21 no answer":      {refusesAfter(time.Hour), context.DeadlineExceeded.Error()},
		"F21 refused slowly": {refusesAfter(400 * time.Millisecond), context.DeadlineExceeded.Error()},
	} {
		bubble(t, name, func(t *testing.T) {
			service := fakedynamo.New(table)
			s := newStoreOver(t, dynamodb.New(dynamostore.ClientOver(service, fakeEndpoint).Options(), tc.change), 0, dynamostore.Options{})
			for method, call := range allMethods(s) {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				err := call(ctx)
				cancel()
				require.ErrorIs(t, err, lockstore.ErrUnavailable, method)
				require.NotErrorIs(t, err, lockstore.ErrCorrupt, method)
				require.ErrorContains(t, err, "nothing was sent", method)
				require.ErrorContains(t, err, tc.says, method)
			}
			require.Zero(t, service.Requests())
			pass(time.Hour) // for the goroutines of a transport
		})
	}
}

// DynamoDB refuses the first attempt, and the credentials of the second one are refused by another service. What that one says is not about the table.
func TestCredentialsRefusedAfterAnAttempt(t *testing.T) {
	bubble(t, "F31 F71", func(t *testing.T) {
		service := fakedynamo.New(table)
		creds := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			if service.Requests() > 0 {
				return aws.Credentials{}, &smithy.GenericAPIError{Code: "ResourceNotFoundException", Message: "no role was found"}
			}
			return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
		})
		service.Fault = always(throttled)
		client := dynamodb.New(dynamostore.ClientOver(service, fakeEndpoint).Options(), func(o *dynamodb.Options) { o.Credentials = creds })
		_, err := newStoreOver(t, client, 0, dynamostore.Options{}).Acquire(t.Context(), request(time.Minute))
		require.ErrorIs(t, err, lockstore.ErrUnavailable)
		require.NotErrorIs(t, err, lockstore.ErrCorrupt)
		require.ErrorContains(t, err, "each attempt was refused")
		require.ErrorContains(t, err, "no role was found")
		require.Equal(t, 1, service.Requests())
	})
}

// The reply to the first attempt is lost, and the second attempt finds no credentials. Their error matches ErrUnavailable, as that of the
// credentials endpoint does, and the error of the call must not: the first attempt was applied.
func TestNoCredentialsAfterALostReply(t *testing.T) {
	for _, counted := range []bool{true, false} {
		bubble(t, fmt.Sprint("F22 F71 attempts are counted ", counted), func(t *testing.T) {
			service, sent := fakedynamo.New(table), 0
			creds := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				if sent > 0 {
					return aws.Credentials{}, fmt.Errorf("%w: no role was found", lockstore.ErrUnavailable)
				}
				return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
			})
			sdk := dynamodb.New(dynamostore.ClientOver(service, fakeEndpoint).Options(), func(o *dynamodb.Options) { o.Credentials = creds })
			client := dynamostore.API(sdk)
			if !counted {
				client = ownSender{Client: sdk}
			}
			s := newStoreOver(t, client, 0, dynamostore.Options{})
			inspected(t, s) // the first request of a process learns the time
			service.Fault = func(fakedynamo.Request) fakedynamo.Fault {
				sent++
				return fakedynamo.Fault{LoseReply: errReset}
			}
			_, err := s.Acquire(t.Context(), request(time.Minute))
			require.True(t, isUnknown(err), "%v", err)
			require.ErrorContains(t, err, "no role was found")
			require.Equal(t, 1, sent)
			require.NotNil(t, service.Row(key)["owner"], "the first attempt was applied")
		})
	}
}

// The server reads the request, and then something breaks the TLS stream. The request may have been applied.
func TestTLSThatBreaksAfterTheRequest(t *testing.T) {
	for breaks, says := range map[string]string{"no TLS": "tls: received record with version", "HTTP/1.1 502 Bad Gateway": http.ErrSchemeMismatch.Error()} {
		var arrived atomic.Int64
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			assert.NoError(t, err)
			arrived.Add(1)
			c, _, err := http.NewResponseController(w).Hijack()
			if assert.NoError(t, err) {
				_, err = c.(*tls.Conn).NetConn().Write([]byte(breaks))
				assert.NoError(t, err)
				assert.NoError(t, c.(*tls.Conn).NetConn().Close())
			}
		}))
		s := newStoreOver(t, dynamostore.ClientOver(server.Client().Transport, server.URL), 0, dynamostore.Options{})
		err := s.Release(t.Context(), lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1})
		server.Close()
		require.True(t, isUnknown(err), "F22: %v", err)
		require.ErrorContains(t, err, says)
		require.Positive(t, arrived.Load())
	}
}

// ownSender is a client that sends in its own way, like the client of a cache for DynamoDB. It drops the store's
// options, or takes them and does not use them.
type ownSender struct {
	*dynamodb.Client
	takes bool
}

func (c ownSender) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, options ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	for _, option := range options {
		if c.takes {
			option(&dynamodb.Options{})
		}
	}
	return c.Client.UpdateItem(ctx, in)
}

func (c ownSender) GetItem(ctx context.Context, in *dynamodb.GetItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	return c.Client.GetItem(ctx, in)
}

// If the store cannot count the attempts of a client, an attempt may have been applied,
// whatever the last error is.
func TestClientWhoseAttemptsAreNotCounted(t *testing.T) {
	for _, takes := range []bool{false, true} {
		bubble(t, fmt.Sprint("F22 F77 takes options ", takes), func(t *testing.T) {
			service := fakedynamo.New(table)
			s := newStoreOver(t, ownSender{dynamostore.ClientOver(service, fakeEndpoint), takes}, 0, dynamostore.Options{})
			service.Fault = afterALostReply(throttled)
			req := request(time.Minute)
			_, err := s.Acquire(t.Context(), req)
			require.True(t, isUnknown(err), "%v", err)
			require.ErrorContains(t, err, "does not show what it has sent")
			require.NotNil(t, rowsOf(service).get(t, key)["owner"])
			_, err = s.Inspect(t.Context(), key)
			require.ErrorIs(t, err, lockstore.ErrUnavailable)

			service.Fault = nil
			lease := acquired(t, s, req)
			isRefused(t, s, request(time.Minute))
			lease.Owner = lockstore.NewOwner()
			require.True(t, isUnknown(s.Release(t.Context(), lease)), "an earlier attempt may have released the lease")
			lease.Owner = req.Owner
			require.NoError(t, s.Release(t.Context(), lease))
		})
	}
}

// hangs is a transport that ignores the end of a context. It answers when until is closed.
type hangs struct {
	until chan struct{}
	sent  atomic.Int64
}

func (h *hangs) RoundTrip(*http.Request) (*http.Response, error) {
	h.sent.Add(1)
	<-h.until
	return nil, errors.New("too late")
}

// Each call ends with its context, even if the client does not. The error says that
// nothing was sent only if that is true.
func TestCallsEndWithTheirContext(t *testing.T) {
	const within = 50 * time.Millisecond
	for name, unsent := range map[string]bool{
		"a transport that hangs":                  false,
		"a client whose attempts are not counted": false,
		"before the request is sent":              true,
	} {
		bubble(t, "F28 "+name, func(t *testing.T) {
			n := &hangs{until: make(chan struct{})}
			sdk := dynamostore.ClientOver(n, fakeEndpoint)
			client := dynamostore.API(sdk)
			switch {
			case unsent:
				client = dynamodb.New(sdk.Options(), dynamodb.WithAPIOptions(func(stack *middleware.Stack) error {
					return stack.Finalize.Add(middleware.FinalizeMiddlewareFunc("hangs", func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
						<-n.until
						return next.HandleFinalize(ctx, in)
					}), middleware.After)
				}))
			case name != "a transport that hangs":
				client = ownSender{Client: sdk}
			}
			for method, call := range allMethods(newStoreOver(t, client, 0, dynamostore.Options{})) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				start := time.Now()
				err := call(ctx)
				cancel()
				took := time.Since(start)
				require.GreaterOrEqual(t, took, time.Second, method)
				require.LessOrEqual(t, took, time.Second+within, method)
				require.ErrorIs(t, err, context.DeadlineExceeded, method)
				if unsent || method != "release" { // the others begin with a read: the store knows no time and no lease
					require.ErrorIs(t, err, lockstore.ErrUnavailable, method)
				} else {
					require.True(t, isUnknown(err), "%s: %v", method, err)
				}
			}
			close(n.until)
			synctest.Wait()
			if unsent {
				require.Zero(t, n.sent.Load(), "the error said that nothing was sent, so nothing is sent later")
			}
		})
	}
}

// brokenClient is a client whose UpdateItem panics, or returns neither an answer nor an
// error.
type brokenClient struct {
	dynamostore.API
	end func()
}

func (c brokenClient) UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	c.end()
	return nil, nil
}

func TestClientThatBreaksItsPromise(t *testing.T) {
	release := func(end func()) error {
		s := newStoreOver(t, brokenClient{end: end}, 0, dynamostore.Options{})
		return s.Release(t.Context(), lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1})
	}
	for _, end := range []func(){func() {}, runtime.Goexit} {
		err := release(end)
		require.True(t, isUnknown(err))
		require.ErrorContains(t, err, "neither an answer nor an error")
	}
	defer func() {
		p := recover()
		require.Contains(t, p, "the client panicked: on purpose", "the panic is in the caller's goroutine, where it can be recovered")
		require.Contains(t, p, "call_test.go", "the panic says where it began")
	}()
	_ = release(func() { panic("on purpose") })
}

// allMethods are the methods that send a request.
func allMethods(s *dynamostore.Store) map[string]func(context.Context) error {
	all := methods(s, lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1})
	all["Check"] = func(ctx context.Context) error {
		_, err := s.Check(ctx)
		return err
	}
	return all
}
