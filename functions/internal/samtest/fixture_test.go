//go:build sam

package samtest

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
	"github.com/lambdalock/lambdalock/internal/template"
)

// fixture is an event and the function that it is for.
type fixture struct {
	eventfiles.Fixture
	function string // logical id
}

func readFixtures(t require.TestingT, dir string, functions []template.Function) (all []fixture) {
	found, err := eventfiles.Read(dir, "")
	require.NoError(t, err)
	for _, f := range found {
		var best template.Function // nightly-report-bad is nightly-report's, also if there is a nightly
		for _, of := range functions {
			if (f.Name == of.Name() || strings.HasPrefix(f.Name, of.Name()+"-")) && len(of.Name()) > len(best.Name()) {
				best = of
			}
		}
		require.NotEmpty(t, best.ID, "events/%s.json belongs to no function of the template", f.Name)
		all = append(all, fixture{f, best.ID})
	}
	return all
}

// What the unit tests of the functions set up for their events.
const (
	account = "7"
	another = "9"
	nobody  = "8" // does not exist
)

// fails says whether the answer is to be an error.
func (f fixture) fails() bool {
	var wanted struct{ ErrorType string }
	return json.Unmarshal(f.Want, &wanted) == nil && wanted.ErrorType != ""
}

// ofGateway are headers that a client writes for itself, or the gateway adds.
var ofGateway = map[string]bool{
	"Content-Length": true, "Host": true, "User-Agent": true, "X-Amzn-Trace-Id": true,
	"X-Forwarded-For": true, "X-Forwarded-Port": true, "X-Forwarded-Proto": true,
}

// request is the client's request, when the event comes from an HTTP API.
func (f fixture) request(t require.TestingT) (r request, ok bool) {
	var event struct {
		RawPath         string
		Headers         map[string]string
		RequestContext  struct{ HTTP struct{ Method string } }
		Body            string
		IsBase64Encoded bool
	}
	if json.Unmarshal(f.Event, &event) != nil || event.RequestContext.HTTP.Method == "" {
		return request{}, false
	}
	r = request{event.RequestContext.HTTP.Method, event.RawPath, http.Header{}, []byte(event.Body)}
	for name, value := range event.Headers {
		if name = http.CanonicalHeaderKey(name); !ofGateway[name] {
			r.Header.Set(name, value)
		}
	}
	if event.IsBase64Encoded {
		var err error
		r.Body, err = base64.StdEncoding.DecodeString(event.Body)
		require.NoError(t, err, f.Name)
	}
	return r, true
}

// unused is the fixture with names that no store has seen: an execution of a state machine
// that has released its lock does not get it again, and a repeat of an Idempotency-Key
// gets the answer of an earlier run. What is wrong with a key stays so.
func (f fixture) unused() fixture {
	var e struct {
		Execution string
		Detail    struct{ ExecutionArn string }
		Headers   map[string]string
	}
	if json.Unmarshal(f.Event, &e) != nil {
		return f
	}
	if execution := e.Execution + e.Detail.ExecutionArn; execution != "" {
		name := execution[strings.LastIndexByte(execution, ':')+1:]
		f.Event = bytes.ReplaceAll(f.Event, []byte(name), []byte(rand.Text()))
	}
	for name, key := range e.Headers {
		if key != "" && strings.EqualFold(name, "Idempotency-Key") {
			f.Event = bytes.ReplaceAll(f.Event, []byte(key), []byte(rand.Text()+key))
		}
	}
	return f
}

// parks says that the event is of a state that waits, with a place that only some stores have.
func (f fixture) parks() bool { return bytes.Contains(f.Event, []byte(`"taskToken"`)) }

// release is the event that releases the lock which the answer grants, or leaves the queue. ok is false
// where the answer grants neither.
func (f fixture) release(answer []byte) (event fixture, ok bool) {
	var granted struct {
		Body  string // of the lock service
		Fence int64  // of sfnlock
	}
	var e map[string]any
	if json.Unmarshal(answer, &granted) != nil || json.Unmarshal(f.Event, &e) != nil {
		return f, false
	}
	var body struct{ Token string }
	switch {
	case e["action"] == "acquire" && granted.Fence > 0:
		e["action"], e["fence"] = "release", granted.Fence
		delete(e, "ttl")
	case f.parks() && !f.fails():
		e["action"] = "abandon"
		delete(e, "ttl")
		delete(e, "taskToken")
	case json.Unmarshal([]byte(granted.Body), &body) == nil && body.Token != "":
		context, _ := e["requestContext"].(map[string]any)
		context["http"] = map[string]string{"method": http.MethodDelete}
		e = map[string]any{
			"version":        e["version"],
			"rawPath":        e["rawPath"],
			"headers":        map[string]string{"lock-token": body.Token},
			"pathParameters": e["pathParameters"],
			"requestContext": context,
		}
	default:
		return f, false
	}
	event = fixture{function: f.function}
	event.Event, _ = json.Marshal(e) // what came from JSON is JSON
	return event, true
}
