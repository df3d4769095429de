package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/lambdalock/lambdalock/lockstore/internal/beside"
)

// grace is for how long a call waits for its client after the end of its context. Only
// an answer of the client shows that a request had no connection, so that nothing was
// sent.
const grace = 30 * time.Millisecond

// call calls a method of the client. It returns at most grace after the end of the
// context, whatever the client does. Each function that sends something calls it: update, table.read, List, Check and describe.
func call[In any, Out comparable](ctx context.Context, method func(context.Context, In, ...func(*dynamodb.Options)) (Out, error), in In, opts ...func(*dynamodb.Options)) (out Out, seen attempts, err error) {
	if err := ctx.Err(); err != nil {
		return out, attempts{watched: true}, err
	}
	var w watcher
	none := out
	out, err = beside.DoFor(ctx, grace, func() (Out, error) {
		defer func() {
			if p := recover(); p != nil {
				panic(fmt.Sprintf("dynamostore: the client panicked: %v\n\n%s", p, debug.Stack()))
			}
		}()
		growStack(0)
		return method(ctx, in, append([]func(*dynamodb.Options){w.option}, opts...)...)
	})
	if err == nil && out == none {
		err = errors.New("the client returned neither an answer nor an error")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = true
	return out, w.seen, err
}

// attempts counts the requests that one call has sent.
type attempts struct {
	watched bool // the client counts its attempts
	sent    int  // attempts that may have left this machine
	refused int  // of these, the attempts that DynamoDB has certainly not applied

	throttled bool  // one of them was throttled
	last      error // of the last attempt
}

// ambiguous reports whether a request of a call that failed may have been applied. update and explain call it.
func (a attempts) ambiguous() bool { return !a.watched || a.sent > a.refused }

// watcher sees each attempt of one call after its signature, just before it is sent. The
// call's last error is not enough. The first attempt may have been applied and its reply
// lost, before the last attempt was refused. And most errors do not say whether anything
// was sent.
type watcher struct {
	mu   sync.Mutex
	seen attempts
	done bool // the call has returned, and may have said that nothing was sent
}

// option is an option of a call. A client that sends in another way than the SDK builds
// no stack: then watched stays false. call passes it to the method of the client.
func (w *watcher) option(o *dynamodb.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen.watched = true
		return stack.Finalize.Add(middleware.FinalizeMiddlewareFunc("lambdalock attempts", w.attempt), middleware.After)
	})
}

// attempt sends one attempt, and counts it. It changes seen, with mu. The client calls it for each attempt, maybe also when call has returned.
func (w *watcher) attempt(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
	w.mu.Lock()
	done := w.done
	w.seen.sent++
	w.mu.Unlock()
	if done {
		return middleware.FinalizeOutput{}, middleware.Metadata{}, errors.New("the call has already returned")
	}
	var asked, connected atomic.Bool // some transports set neither
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	out, metadata, err := next.HandleFinalize(ctx, in)
	_, conflict := errors.AsType[*types.ConditionalCheckFailedException](err)
	_, answered := errors.AsType[smithy.APIError](err)
	_, class := classify(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.throttled, w.seen.last = w.seen.throttled || throttled(err), err
	switch {
	case err == nil:
	case asked.Load() && !connected.Load():
		w.seen.sent--
	case conflict, class != nil && (answered || !connected.Load()): // TLS may also fail after the request was sent
		w.seen.refused++
	}
	return out, metadata, err
}

// yields is an option of a call that is not sent again if it is throttled. update passes it to call for a write that yields.
func yields(o *dynamodb.Options) {
	if r, ok := o.Retryer.(aws.RetryerV2); ok {
		o.Retryer = onceThrottled{r}
	}
}

type onceThrottled struct{ aws.RetryerV2 }

func (r onceThrottled) IsErrorRetryable(err error) bool {
	return !throttled(err) && r.RetryerV2.IsErrorRetryable(err)
}

// growStack makes room at once on the stack of a new goroutine for all that the SDK calls. Otherwise the stack grows in
// steps, and each step copies it: that was half of the processor time that a call took besides the SDK's own. call calls it.
//
//go:noinline
func growStack(i int) byte {
	var room [29 << 10]byte
	return room[i]
}
