package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/lambdalock/lambdalock/internal/eventfiles"
)

// fixture is an event and the function that it is for.
type fixture struct {
	eventfiles.Fixture
	function function
}

func readFixtures(dir string, t template) (all []fixture, err error) {
	found, err := eventfiles.Read(dir, "")
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		of, known := t.functionOf(f.Name)
		if !known {
			return nil, fmt.Errorf("events/%s.json belongs to no function of the template", f.Name)
		}
		all = append(all, fixture{f, of})
	}
	return all, nil
}

// What the unit tests of the functions set up for their events.
const (
	account = "7"
	another = "9"
	nobody  = "8"     // does not exist
	opening = 100_000 // cents
)

// prepare makes the world that the event was written for: accounts, and a lock
// that another holds where the event is about that.
func (f fixture) prepare(ctx context.Context, s *store, d desk, t template) error {
	if err := errors.Join(s.letGo(ctx), s.fresh(ctx)); err != nil {
		return fmt.Errorf("%s cannot be emptied: %w", s.name, err)
	}
	for _, id := range []string{account, another} {
		if err := d.open(ctx, id, opening); err != nil {
			return fmt.Errorf("no account can be opened on %s: %w", s.name, err)
		}
	}
	if f.Held == "" {
		return nil
	}
	release, err := s.hold(ctx, t, f.Held)
	if err != nil {
		return fmt.Errorf("no lock can be taken on %s: %w", s.name, err)
	}
	s.held = release
	return nil
}

// request is an event of an HTTP API, as its client sent it.
type request struct {
	Method, Path string
	Header       http.Header
	Body         []byte
}

// ofGateway are headers that a client writes for itself, or the gateway adds.
var ofGateway = map[string]bool{
	"Content-Length": true, "Host": true, "User-Agent": true, "X-Amzn-Trace-Id": true,
	"X-Forwarded-For": true, "X-Forwarded-Port": true, "X-Forwarded-Proto": true,
}

// http returns the client's request, when the event comes from an HTTP API.
func (f fixture) http() (request, bool) {
	var event struct {
		RawPath string            `json:"rawPath"`
		Headers map[string]string `json:"headers"`
		Context struct {
			HTTP struct {
				Method string `json:"method"`
			} `json:"http"`
		} `json:"requestContext"`
		Body     string `json:"body"`
		IsBase64 bool   `json:"isBase64Encoded"`
	}
	if json.Unmarshal(f.Event, &event) != nil || event.Context.HTTP.Method == "" {
		return request{}, false
	}
	r := request{event.Context.HTTP.Method, event.RawPath, http.Header{}, []byte(event.Body)}
	for name, value := range event.Headers {
		if name = http.CanonicalHeaderKey(name); !ofGateway[name] {
			r.Header.Set(name, value)
		}
	}
	if event.IsBase64 {
		body, err := base64.StdEncoding.DecodeString(event.Body)
		if err != nil {
			return request{}, false
		}
		r.Body = body
	}
	return r, true
}

// unused is the event of an execution of a state machine that no store has seen,
// because one that has given its lock back does not get it again.
func (f fixture) unused() []byte {
	var e struct {
		Execution string
		Detail    struct{ ExecutionArn string }
	}
	if json.Unmarshal(f.Event, &e) != nil || e.Execution+e.Detail.ExecutionArn == "" {
		return f.Event
	}
	execution := e.Execution + e.Detail.ExecutionArn
	name := execution[strings.LastIndexByte(execution, ':')+1:]
	return bytes.ReplaceAll(f.Event, []byte(name), []byte(rand.Text()))
}

// handBack is the event that gives back the lock that the answer says is had. ok
// is false where it says no such thing.
func (f fixture) handBack(answer []byte) (event []byte, ok bool) {
	var had struct {
		Body  string // of the lock service
		Fence int64  // of a step
	}
	var e map[string]any
	if json.Unmarshal(answer, &had) != nil || json.Unmarshal(f.Event, &e) != nil {
		return nil, false
	}
	var grant struct{ Token string }
	switch {
	case e["action"] == "acquire" && had.Fence > 0:
		e["action"], e["fence"] = "release", had.Fence
		delete(e, "ttl")
	case json.Unmarshal([]byte(had.Body), &grant) == nil && grant.Token != "":
		e = map[string]any{
			"headers":        map[string]string{"lock-token": grant.Token},
			"pathParameters": e["pathParameters"],
			"requestContext": e["requestContext"],
		}
		if r, ok := e["requestContext"].(map[string]any); ok {
			r["http"] = map[string]string{"method": http.MethodDelete}
		}
	default:
		return nil, false
	}
	event, err := json.Marshal(e)
	return event, err == nil
}
