package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
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
		in.Header.Set(IdempotencyKey, key)
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
	require.Equal(t, guard.OutcomeReplayed, a.report.Outcome)
	_, err := a.store.Acquire(t.Context(), lockstore.Request{Key: a.lock.Key, Owner: "another", TTL: time.Minute})
	refused, ok := errors.AsType[*lockstore.Refused](err)
	require.True(t, ok)
	require.Equal(t, lockstore.Completed, refused.State)
	require.Contains(t, string(refused.Result), "/payments/1")
	require.NotContains(t, string(refused.Result), "session=secret", "the store has no cookies")

	for name, in := range map[string]func(*Request){
		"body":   func(in *Request) { in.Body = []byte(`{"amount":8}`) },
		"path":   func(in *Request) { in.URL.Path = "/payments/2" },
		"query":  func(in *Request) { in.URL.RawQuery = "a=b" },
		"method": func(in *Request) { in.Method = "PUT" },
	} {
		other := post("k1", `{"amount":7}`)
		in(&other)
		require.Equal(t, http.StatusUnprocessableEntity, a.send(other).StatusCode, name)
	}
	require.Equal(t, 1, a.runs)
	for _, in := range []Request{post("k2", `{"amount":7}`), {Method: "POST", Route: "POST /refunds", URL: url.URL{Path: "/payments"}, Body: []byte(`{"amount":7}`), Header: post("k1", "").Header}} {
		a.send(in)
	}
	require.Equal(t, 3, a.runs, "another key, and another route")
}

func TestOnceCallers(t *testing.T) {
	own := errors.New("no token")
	a := newOnceAPI(t, idempotency.AtLeastOnce, OnceOptions{Caller: func(_ context.Context, in Request) (string, error) {
		if in.Header.Get("user") == "nobody" {
			return "", own
		}
		return in.Header.Get("user"), nil
	}})
	by := func(user string) Request {
		in := post("k", "")
		in.Header.Set("user", user)
		return in
	}
	a.send(by("ann"))
	a.send(by("bob"))
	a.send(by("ann"))
	require.Equal(t, 2, a.runs, "each caller has keys of its own")
	for _, user := range []string{"", "nobody"} {
		refused := a.send(by(user))
		require.Equal(t, http.StatusBadRequest, refused.StatusCode)
		require.Contains(t, string(refused.Body), map[string]string{"": "the caller has no name", "nobody": "no token"}[user])
	}
	require.Equal(t, 2, a.runs)
}

func TestOnceHeader(t *testing.T) {
	a := newOnceAPI(t, idempotency.AtLeastOnce, OnceOptions{})
	for name, value := range map[string]string{
		"missing": "", "F52 empty": `""`, "F52 blank": " ", "F52 twice": "a, b", "F52 twice in quotes": `"a", "b"`, "F52 with parameters": `"a";b=c`,
		"F52 of 10 KB": strings.Repeat("k", 10<<10), "F52 of 256 bytes": strings.Repeat("k", 256), "F52 no end": `"a`, "F52 not ASCII": "ä",
		"F52 a control character": "a\x01", "F52 an escape of nothing": `"a\b"`, "F52 an escape at the end": `"a\`, "F52 a quote inside": `a"b`,
	} {
		t.Run(name, func(t *testing.T) {
			answer := a.send(post(value, ""))
			require.Equal(t, http.StatusBadRequest, answer.StatusCode)
			require.Contains(t, string(answer.Body), IdempotencyKey)
			require.Less(t, len(answer.Body), 500)
		})
	}
	t.Run("F52 two headers", func(t *testing.T) {
		in := post("a", "")
		in.Header.Add(IdempotencyKey, "b")
		require.Equal(t, http.StatusBadRequest, a.send(in).StatusCode)
	})
	require.Zero(t, a.runs)
	for value, want := range map[string]string{
		"8e03978e-40d5-43dd-bc93-6894a57f9324": "8e03978e-40d5-43dd-bc93-6894a57f9324", ` "a, b" `: "a, b", `"\"\\"`: `"\`, "a/b": "a/b",
		strings.Repeat("k", 255): strings.Repeat("k", 255), `"` + strings.Repeat(`\\`, 255) + `"`: strings.Repeat(`\`, 255),
	} {
		key, err := httpanswer.Key([]string{value})
		require.NoError(t, err, value)
		require.Equal(t, want, key)
	}
}

// Which answers are stored, and which are for their own caller only.
func TestOnceStatuses(t *testing.T) {
	for _, inDoubt := range []idempotency.Doubt{idempotency.AtLeastOnce, idempotency.AtMostOnce} {
		for status, stored := range map[int]bool{
			200: true, 201: true, 301: true, 400: true, 404: true, 408: false, 409: false, 410: true, 422: true, 425: false, 429: false, 499: true,
			500: inDoubt == idempotency.AtMostOnce, 502: inDoubt == idempotency.AtMostOnce, 503: inDoubt == idempotency.AtMostOnce,
		} {
			t.Run(fmt.Sprint(status, inDoubt), func(t *testing.T) {
				a := newOnceAPI(t, inDoubt, OnceOptions{})
				a.answer = Response{StatusCode: status, Body: []byte("first")}
				require.Equal(t, a.answer, a.send(post("k", "")))
				second := a.send(post("k", ""))
				require.Equal(t, status, second.StatusCode)
				require.Equal(t, "first", string(second.Body))
				require.Equal(t, stored, second.Header.Get("Idempotent-Replayed") == "true")
				require.Equal(t, map[bool]int{true: 1, false: 2}[stored], a.runs)
			})
		}
	}
}

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
	} {
		t.Run("F05 "+name, func(t *testing.T) {
			a := newOnceAPI(t, c.inDoubt, OnceOptions{})
			a.err = c.err
			_, err := a.handle.Handle(context.Background(), post("k", ""))
			require.Equal(t, c.want, err, "it goes to Lambda as it is")
			answer, err := a.handle.Handle(context.Background(), post("k", ""))
			require.Equal(t, c.runs, a.runs)
			if c.runs == 1 {
				require.NoError(t, err)
				require.Equal(t, http.StatusConflict, answer.StatusCode, "until its lease ends")
			}
		})
	}
}

// several is an error type that == cannot compare.
type several []error

func (e several) Error() string { return "several" }

func TestOnceWithAnErrorThatCannotBeCompared(t *testing.T) {
	key := func(context.Context, Request) (string, error) { return "account", nil }
	for _, key := range []guard.KeyFunc[Request]{nil, key} {
		for _, inDoubt := range []idempotency.Doubt{idempotency.AtLeastOnce, idempotency.AtMostOnce} {
			a := newOnceAPI(t, inDoubt, OnceOptions{Key: key})
			a.err = several{errors.New("own")}
			_, err := a.handle.Handle(context.Background(), post("k", ""))
			require.Equal(t, a.err, err)
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
	handle := Once(o, OnceOptions{Caller: AnyCaller, Fingerprint: func(Request) any { return make(chan int) }}, created)
	answer, err := handle.Handle(context.Background(), post("k", ""))
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, answer.StatusCode, "a Fingerprint without JSON")
}
