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
	waiting map[string]state // by token, until it comes back
	parked  map[string]bool  // those of waiting that wait without a running function
	active  int              // clients that do not wait for a token
	told    sync.Once        // that nobody can wake those who wait
}

// enter begins to count the clients.
func (c *callbacks) enter(clients int) {
	if c != nil {
		c.active = clients
	}
}

// leave counts a client that has ended. It returns true if all others wait.
func (c *callbacks) leave() (nobodyWakes bool) {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	return c.active == 0 && len(c.parked) > 0
}

// park begins a client's wait for the state's token. It returns true if all others wait, too, or have ended.
func (c *callbacks) park(s state) (nobodyWakes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, waits := c.waiting[s.token]; !waits {
		return false // the token came before the answer
	}
	c.parked[s.token] = true
	c.active--
	return c.active == 0
}

// forget says that nobody waits for a token any more. It is called with the lock held.
func (c *callbacks) forget(token string) {
	if c.parked[token] {
		c.active++
	}
	delete(c.parked, token)
	delete(c.waiting, token)
}

func takeCallbacks() (*callbacks, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &callbacks{url: "http://" + listener.Addr().String(), waiting: map[string]state{}, parked: map[string]bool{}}
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
	c.waiting[s.token] = s
	return s
}

// end ends it: nobody waits for its token any more.
func (s state) end() {
	if s.of == nil {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.forget(s.token)
}

// wait waits until the token comes back, or for a heartbeat.
func (s state) wait(ctx context.Context) (p parked, err error) {
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
	waiting, waits := c.waiting[in.Token]
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	switch {
	case failed != nil || r.Header.Get("X-Amz-Target") != "AWSStepFunctions.SendTaskSuccess":
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"__type": "ValidationException"}`))
	case !waits:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"__type": "TaskTimedOut"}`))
	default:
		c.forget(in.Token)
		close(waiting.woken)
		_, _ = w.Write([]byte("{}"))
	}
}
