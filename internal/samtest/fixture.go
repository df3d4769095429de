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
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lambdalock/lambdalock/lockstore"
)

// fixture is an event and the answer that its function is to give.
type fixture struct {
	name     string // file name without .json
	function function
	event    []byte
	want     []byte
}

func readFixtures(dir string, t template) ([]fixture, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []fixture
	for _, file := range files {
		if strings.HasSuffix(file, ".out.json") {
			continue
		}
		f := fixture{name: strings.TrimSuffix(filepath.Base(file), ".json")}
		var known bool
		if f.function, known = t.functionOf(f.name); !known {
			return nil, fmt.Errorf("%s belongs to no function of the template", file)
		}
		if f.event, err = os.ReadFile(file); err != nil {
			return nil, err
		}
		if f.want, err = os.ReadFile(strings.TrimSuffix(file, ".json") + ".out.json"); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no events; run this in the repository's root", dir)
	}
	slices.SortFunc(all, func(a, b fixture) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// What the unit tests of the functions set up for their events.
const (
	account = "7"
	another = "9"
	nobody  = "8"     // does not exist
	opening = 100_000 // cents
)

// heldKey is the key that another holds when the event is about that.
func (f fixture) heldKey() string {
	switch f.function.name {
	case "locks":
		return lockstore.Key("shared", "report")
	case "nightly":
		return lockstore.Key("schedule", "nightly")
	}
	return lockstore.Key("account", account)
}

// busy says that the event is about a lock that another holds.
func (f fixture) busy() bool { return strings.Contains(f.name, "busy") }

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
	if !f.busy() {
		return nil
	}
	release, err := s.hold(ctx, t, f.heldKey())
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
	if json.Unmarshal(f.event, &event) != nil || event.Context.HTTP.Method == "" {
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
	if json.Unmarshal(f.event, &e) != nil || e.Execution+e.Detail.ExecutionArn == "" {
		return f.event
	}
	execution := e.Execution + e.Detail.ExecutionArn
	name := execution[strings.LastIndexByte(execution, ':')+1:]
	return bytes.ReplaceAll(f.event, []byte(name), []byte(rand.Text()))
}

// handBack is the event that gives back the lock that the answer says is had. ok
// is false where it says no such thing.
func (f fixture) handBack(answer []byte) (event []byte, ok bool) {
	var had struct {
		Body  string // of the lock service
		Fence int64  // of a step
	}
	var e map[string]any
	if json.Unmarshal(answer, &had) != nil || json.Unmarshal(f.event, &e) != nil {
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
