package faults

import (
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/lambdalock/lambdalock/internal/testservers"
)

// Throttle is a proxy in front of a DynamoDB endpoint. While it is on, it throttles
// many writes. Other writes fail with a server error, before or after the service has
// applied them.
type Throttle struct {
	Endpoint string // where clients connect

	mu     sync.Mutex
	random *rand.Rand
	on     bool
}

// NewThrottle starts a Throttle in front of endpoint.
func NewThrottle(t testing.TB, endpoint string, seed uint64) *Throttle {
	t.Helper()
	x := &Throttle{random: rand.New(rand.NewPCG(seed, 0))}
	next := testservers.Forward(t, endpoint)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p := x.draw(r); {
		case p < 0.45:
			fail(w, http.StatusBadRequest, "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException")
		case p < 0.6:
			fail(w, http.StatusInternalServerError, "com.amazonaws.dynamodb.v20120810#InternalServerError")
		case p < 0.75:
			next.ServeHTTP(httptest.NewRecorder(), r)
			fail(w, http.StatusInternalServerError, "com.amazonaws.dynamodb.v20120810#InternalServerError")
		default:
			next.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	x.Endpoint = server.URL
	return x
}

// Set turns it on or off.
func (x *Throttle) Set(on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.on = on
}

// draw is from 0 to 1, and 1 for a request that is let through.
func (x *Throttle) draw(r *http.Request) float64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.on || !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".UpdateItem") {
		return 1
	}
	return x.random.Float64()
}

func fail(w http.ResponseWriter, status int, kind string) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"__type":"`+kind+`","message":"planned"}`) // the client may be gone
}
