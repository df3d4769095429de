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

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
)

// grace is for how long a call waits, after its context has ended, for a client
// that ends soon: a request that never had a connection has sent nothing, which
// only its end shows.
const grace = 30 * time.Millisecond

// call calls a method of the client and returns grace after the context's end at
// the latest, whatever the client does.
func call[In any, Out comparable](ctx context.Context, method func(context.Context, In, ...func(*dynamodb.Options)) (Out, error), in In) (out Out, seen attempts, err error) {
	if err := ctx.Err(); err != nil {
		return out, attempts{watched: true}, err
	}
	type answer struct {
		out      Out
		err      error
		panicked string
	}
	var w watcher
	done := make(chan answer, 1)
	go func() {
		a := answer{err: errors.New("the client ended its goroutine")}
		defer func() {
			if p := recover(); p != nil {
				a.panicked = fmt.Sprintf("dynamostore: the client panicked: %v\n\n%s", p, debug.Stack())
			}
			done <- a
		}()
		a.out, a.err = method(ctx, in, w.option)
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case a = <-done:
		case <-timer.C:
			a.err = fmt.Errorf("the client did not end with its context: %w", ctx.Err())
		}
	}
	seen = w.close()
	if a.panicked != "" {
		panic(a.panicked)
	}
	if a.err == nil && a.out == out {
		a.err = errors.New("the client returned neither an answer nor an error")
	}
	return a.out, seen, a.err
}

// attempts is what is known of the requests that one call has sent.
type attempts struct {
	watched bool // the client counts its attempts
	sent    int  // attempts that may have left this machine
	refused int  // those of them that the service has certainly not applied
}

// unsure reports whether a request of a call that failed may have been applied.
func (a attempts) unsure() bool { return !a.watched || a.sent > a.refused }

// watcher sees each attempt of one call behind its signature, where only sending
// is left to do. The last error alone would not do: a first attempt that was
// applied and lost its reply can be followed by one that was certainly refused,
// and most errors do not say whether anything was sent.
type watcher struct {
	mu     sync.Mutex
	seen   attempts
	closed bool
}

// option is an option of a call. A client that takes it and sends in another way
// than the SDK builds no stack, and so counts as one that was not watched.
func (w *watcher) option(o *dynamodb.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen.watched = true
		return stack.Finalize.Add(w, middleware.After)
	})
}

// ID implements middleware.FinalizeMiddleware.
func (w *watcher) ID() string { return "lambdalock attempts" }

// HandleFinalize implements middleware.FinalizeMiddleware.
func (w *watcher) HandleFinalize(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
	if !w.send() {
		return middleware.FinalizeOutput{}, middleware.Metadata{}, errors.New("the call has already returned")
	}
	var asked, connected atomic.Bool // not every transport tells
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	out, metadata, err := next.HandleFinalize(ctx, in)
	_, conflict := errors.AsType[*types.ConditionalCheckFailedException](err)
	_, class := classify(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
	case asked.Load() && !connected.Load():
		w.seen.sent--
	case class != nil || conflict:
		w.seen.refused++
	}
	return out, metadata, err
}

// send counts an attempt, or forbids it: a call that has returned may have said
// that nothing was sent.
func (w *watcher) send() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.seen.sent++
	}
	return !w.closed
}

// close returns what was seen until now; nothing is sent after it.
func (w *watcher) close() attempts {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return w.seen
}
