package httpguard

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/guard/idempotency"
	"github.com/lambdalock/lambdalock/guard/internal/httpanswer"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

// sent is a request to either adapter.
type sent struct {
	ctx    context.Context // nil is context.Background()
	keys   []string        // values of Idempotency-Key
	caller string          // "" is ann
	method string          // "" is POST
	path   string          // below /x
	query  string
	body   string
}

// got is what a client sees of an answer.
type got struct {
	status                                          int
	retryAfter, contentType, replayed, cookie, body string
}

// bench is one adapter over the store and the guard of a site.
type bench struct {
	*site
	fault    func(storetest.Call) storetest.Fault // of the site's store
	send     func(sent) got
	lock     guard.Lock
	handle   func(ctx context.Context) // what the handler does besides; it may be nil
	status   int                       // of the handler's answer
	body     string
	key      func() (string, error)
	inDoubt  idempotency.Doubt
	once     bool
	inner    bool // Once with a lock inside
	optional bool
	coalesce bool
	match    func() any
}

func (b *bench) open(t *testing.T) *idempotency.Once {
	b.site, b.status, b.body = newSite(t, guard.Options{}), http.StatusCreated, "first"
	b.site.fault = b.fault
	if b.key == nil {
		b.key = func() (string, error) { return "account/7", nil }
	}
	once, err := idempotency.New(b.guard, idempotency.Options{InDoubt: b.inDoubt})
	require.NoError(t, err)
	if b.coalesce {
		b.guard, err = guard.New(b.store, guard.Options{Coalesce: "index", Wait: time.Minute})
		require.NoError(t, err)
	}
	return once
}

func (b *bench) work(ctx context.Context, lock guard.Lock) {
	b.runs++
	b.lock = lock
	if b.handle != nil {
		b.handle(ctx)
	}
}

func named(caller string) (string, error) {
	switch caller {
	case "":
		return "ann", nil
	case "nobody":
		return "", nil
	case "foreign":
		return "", errors.New("no token")
	}
	return caller, nil
}

// api makes the bench one of httpapi.
func (b *bench) api(t *testing.T) {
	once := b.open(t)
	next := func(ctx context.Context, lock guard.Lock, _ httpapi.Request) (httpapi.Response, error) {
		b.work(ctx, lock)
		return httpapi.Response{StatusCode: b.status, Header: http.Header{"Content-Type": {"text/plain"}, "Set-Cookie": {"a=b"}}, Body: []byte(b.body)}, nil
	}
	key := func(context.Context, httpapi.Request) (string, error) { return b.key() }
	handler := httpapi.Wrap(b.guard, key, next)
	if b.once {
		opt := httpapi.OnceOptions{Optional: b.optional, Caller: func(_ context.Context, r httpapi.Request) (string, error) { return named(r.Header.Get("caller")) }}
		if b.inner {
			opt.Lock, opt.Key = b.guard, key
		}
		if b.match != nil {
			opt.Fingerprint = func(httpapi.Request) any { return b.match() }
		}
		handler = httpapi.Once(once, opt, next)
	}
	b.send = func(s sent) got {
		in := httpapi.Request{Method: cmp.Or(s.method, http.MethodPost), Route: "POST /x", URL: url.URL{Path: "/x" + s.path, RawQuery: s.query}, Body: []byte(s.body), Header: http.Header{"Idempotency-Key": s.keys}}
		in.Header.Set("caller", s.caller)
		out, err := handler.Handle(cmp.Or(s.ctx, context.Background()), in)
		require.NoError(t, err)
		h := out.Header
		return got{out.StatusCode, h.Get("Retry-After"), h.Get("Content-Type"), h.Get("Idempotent-Replayed"), h.Get("Set-Cookie"), string(out.Body)}
	}
}

// web makes the bench one of this package.
func (b *bench) web(t *testing.T) {
	once := b.open(t)
	key := func(*http.Request) (string, error) { return b.key() }
	middleware, err := Wrap(b.guard, key, Options{})
	require.NoError(t, err)
	if b.once {
		opt := OnceOptions{Optional: b.optional, Caller: func(r *http.Request) (string, error) { return named(r.Header.Get("caller")) }}
		if b.inner {
			opt.Lock, opt.Key = b.guard, key
		}
		if b.match != nil {
			opt.Fingerprint = func(*http.Request, []byte) any { return b.match() }
		}
		middleware, err = Once(once, opt)
		require.NoError(t, err)
	}
	handler := middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, ok := LockOf(r.Context())
		require.Equal(t, lock.Fence > 0, ok)
		b.work(r.Context(), lock)
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(b.status)
		_, err := w.Write([]byte(b.body))
		require.NoError(t, err)
	}))
	b.send = func(s sent) got {
		r := httptest.NewRequestWithContext(cmp.Or(s.ctx, context.Background()), cmp.Or(s.method, http.MethodPost), "/x"+s.path+"?"+s.query, strings.NewReader(s.body))
		r.Pattern = "POST /x"
		r.Header.Set("caller", s.caller)
		r.Header["Idempotency-Key"] = s.keys
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		out := w.Result().Header.Get
		return got{w.Code, out("Retry-After"), out("Content-Type"), out("Idempotent-Replayed"), out("Set-Cookie"), w.Body.String()}
	}
}

// fails lets the store refuse requests of a kind.
func (b bench) fails(kind driver.Kind, err error) bench {
	b.fault = func(c storetest.Call) (f storetest.Fault) {
		if c.Kind == kind {
			f.Drop = err
		}
		return f
	}
	return b
}

// aborts lets the handler panic, and hides the panic as a server does.
func (b *bench) aborts(s sent) {
	b.handle = func(context.Context) { panic(http.ErrAbortHandler) }
	defer func() {
		b.handle = nil
		_ = recover()
	}()
	b.send(s)
}

func k1(body string) sent { return sent{keys: []string{"k1"}, body: body} }

// Each situation gives the same answers from both adapters.
func TestSameAnswersAsHTTPAPI(t *testing.T) {
	busy := &lockstore.Refused{Key: "k", State: lockstore.Held, StateEndsIn: time.Hour, Holder: lockstore.HolderInfo{Name: "somebody"}}
	once, atMostOnce := bench{once: true}, bench{once: true, inDoubt: idempotency.AtMostOnce}
	one := func(s sent) func(*testing.T, *bench) []got {
		return func(_ *testing.T, b *bench) []got { return []got{b.send(s)} }
	}
	two := func(first, second sent) func(*testing.T, *bench) []got {
		return func(_ *testing.T, b *bench) []got { return []got{b.send(first), b.send(second)} }
	}
	keyed := func(key string, err error) func() (string, error) {
		return func() (string, error) { return key, err }
	}
	soon := func(t *testing.T, b *bench) []got {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return []got{b.send(sent{ctx: ctx})}
	}
	answers := func(status int, body string) func(*testing.T, *bench) []got {
		return func(_ *testing.T, b *bench) []got {
			b.status, b.body = status, body
			return []got{b.send(k1("")), b.send(k1(""))}
		}
	}
	for name, c := range map[string]struct {
		of   bench
		does func(*testing.T, *bench) []got
		want []int
		runs int
	}{
		"it runs":                                {bench{}, one(sent{}), []int{201}, 1},
		"F64 busy":                               {bench{}.fails(driver.Acquire, busy), one(sent{}), []int{409}, 0},
		"F21 F44 store down":                     {bench{}.fails(driver.Acquire, lockstore.ErrUnavailable), one(sent{}), []int{503}, 0},
		"F54 corrupt":                            {bench{}.fails(driver.Acquire, lockstore.ErrCorrupt), one(sent{}), []int{500}, 0},
		"F35 lost":                               {bench{}.fails(driver.Release, lockstore.ErrLost), one(sent{}), []int{500}, 1},
		"F65 no time":                            {bench{}, soon, []int{503}, 0},
		"F56 no key":                             {bench{key: keyed("", errors.New(`"account" is missing`))}, one(sent{}), []int{400}, 0},
		"F52 a control char":                     {bench{key: keyed("a\nb", nil)}, one(sent{}), []int{400}, 0},
		"no header":                              {once, one(sent{}), []int{400}, 0},
		"F52 an empty header":                    {once, one(sent{keys: []string{""}}), []int{400}, 0},
		"F52 two headers":                        {once, one(sent{keys: []string{"a", "b"}}), []int{400}, 0},
		"optional":                               {bench{once: true, optional: true}, two(sent{}, sent{}), []int{201, 201}, 2},
		"a repeat":                               {once, two(k1("7"), sent{keys: []string{`"k1"`}, body: "7"}), []int{201, 201}, 1},
		"F55 another body":                       {once, two(k1("7"), k1("8")), []int{201, 422}, 1},
		"F55 another query":                      {once, two(k1("7"), sent{keys: []string{"k1"}, body: "7", query: "a=b"}), []int{201, 422}, 1},
		"F55 another path":                       {once, two(k1("7"), sent{keys: []string{"k1"}, body: "7", path: "/2"}), []int{201, 422}, 1},
		"F55 another method":                     {once, two(k1("7"), sent{keys: []string{"k1"}, body: "7", method: "PUT"}), []int{201, 422}, 1},
		"another caller":                         {once, two(k1("7"), sent{keys: []string{"k1"}, caller: "bob"}), []int{201, 201}, 2},
		"a nameless caller":                      {once, one(sent{keys: []string{"k1"}, caller: "nobody"}), []int{400}, 0},
		"F56 a foreign caller":                   {once, one(sent{keys: []string{"k1"}, caller: "foreign"}), []int{400}, 0},
		"a match of their own":                   {bench{once: true, match: func() any { return 1 }}, two(k1("7"), k1("8")), []int{201, 201}, 1},
		"F55 a match of their own, another path": {bench{once: true, match: func() any { return 1 }}, two(k1("7"), sent{keys: []string{"k1"}, body: "7", path: "/2"}), []int{201, 422}, 1},
		"a match without JSON":                   {bench{once: true, match: func() any { return make(chan int) }}, one(k1("7")), []int{400}, 0},
		// The header is the id by which a client sends its request again. It has sent 2 twice.
		"coalescing": {bench{coalesce: true}, func(_ *testing.T, b *bench) (all []got) {
			waits := make(chan got)
			b.handle = func(context.Context) {
				b.handle = nil
				for range 2 {
					go func() { waits <- b.send(sent{keys: []string{"2"}}) }()
					synctest.Wait()
				}
				all = append(all, b.send(sent{keys: []string{"3"}}), b.send(sent{}))
			}
			first := b.send(sent{keys: []string{"1"}})
			return append(all, first, <-waits, <-waits)
		}, []int{409, 400, 201, 201, 201}, 3},
		"in progress": {once, func(_ *testing.T, b *bench) (all []got) {
			b.handle = func(context.Context) { all = append(all, b.send(k1("other"))) }
			first := b.send(k1(""))
			return append(all, first)
		}, []int{409, 201}, 1},
		"F05 a panic, AtLeastOnce": {once, func(_ *testing.T, b *bench) []got {
			b.aborts(k1(""))
			return []got{b.send(k1("")), b.send(k1(""))}
		}, []int{201, 201}, 2},
		"F05 a panic, AtMostOnce": {atMostOnce, func(t *testing.T, b *bench) []got {
			b.aborts(k1(""))
			all := []got{b.send(k1(""))}
			<-time.After(2 * time.Minute)
			all = append(all, b.send(k1("")))
			require.NoError(t, idempotency.ResolveEffect(t.Context(), b.store, b.lock.Key, b.lock.Fence,
				[]byte(`{"statusCode": 201, "headers": {"Content-Type": "text/html", "set-cookie": "a=b"}, "cookies": ["a=b"], "body": "late"}`), idempotency.Options{}))
			return append(all, b.send(k1("")))
		}, []int{409, 500, 201}, 1},
		"no answer":            {once, answers(200, strings.Repeat("x", 5000)), []int{200, 500}, 1},
		"408":                  {once, answers(408, "late"), []int{408, 408}, 2},
		"499":                  {once, answers(499, "left"), []int{499, 499}, 1},
		"409":                  {atMostOnce, answers(409, "busy"), []int{409, 409}, 2},
		"500, AtLeastOnce":     {once, answers(500, "broken"), []int{500, 500}, 2},
		"500, AtMostOnce":      {atMostOnce, answers(500, "broken"), []int{500, 500}, 1},
		"store down, Once":     {once.fails(driver.Acquire, lockstore.ErrUnavailable), one(k1("")), []int{503}, 0},
		"lost, Once":           {once.fails(driver.Complete, lockstore.ErrLost), one(k1("")), []int{500}, 1},
		"no mark of the start": {atMostOnce.fails(driver.MarkStarted, lockstore.ErrUnavailable), one(k1("")), []int{503}, 0},
		"a lock inside":        {bench{once: true, inner: true, inDoubt: idempotency.AtMostOnce}, two(k1(""), k1("")), []int{201, 201}, 1},
		"a busy lock inside": {bench{once: true, inner: true, inDoubt: idempotency.AtMostOnce}, func(t *testing.T, b *bench) (all []got) {
			require.NoError(t, b.guard.Do(t.Context(), "account/7", func(context.Context, guard.Lock) error {
				all = append(all, b.send(k1("")))
				return nil
			}))
			return append(all, b.send(k1("")))
		}, []int{409, 201}, 1},
		"F56 no key for the lock inside": {bench{once: true, inner: true, optional: true, key: keyed("", errors.New("no account"))}, two(k1(""), sent{}), []int{400, 400}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var all [2][]got
			for i := range all {
				synctest.Test(t, func(t *testing.T) {
					b := c.of
					if i == 0 {
						b.api(t)
					} else {
						b.web(t)
					}
					all[i] = c.does(t, &b)
					if i == 1 && strings.HasPrefix(name, "F56") {
						require.Contains(t, b.log.String(), `level=INFO msg="no `)
					}
					require.Equal(t, c.runs, b.runs)
				})
			}
			require.Equal(t, all[0], all[1])
			var statuses []int
			for _, g := range all[1] {
				statuses = append(statuses, g.status)
				require.NotContains(t, g.body, "somebody", "the holder is not named to a caller")
				if g.replayed == "true" {
					require.Empty(t, g.cookie, "a repeat gets no Set-Cookie")
				}
				if g.contentType == "application/problem+json" {
					require.Contains(t, g.body, fmt.Sprintf(`"status":%d`, g.status))
				}
			}
			require.Equal(t, c.want, statuses)
		})
	}
}

// A stored answer is that of httpapi: an operator gives both in the same form.
func TestStoredForm(t *testing.T) {
	for _, body := range [][]byte{nil, []byte("<a> & \u2028"), {0, 255, '\n'}} {
		a := httpanswer.Answer{Status: 201, Header: http.Header{"Warning": {"1", "2"}, "Content-Type": nil, "X-Raw": {"<"}, "Latin-1": {"caf\xe9", "a"}, "Halves": {"\xc3", "\xa9"}}, Body: body}
		text, err := a.MarshalJSON()
		require.NoError(t, err)
		var back httpanswer.Answer
		require.NoError(t, back.UnmarshalJSON(text))
		require.Equal(t, a.Header, back.Header)
		require.True(t, bytes.Equal(a.Body, back.Body))

		delete(a.Header, "Latin-1") // no header of httpapi: a source of Lambda sends UTF-8
		delete(a.Header, "Halves")
		text, err = a.MarshalJSON()
		require.NoError(t, err)
		var out httpapi.Response
		require.NoError(t, json.Unmarshal(text, &out), "%s", text)
		require.Equal(t, []string{"1", "2"}, out.Header["Warning"])
	}
	for _, bad := range []string{`null`, `{}`, `{"statusCode": 99}`, `{"statusCode": 1000}`, `{"statusCode": 200, "body": "%", "isBase64Encoded": true}`, `{"statusCode": 200, "extra": 1}`, `[]`} {
		require.Error(t, new(httpanswer.Answer).UnmarshalJSON([]byte(bad)), bad)
	}
}
