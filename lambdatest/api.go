package lambdatest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// api is the Runtime API and Extensions API of one process. The paths, headers
// and codes are AWS's: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
type api struct {
	config   Config
	queue    chan *invocation // unbuffered: a send returns when a poll has it
	polled   chan struct{}    // closed at the first poll
	polledAt time.Time        // set before polled is closed
	over     chan struct{}    // closed when the process has ended
	end      func()           // closes over
	started  time.Time        // when the process was started

	mu        sync.Mutex
	running   map[string]*invocation // by request id
	extension bool
}

func newAPI(config Config) *api {
	over := make(chan struct{})
	return &api{
		config:  config,
		queue:   make(chan *invocation),
		polled:  make(chan struct{}),
		over:    over,
		end:     sync.OnceFunc(func() { close(over) }),
		running: make(map[string]*invocation),
	}
}

func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", a.next)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", a.response)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/error", a.failure)
	mux.HandleFunc("POST /2018-06-01/runtime/init/error", a.initError)
	mux.HandleFunc("POST /2020-01-01/extension/register", a.register)
	mux.HandleFunc("GET /2020-01-01/extension/event/next", a.extensionNext)
	return mux
}

func (a *api) registered() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.extension
}

// reserve takes the request id: answers find their invocation by it alone.
func (a *api) reserve(inv *invocation) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[inv.event.ID] != nil {
		return fmt.Errorf("lambdatest: request id %q is running in this environment already", inv.event.ID)
	}
	a.running[inv.event.ID] = inv
	return nil
}

func (a *api) forget(inv *invocation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.running, inv.event.ID)
}

func (a *api) next(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if a.polledAt.IsZero() {
		a.polledAt = time.Now()
		close(a.polled)
	}
	a.mu.Unlock()

	var inv *invocation
	select {
	case inv = <-a.queue:
	case <-r.Context().Done():
		return
	case <-a.over:
		return
	}
	inv.take()
	deadline := inv.event.Deadline
	if deadline.IsZero() {
		deadline = inv.killAt
	}
	h := w.Header()
	h.Set("Lambda-Runtime-Aws-Request-Id", inv.event.ID)
	h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(deadline.UnixMilli(), 10))
	h.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:123456789012:function:"+a.config.Name)
	h.Set("Lambda-Runtime-Trace-Id", "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=0")
	h.Set("Content-Type", "application/json")
	_, _ = w.Write(inv.event.Payload) // a process that is gone is seen by its end
}

func (a *api) response(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxResponseSize))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		a.answer(w, r, Result{
			ErrorType:    ErrorTooLarge,
			ErrorMessage: fmt.Sprintf("Response payload size exceeded maximum allowed payload size (%d bytes).", maxResponseSize),
		}, http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		return // cut off: the process is gone
	}
	result := Result{Payload: body}
	// A handler that fails while its answer is being streamed says so here.
	if t := r.Trailer.Get("Lambda-Runtime-Function-Error-Type"); t != "" {
		result.ErrorType, result.ErrorMessage = t, "the answer was cut off by the function's error"
	}
	a.answer(w, r, result, http.StatusAccepted)
}

func (a *api) failure(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxResponseSize))
	if err != nil {
		return
	}
	var e wireError
	if err := json.Unmarshal(body, &e); err != nil || e.Type == "" {
		e.Type = "Unhandled" // what the platform says when a runtime names none
	}
	a.answer(w, r, Result{Payload: body, ErrorType: e.Type, ErrorMessage: e.Message}, http.StatusAccepted)
}

func (a *api) answer(w http.ResponseWriter, r *http.Request, result Result, code int) {
	a.mu.Lock()
	inv := a.running[r.PathValue("id")]
	delete(a.running, r.PathValue("id"))
	a.mu.Unlock()
	if inv == nil {
		reply(w, http.StatusBadRequest, "InvalidRequestID")
		return
	}
	if !inv.claim() {
		close(inv.abandoned)
		reply(w, http.StatusBadRequest, "InvalidStateTransition")
		return
	}
	// The function hears first: a caller that kills the process when it has its
	// answer must not race with the function's own view of it.
	reply(w, code, "OK")
	_ = http.NewResponseController(w).Flush()
	inv.finish(result)
}

func (a *api) initError(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxResponseSize))
	reply(w, http.StatusAccepted, "OK") // the process ends itself next, and its log says why
}

func (a *api) register(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	a.extension = true
	a.mu.Unlock()
	w.Header().Set("Lambda-Extension-Identifier", NewRequestID())
	reply(w, http.StatusOK, "OK")
}

// extensionNext never returns while the process lives: no extension here
// registers for an event.
func (a *api) extensionNext(_ http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-a.over:
	}
}

func reply(w http.ResponseWriter, code int, status string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"status":%q}`+"\n", status)
}
