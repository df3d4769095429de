package locallambda

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"time"
)

// tokenMark in an event becomes a new task token each time: the event is of a state of Step Functions that waits
// for the token.
const tokenMark = "{{token}}"

// heartbeat is how long such a state waits for its token before it calls the function again.
const heartbeat = time.Minute

// parked is a time in which an event waited without a running function.
type parked struct {
	from, to time.Time
	woken    bool // somebody has sent its token back
}

// callbacks are the part of Step Functions that takes tokens back.
type callbacks struct {
	url    string
	server *http.Server

	mu      sync.Mutex
	waiting map[string]chan struct{} // by token; closed when it comes back
}

func takeCallbacks() (*callbacks, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &callbacks{url: "http://" + listener.Addr().String(), waiting: map[string]chan struct{}{}}
	c.server = &http.Server{Handler: c, ReadHeaderTimeout: time.Second}
	go func() { _ = c.server.Serve(listener) }() // until close
	return c, nil
}

func (c *callbacks) close() { _ = c.server.Close() }

// state is one call of the function in a state that waits for its token.
type state struct {
	event []byte // with the token
	token string
	woken chan struct{}
	of    *callbacks
}

// state begins one. Without callbacks the event has no token.
func (c *callbacks) state(event []byte) state {
	if c == nil {
		return state{event: event}
	}
	s := state{token: rand.Text(), woken: make(chan struct{}), of: c}
	s.event = bytes.ReplaceAll(event, []byte(tokenMark), []byte(s.token))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[s.token] = s.woken
	return s
}

// end ends it: nobody waits for its token any more.
func (s state) end() {
	if s.of == nil {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	delete(s.of.waiting, s.token)
}

// park waits until the token comes back, or for a heartbeat.
func (s state) park(ctx context.Context) (p parked, err error) {
	defer s.end()
	p.from = time.Now()
	late := time.NewTimer(heartbeat)
	defer late.Stop()
	select {
	case <-s.woken:
		p.woken = true
	case <-late.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.to = time.Now()
	return p, err
}

// ServeHTTP is SendTaskSuccess.
func (c *callbacks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Token string `json:"taskToken"`
	}
	failed := json.NewDecoder(r.Body).Decode(&in)
	c.mu.Lock()
	defer c.mu.Unlock()
	woken := c.waiting[in.Token]
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	switch {
	case failed != nil || r.Header.Get("X-Amz-Target") != "AWSStepFunctions.SendTaskSuccess":
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"__type": "ValidationException"}`))
	case woken == nil:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"__type": "TaskTimedOut"}`))
	default:
		delete(c.waiting, in.Token)
		close(woken)
		_, _ = w.Write([]byte("{}"))
	}
}
