package clienttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// answer is what the service says.
type answer struct {
	status int
	header http.Header
	text   string

	Fence int64
	Token string
	// Of a GET.
	State   string
	Waiting int
}

// do sends a request, which may be repeated. It sends the request again while the
// service says that its store is not available: on a busy machine that comes and goes.
func do(ctx context.Context, method, url string, header http.Header, body []byte) (a answer, err error) {
	direct := http.Transport{DisableKeepAlives: true} // and no proxy
	for {
		r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
		if err != nil {
			return a, err
		}
		r.Header = header
		response, err := direct.RoundTrip(r)
		if err != nil {
			return a, err
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		a = answer{status: response.StatusCode, header: response.Header, text: string(text)}
		if len(text) > 0 {
			err = errors.Join(err, json.Unmarshal(text, &a))
		}
		if err != nil || a.status != http.StatusServiceUnavailable || ctx.Err() != nil {
			return a, err
		}
		<-time.After(time.Second)
	}
}

// act answers a request. lost says that the answer does not arrive.
type act func(*passing) (a answer, lost bool)

// passing is a request on its way through the proxy.
type passing struct {
	*proxy
	method, url, token string
	ask                func() answer // the service
}

// grant is the last lease that the service granted, in answer to this request if it is a PUT.
func (p *passing) grant() answer {
	if p.method == http.MethodPut {
		p.ask()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lease
}

// end ends a lease behind its holder's back.
func (p *passing) end(token string) {
	a, err := do(context.Background(), http.MethodDelete, p.url, http.Header{"Lock-Token": {token}}, nil)
	if err != nil || a.status != http.StatusNoContent {
		p.t.Errorf("a lease cannot be ended: %d %s %v", a.status, a.text, err)
	}
}

func pass(p *passing) (answer, bool)      { return p.ask(), false }
func lose(p *passing) (answer, bool)      { return p.ask(), true }
func endBefore(p *passing) (answer, bool) { p.end(p.token); return pass(p) }
func loseAndEnd(p *passing) (answer, bool) {
	a := p.ask()
	p.end(a.Token)
	return a, true
}

// exchange is a request that went through the proxy, and its answer.
type exchange struct {
	answer
	at           time.Time
	method, path string
	request      http.Header
	body         string
}

func (e exchange) again() string { return e.request.Get("Idempotency-Key") }

// proxy passes requests on to the service.
type proxy struct {
	*httptest.Server
	t       *testing.T
	service string
	cut     atomic.Bool // nothing is passed on any more

	mu    sync.Mutex
	all   []exchange
	plans map[string][]act // of the next requests of a method
	lease answer           // the last that the service granted
}

func newProxy(t *testing.T, service string) *proxy {
	p := &proxy{t: t, service: service, plans: map[string][]act{}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// plan says what becomes of the next requests of the method.
func (p *proxy) plan(method string, acts ...act) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans[method] = acts
}

func (p *proxy) next(method string) act {
	p.mu.Lock()
	defer p.mu.Unlock()
	plan := p.plans[method]
	if len(plan) == 0 {
		return pass
	}
	p.plans[method] = plan[1:]
	return plan[0]
}

// seen are the requests of the method that had this answer; "" and 0 are any.
func (p *proxy) seen(method string, status int) []exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.all), func(e exchange) bool {
		return method != "" && e.method != method || status != 0 && e.status != status
	})
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := exchange{at: time.Now(), method: r.Method, path: r.URL.Path, request: r.Header.Clone()}
	body, err := io.ReadAll(r.Body)
	if e.body = string(body); err != nil || p.cut.Load() {
		panic(http.ErrAbortHandler)
	}
	r.Header.Del("Connection")
	url := p.service + r.RequestURI
	ask := func() answer {
		// Its client may have gone, and the answer is lost then.
		a, err := do(context.WithoutCancel(r.Context()), r.Method, url, r.Header, body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if a.Token != "" {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.lease = a
		}
		return a
	}
	var lost bool
	e.answer, lost = p.next(r.Method)(&passing{p, r.Method, url, r.Header.Get("Lock-Token"), ask})
	p.mu.Lock()
	p.all = append(p.all, e)
	p.mu.Unlock()
	if lost {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), e.header)
	w.WriteHeader(e.status)
	_, _ = io.WriteString(w, e.text) // an error means that the client has gone
}
