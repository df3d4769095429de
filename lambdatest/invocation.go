package lambdatest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"
)

// invocation is one event on its way through a process. Whoever claims it, the
// answer, the timeout or the end of the process, decides its result.
type invocation struct {
	event   Event
	timeout time.Duration

	taken  chan struct{} // closed when a poll has it; given and killAt are set before
	given  time.Time
	killAt time.Time

	claimed   atomic.Bool
	result    Result        // set before done is closed
	done      chan struct{} // closed when the result stands
	abandoned chan struct{} // closed when the function answers after its timeout
}

func newInvocation(event Event, timeout time.Duration) *invocation {
	return &invocation{
		event:     event,
		timeout:   timeout,
		taken:     make(chan struct{}),
		done:      make(chan struct{}),
		abandoned: make(chan struct{}),
	}
}

// claim reports whether the caller is the one who decides the result.
func (inv *invocation) claim() bool { return inv.claimed.CompareAndSwap(false, true) }

// take starts the invocation's clock.
func (inv *invocation) take() {
	inv.given = time.Now()
	inv.killAt = inv.given.Add(inv.timeout)
	close(inv.taken)
}

// finish sets the result; only who has claimed the invocation may call it.
func (inv *invocation) finish(r Result) {
	r.RequestID = inv.event.ID
	r.Duration = time.Since(inv.given)
	if r.ErrorType != "" && r.Payload == nil {
		// Marshalling two strings cannot fail.
		r.Payload, _ = json.Marshal(wireError{Type: r.ErrorType, Message: r.ErrorMessage})
	}
	inv.result = r
	close(inv.done)
}

// wireError is the body of a failed invocation.
type wireError struct {
	Message string `json:"errorMessage"`
	Type    string `json:"errorType"`
}

// NewRequestID returns a request id as Lambda makes them: a random (version 4) UUID.
func NewRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
