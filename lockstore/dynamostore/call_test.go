package dynamostore_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore/internal/fakedynamo"
)

// A call that fails before anything left this machine has no unknown outcome.
func TestNothingSent(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*dynamodb.Options)
		says   string
	}{
		"F71 no credentials": {
			change: func(o *dynamodb.Options) {
				o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
					return aws.Credentials{}, errors.New("no role was found")
				})
			},
			says: "no role was found",
		},
		"F21 no region": {
			change: func(o *dynamodb.Options) { o.Region, o.BaseEndpoint = "", nil },
			says:   "Invalid Configuration: Missing Region",
		},
	} {
		bubble(t, name, func(t *testing.T) {
			service := fakedynamo.New(table)
			client := dynamodb.New(dynamostore.ClientOver(service, fakeEndpoint, 0).Options(), tc.change)
			s, err := dynamostore.New(client, table, dynamostore.Options{})
			require.NoError(t, err)
			for method, call := range allMethods(s) {
				err := call(t.Context())
				require.ErrorIs(t, err, lockstore.ErrUnavailable, method)
				require.ErrorContains(t, err, "nothing was sent", method)
				require.ErrorContains(t, err, tc.says, method)
			}
			require.Zero(t, service.Requests())
		})
	}
}

// ignoresOptions is a wrapper that does not pass the store's options on.
type ignoresOptions struct{ *dynamodb.Client }

func (c ignoresOptions) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	return c.Client.UpdateItem(ctx, in)
}

func (c ignoresOptions) GetItem(ctx context.Context, in *dynamodb.GetItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	return c.Client.GetItem(ctx, in)
}

// ownSender is a client that takes the options but sends in its own way, like the client
// of a cache for DynamoDB.
type ownSender struct{ ignoresOptions }

func (c ownSender) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, options ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	var o dynamodb.Options
	for _, option := range options {
		option(&o)
	}
	return c.ignoresOptions.UpdateItem(ctx, in)
}

// If the store cannot count the attempts of a client, an attempt may have been applied,
// whatever the last error is.
func TestClientWhoseAttemptsAreNotCounted(t *testing.T) {
	for name, wrap := range map[string]func(*dynamodb.Client) dynamostore.API{
		"options dropped":  func(c *dynamodb.Client) dynamostore.API { return ignoresOptions{c} },
		"options not used": func(c *dynamodb.Client) dynamostore.API { return ownSender{ignoresOptions{c}} },
	} {
		open := func(t *testing.T) (*fakedynamo.Service, *dynamostore.Store) {
			service := fakedynamo.New(table)
			s, err := dynamostore.New(wrap(dynamostore.ClientOver(service, fakeEndpoint, 0)), table, dynamostore.Options{})
			require.NoError(t, err)
			return service, s
		}
		bubble(t, "F22 F77 applied, then throttled, "+name, func(t *testing.T) {
			service, s := open(t)
			service.Fault = func(r fakedynamo.Request) fakedynamo.Fault {
				if r.N == 1 {
					return fakedynamo.Fault{LoseReply: errReset}
				}
				return throttled
			}
			req := request(time.Minute)
			_, err := s.Acquire(t.Context(), req)
			require.True(t, isUnknown(err), "%v", err)
			require.ErrorContains(t, err, "does not show what it has sent")
			require.NotNil(t, fakeRows{service}.get(t, key)["owner"])
			_, err = s.Inspect(t.Context(), key)
			require.True(t, isUnknown(err), "%v", err)

			service.Fault = nil
			lease, err := s.Acquire(t.Context(), req)
			require.NoError(t, err)
			require.NoError(t, s.Release(t.Context(), lease))
		})
		bubble(t, "F25 a refused release, "+name, func(t *testing.T) {
			_, s := open(t)
			lease, err := s.Acquire(t.Context(), request(time.Minute))
			require.NoError(t, err)
			_, err = s.Acquire(t.Context(), request(time.Minute))
			require.ErrorIs(t, err, lockstore.ErrRefused)
			lease.Owner = lockstore.NewOwner()
			require.True(t, isUnknown(s.Release(t.Context(), lease)), "an earlier attempt may have released the lease")
		})
	}
}

// hangingClient is a client and a transport that ignore the end of a context. It answers
// when until is closed.
type hangingClient struct {
	until chan struct{}
	sent  atomic.Int64
}

func (c *hangingClient) wait() error {
	c.sent.Add(1)
	<-c.until
	return errors.New("too late")
}

func (c *hangingClient) RoundTrip(*http.Request) (*http.Response, error) { return nil, c.wait() }

func (c *hangingClient) UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	return nil, c.wait()
}

func (c *hangingClient) GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	return nil, c.wait()
}

func (c *hangingClient) DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error) {
	return nil, c.wait()
}

func (c *hangingClient) DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error) {
	return nil, c.wait()
}

// hangsOnSecondRead answers the first of Check's two reads.
type hangsOnSecondRead struct{ *hangingClient }

func (h hangsOnSecondRead) DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error) {
	return &dynamodb.DescribeTableOutput{Table: &types.TableDescription{}}, nil
}

// Each call ends with its context, even if the client does not. The error says that
// nothing was sent only if that is true.
func TestCallsEndWithTheirContext(t *testing.T) {
	const within = 50 * time.Millisecond
	for name, tc := range map[string]struct {
		client func(*hangingClient) dynamostore.API
		unsent bool
	}{
		"a client that hangs":      {client: func(c *hangingClient) dynamostore.API { return c }},
		"a second read that hangs": {client: func(c *hangingClient) dynamostore.API { return hangsOnSecondRead{c} }},
		"a transport that hangs":   {client: func(c *hangingClient) dynamostore.API { return dynamostore.ClientOver(c, fakeEndpoint, 0) }},
		"before the request is sent": {
			client: func(c *hangingClient) dynamostore.API {
				return dynamodb.New(dynamostore.ClientOver(c, fakeEndpoint, 0).Options(), dynamodb.WithAPIOptions(func(stack *middleware.Stack) error {
					return stack.Finalize.Add(middleware.FinalizeMiddlewareFunc("hangs", func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
						<-c.until
						return next.HandleFinalize(ctx, in)
					}), middleware.After)
				}))
			},
			unsent: true,
		},
	} {
		bubble(t, "F28 "+name, func(t *testing.T) {
			n := &hangingClient{until: make(chan struct{})}
			s, err := dynamostore.New(tc.client(n), table, dynamostore.Options{})
			require.NoError(t, err)
			for method, call := range allMethods(s) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				start := time.Now()
				err := call(ctx)
				cancel()
				took := time.Since(start)
				require.GreaterOrEqual(t, took, time.Second, method)
				require.LessOrEqual(t, took, time.Second+within, method)
				require.ErrorIs(t, err, context.DeadlineExceeded, method)
				if tc.unsent {
					require.ErrorIs(t, err, lockstore.ErrUnavailable, method)
				} else {
					require.True(t, isUnknown(err), "%s: %v", method, err)
				}
			}
			close(n.until)
			synctest.Wait()
			if tc.unsent {
				require.Zero(t, n.sent.Load(), "the error said that nothing was sent, so nothing is sent later")
			}
		})
	}
}

// A call whose context ends before it has a connection has sent nothing. The context's
// error alone would not say so.
func TestContextEndsWithoutConnection(t *testing.T) {
	for name, takes := range map[string]time.Duration{"F21 no answer": time.Hour, "F21 refused slowly": 400 * time.Millisecond} {
		bubble(t, name, func(t *testing.T) {
			transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				pass(takes)
				return nil, errRefused
			}}
			s, err := dynamostore.New(dynamostore.ClientOver(transport, fakeEndpoint, 0), table, dynamostore.Options{})
			require.NoError(t, err)
			for method, call := range allMethods(s) {
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				err := call(ctx)
				cancel()
				require.ErrorIs(t, err, lockstore.ErrUnavailable, method)
				require.ErrorIs(t, err, context.DeadlineExceeded, method)
				require.ErrorContains(t, err, "nothing was sent", method)
			}
			pass(takes) // for the goroutines of the transport
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
		s, err := dynamostore.New(brokenClient{end: end}, table, dynamostore.Options{})
		require.NoError(t, err)
		return s.Release(t.Context(), lockstore.Lease{Key: key, Owner: lockstore.NewOwner(), Fence: 1})
	}
	err := release(func() {})
	require.True(t, isUnknown(err))
	require.ErrorContains(t, err, "neither an answer nor an error")
	err = release(runtime.Goexit)
	require.True(t, isUnknown(err))
	require.ErrorContains(t, err, "ended its goroutine")
	defer func() {
		p := recover()
		require.Contains(t, p, "the client panicked: on purpose", "the panic is in the caller's goroutine, where it can be recovered")
		require.Contains(t, p, "call_test.go", "the panic says where it began")
	}()
	_ = release(func() { panic("on purpose") })
}

func TestZeroStore(t *testing.T) {
	for method, call := range allMethods(&dynamostore.Store{}) {
		require.ErrorIs(t, call(t.Context()), lockstore.ErrInvalid, method)
	}
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
