package clienttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// answer is what the service says.
type answer struct {
	status int
	header http.Header
	text   []byte

	Fence int64
	Token string
	Held  bool
}

// do sends a request, which may be repeated. It sends it again while the service
// says that its store is not available: on a busy machine that comes and goes.
func do(ctx context.Context, method, url string, header http.Header, body []byte) (answer, error) {
	for {
		r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
		if err != nil {
			return answer{}, err
		}
		r.Header = header
		a, err := roundTrip(r)
		if err != nil || a.status != http.StatusServiceUnavailable {
			return a, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
}

func roundTrip(r *http.Request) (answer, error) {
	direct := http.Transport{DisableKeepAlives: true} // and no proxy
	response, err := direct.RoundTrip(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	a := answer{status: response.StatusCode, header: response.Header}
	if a.text, err = io.ReadAll(response.Body); err != nil || len(a.text) == 0 {
		return a, err
	}
	if err := json.Unmarshal(a.text, &a); err != nil {
		return a, fmt.Errorf("%d %.200q: %w", a.status, a.text, err)
	}
	return a, nil
}

// spelt is the key as the rest of a URL's path.
func spelt(key string) string {
	parts := strings.Split(key, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// fault is what the wire does to a request.
type fault int

const (
	none         fault = iota
	unavailable        // answered with 503, not passed on
	lost               // passed on, but its answer is lost
	lostAndEnded       // so, and the lease that was granted is ended
	ended              // the lease that it has the token of is ended before
)

// exchange is a request that went over the wire, and its answer.
type exchange struct {
	answer
	at                     time.Time
	method, again          string // again is the Idempotency-Key
	authorization, session string
	retryAfter             time.Duration
}

// wire passes requests on to the service.
type wire struct {
	url    string
	seen   events[exchange]
	server http.Server
	served chan struct{}
	target string

	mu    sync.Mutex
	isCut bool
	plans map[string][]fault // for the next requests of a method
}

func newWire(target string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{url: "http://" + l.Addr().String(), target: target, served: make(chan struct{}), plans: map[string][]fault{}}
	w.server.Handler = w
	go func() {
		defer close(w.served)
		_ = w.server.Serve(l) // it ends by close
	}()
	return w, nil
}

func (w *wire) close() {
	_ = w.server.Close() // nobody is left
	<-w.served
}

// plan says what becomes of the next requests of the method.
func (w *wire) plan(method string, faults ...fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plans[method] = faults
}

// cut lets nothing through from now on.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
}

func (w *wire) next(method string) (f fault, isCut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if plan := w.plans[method]; len(plan) > 0 {
		f, w.plans[method] = plan[0], plan[1:]
	}
	return f, w.isCut
}

func (w *wire) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	e := exchange{at: time.Now(), method: r.Method, again: r.Header.Get("Idempotency-Key"),
		authorization: r.Header.Get("Authorization"), session: r.Header.Get("X-Amz-Security-Token")}
	f, isCut := w.next(r.Method)
	if isCut {
		panic(http.ErrAbortHandler)
	}
	err := w.pass(r, f, &e)
	e.retryAfter, _ = time.ParseDuration(e.header.Get("Retry-After") + "s") // 0 without one
	w.seen.add(e)
	if err != nil || f == lost || f == lostAndEnded {
		panic(http.ErrAbortHandler)
	}
	for name, values := range e.header {
		to.Header()[name] = values
	}
	to.WriteHeader(e.status)
	_, _ = to.Write(e.text) // an error means that the client has gone
}

func (w *wire) pass(r *http.Request, f fault, e *exchange) (err error) {
	target := w.target + r.RequestURI
	if f == unavailable {
		e.answer = answer{status: http.StatusServiceUnavailable, header: http.Header{}, text: []byte(`{"message":"Service Unavailable"}`)}
		return nil
	}
	if f == ended {
		if err := w.end(target, r.Header.Get("Lock-Token")); err != nil {
			return err
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	header := r.Header.Clone()
	header.Del("Connection")
	// Its client may have gone, and the answer is lost then.
	if e.answer, err = do(context.WithoutCancel(r.Context()), r.Method, target, header, body); err != nil {
		return err
	}
	if f == lostAndEnded {
		return w.end(target, e.Token)
	}
	return nil
}

// end ends a lease behind its holder's back.
func (w *wire) end(target, token string) error {
	a, err := do(context.Background(), http.MethodDelete, target, http.Header{"Lock-Token": {token}}, nil)
	if err == nil && a.status != http.StatusNoContent {
		err = fmt.Errorf("a lease cannot be ended: %d %s", a.status, a.text)
	}
	return err
}

// tail is what went over the wire last.
func (w *wire) tail() string {
	var b strings.Builder
	all := w.seen.list()
	for _, e := range all[max(0, len(all)-8):] {
		b.WriteString(e.method + " " + strconv.Itoa(e.status) + ", ")
	}
	return b.String()
}

// events is a list that can be waited for.
type events[T any] struct {
	mu   sync.Mutex
	all  []T
	more chan struct{} // closed by the next add
}

func (e *events[T]) add(v T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, v)
	if e.more != nil {
		close(e.more)
		e.more = nil
	}
}

func (e *events[T]) list() []T {
	all, _ := e.state()
	return all
}

func (e *events[T]) state() ([]T, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.more == nil {
		e.more = make(chan struct{})
	}
	return e.all[:len(e.all):len(e.all)], e.more
}

var errEnded = errors.New("the process has ended")

// wait waits until the list is enough, or nothing more will come.
func (e *events[T]) wait(ctx context.Context, ended <-chan struct{}, enough func([]T) bool) ([]T, error) {
	for {
		all, more := e.state()
		if enough(all) {
			return all, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return all, ctx.Err()
		case <-ended:
			if all := e.list(); enough(all) {
				return all, nil
			}
			return all, errEnded
		}
	}
}
