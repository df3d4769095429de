package clienttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
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
	State string // of a GET
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

// fault is what the proxy does to a request.
type fault int

const (
	none         fault = iota
	unavailable        // answered with 503, not passed on
	cooldown           // answered with 409 and a Retry-After of an hour, not passed on
	lost               // passed on, but its answer is lost
	lostAndEnded       // passed on, its answer is lost, and the lease that was granted is ended
	ended              // the lease that it has the token of is ended before
	cut                // nothing is passed on from now on, of any method
)

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
	service string

	mu     sync.Mutex
	all    []exchange
	faults map[string][]fault // of the next requests of a method
	says   map[string][]reply // to the next requests of a method, before faults
	lease  answer             // the last that the service granted
}

// reply makes an answer in place of the service's. lease is the last that the service granted.
type reply func(lease answer) answer

func newProxy(t *testing.T, service string) *proxy {
	p := &proxy{service: service, faults: map[string][]fault{}, says: map[string][]reply{}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// plan says what becomes of the next requests of the method; "" is for cut.
func (p *proxy) plan(method string, faults ...fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[method] = faults
}

// say says what the next requests of the method are answered with. A PUT is passed on before.
func (p *proxy) say(method string, replies ...reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says[method] = replies
}

func (p *proxy) nextReply(method string) (r reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if plan := p.says[method]; len(plan) > 0 {
		r, p.says[method] = plan[0], plan[1:]
	}
	return r
}

// seen are the requests of the method that had this answer; "" and 0 are any.
func (p *proxy) seen(method string, status int) []exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.all), func(e exchange) bool {
		return method != "" && e.method != method || status != 0 && e.status != status
	})
}

func (p *proxy) next(method string) (f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults[""] != nil {
		return cut
	}
	if plan := p.faults[method]; len(plan) > 0 {
		f, p.faults[method] = plan[0], plan[1:]
	}
	return f
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e, url := exchange{at: time.Now(), method: r.Method, path: r.URL.Path, request: r.Header.Clone()}, p.service+r.RequestURI
	body, err := io.ReadAll(r.Body)
	e.body = string(body)
	f, say := none, p.nextReply(r.Method)
	if say == nil {
		f = p.next(r.Method)
	}
	if f == ended {
		err = errors.Join(err, end(url, r.Header.Get("Lock-Token")))
	}
	switch {
	case err != nil || f == cut:
		panic(http.ErrAbortHandler)
	case f == unavailable:
		e.answer = answer{status: http.StatusServiceUnavailable, text: `{"message":"Service Unavailable"}`}
	case f == cooldown:
		e.answer = answer{status: http.StatusConflict, text: `{"code":"busy","retryAfter":3600}`}
	case say != nil && r.Method != http.MethodPut:
	default:
		r.Header.Del("Connection")
		// Its client may have gone, and the answer is lost then.
		e.answer, err = do(context.WithoutCancel(r.Context()), r.Method, url, r.Header, body)
	}
	if f == lostAndEnded {
		err = errors.Join(err, end(url, e.Token))
	}
	p.mu.Lock()
	if e.Token != "" {
		p.lease = e.answer
	}
	if say != nil {
		e.answer = say(p.lease)
	}
	p.all = append(p.all, e)
	p.mu.Unlock()
	if err != nil || f == lost || f == lostAndEnded {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), e.header)
	w.WriteHeader(e.status)
	_, _ = io.WriteString(w, e.text) // an error means that the client has gone
}

// end ends a lease behind its holder's back.
func end(url, token string) error {
	a, err := do(context.Background(), http.MethodDelete, url, http.Header{"Lock-Token": {token}}, nil)
	if err == nil && a.status != http.StatusNoContent {
		err = fmt.Errorf("a lease cannot be ended: %d %s", a.status, a.text)
	}
	return err
}
