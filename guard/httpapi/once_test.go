package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

// onceAPI is a guarded API that counts how often its handler runs.
type onceAPI struct {
	t      *testing.T
	store  *lockstore.Store
	handle guard.Wrapped[Request, Response]
	runs   int
	answer Response
	err    error
	lock   guard.Lock
	report guard.Report
}

func newOnceAPI(t *testing.T, inDoubt idempotency.Doubt, opt OnceOptions) *onceAPI {
	t.Helper()
	a := &onceAPI{t: t, store: memstore.New(nil), answer: Response{StatusCode: http.StatusCreated}}
	g, err := guard.New(a.store, guard.Options{Observe: func(_ context.Context, r guard.Report) { a.report = r }})
	require.NoError(t, err)
	o, err := idempotency.New(g, idempotency.Options{InDoubt: inDoubt})
	require.NoError(t, err)
	if opt.Caller == nil {
		opt.Caller = AnyCaller
	}
	if opt.Key != nil {
		opt.Lock = g
	}
	a.handle = Once(o, opt, func(_ context.Context, lock guard.Lock, _ Request) (Response, error) {
		a.runs++
		a.lock = lock
		return a.answer, a.err
	})
	return a
}

func post(key, body string) Request {
	in := Request{Method: "POST", Route: "POST /payments", URL: url.URL{Path: "/payments"}, Body: []byte(body), Header: http.Header{}}
	if key != "" {
		in.Header.Set("Idempotency-Key", key)
	}
	return in
}

func (a *onceAPI) send(in Request) Response {
	a.t.Helper()
	answer, err := a.handle.Handle(context.Background(), in)
	require.NoError(a.t, err)
	return answer
}

func TestOnceReplays(t *testing.T) {
	a := newOnceAPI(t, idempotency.AtLeastOnce, OnceOptions{})
	a.answer = Response{StatusCode: 201, Header: http.Header{"Location": {"/payments/1"}, "set-cookie": {"session=secret"}, "Set-Cookie": {"c=d"}, "Warning": {"1", "2"}},
		Body: []byte{0, 255, '\n'}}
	first := a.send(post("k1", `{"amount":7}`))
	require.Equal(t, a.answer, first, "the first answer is the handler's, with its cookies")
	for range 2 {
		again := a.send(post(`"k1"`, `{"amount":7}`))
		require.Equal(t, Response{StatusCode: 201, Header: http.Header{"Location": {"/payments/1"}, "Idempotent-Replayed": {"true"}, "Warning": {"1", "2"}}, Body: first.Body}, again)
	}
	require.Equal(t, 1, a.runs)
	require.Equal(t, guard.Outcome("replayed"), a.report.Outcome)
	_, err := a.store.Acquire(t.Context(), lockstore.Request{Key: a.lock.Key, Owner: "another", TTL: time.Minute})
	refused, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok)
	require.Equal(t, lockstore.Completed, refused.State)
	require.Contains(t, string(refused.Result), "/payments/1")
	require.NotContains(t, string(refused.Result), "session=secret", "the store has no cookies")
}

// several is an error type that == cannot compare.
type several []error

func (e several) Error() string { return "several" }

// Other errors than those of the Once and its locks go to Lambda as they are.
func TestOnceErrors(t *testing.T) {
	own := errors.New("own")
	busy := &guard.LockBusy{Key: "another"}
	for name, c := range map[string]struct {
		err     error
		want    error
		inDoubt idempotency.Doubt
		runs    int // of two requests
	}{
		"AtLeastOnce":                       {own, own, idempotency.AtLeastOnce, 2},
		"AtMostOnce":                        {own, own, idempotency.AtMostOnce, 1},
		"AtMostOnce, no effect":             {idempotency.NoEffect(own), own, idempotency.AtMostOnce, 2},
		"the busy lock of somebody else's":  {busy, busy, idempotency.AtLeastOnce, 2},
		"the same, and it is known as such": {idempotency.NoEffect(busy), busy, idempotency.AtMostOnce, 2},
		"not comparable, AtLeastOnce":       {several{own}, several{own}, idempotency.AtLeastOnce, 2},
		"not comparable, AtMostOnce":        {several{own}, several{own}, idempotency.AtMostOnce, 1},
	} {
		for _, key := range []guard.KeyFunc[Request]{nil, byPath} {
			t.Run(fmt.Sprintf("F05 %s, with a lock %v", name, key != nil), func(t *testing.T) {
				a := newOnceAPI(t, c.inDoubt, OnceOptions{Key: key})
				a.err = c.err
				_, err := a.handle.Handle(context.Background(), post("k", ""))
				require.Equal(t, c.want, err)
				answer, err := a.handle.Handle(context.Background(), post("k", ""))
				require.Equal(t, c.runs, a.runs)
				if c.runs == 1 {
					require.NoError(t, err)
					require.Equal(t, http.StatusConflict, answer.StatusCode, "until its lease ends")
				}
			})
		}
	}
}

func TestOnceMistakes(t *testing.T) {
	g, err := guard.New(memstore.New(nil), guard.Options{})
	require.NoError(t, err)
	o, err := idempotency.New(g, idempotency.Options{})
	require.NoError(t, err)
	good := OnceOptions{Caller: AnyCaller}
	notMade := Once(new(idempotency.Once), OnceOptions{Caller: func(context.Context, Request) (string, error) { panic("called") }}, created)
	for want, handle := range map[string]guard.Wrapped[Request, Response]{
		"the Once is nil":    Once(nil, good, created),
		"the Once is nil or": notMade,
		"the handler is nil": Once(o, good, nil),
		"only one":           Once(o, OnceOptions{Caller: AnyCaller, Key: byPath}, created),
		"not made by New":    Once(o, OnceOptions{Caller: AnyCaller, Key: byPath, Lock: new(guard.Guard)}, created),
	} {
		_, err := handle.Handle(context.Background(), post("k", ""))
		require.ErrorContains(t, err, want)
	}
}
