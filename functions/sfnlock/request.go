package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/strictjson"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Bounds of a request. Those of the key and of ttl are the store's.
const (
	maxInputBytes = 8 << 10
	minTTL        = int64(lockstore.MinTTL / time.Second)
	maxTTL        = int64(lockstore.MaxTTL / time.Second)
)

// request is what a state or an event asks for.
type request struct {
	action    string
	key       string
	execution execution
	redrive   int64
	fence     lockstore.Fence
	ttl       time.Duration
	token     lockstore.WakeAddress // of the state that waits for the lock; "" is none
	woken     bool                  // the execution was woken before
}

const (
	acquire = "acquire"
	renew   = "renew"
	release = "release"
	abandon = "abandon"
)

// fields are what an action needs beside action, key, execution and redrive. Acquire may also have
// those in optional.
var fields = map[string][]string{
	acquire: {"ttl"},
	renew:   {"fence", "ttl"},
	release: {"fence"},
	abandon: nil,
}

var optional = []string{"taskToken", "woken"}

// execution is the ARN of an execution of a standard workflow.
type execution string

var executionARN = regexp.MustCompile(`^arn:[^:]+:states:[^:]+:[0-9]+:execution:([^:]+):([^:]+)$`)

func (e execution) validate(field string) error {
	if !executionARN.MatchString(string(e)) {
		return fmt.Errorf("%s: is %s; want the ARN of a standard workflow's execution", field, strictjson.Shown(string(e)))
	}
	return nil
}

// holder says, for people, which execution it is. It has no Caller: Lambda does not
// tell a function who has invoked it, so the execution is what the input says.
func (e execution) holder() lockstore.HolderInfo {
	parts := executionARN.FindStringSubmatch(string(e))
	return lockstore.HolderInfo{Name: parts[1], ID: parts[2]}
}

// parse reads the input of a state or an event. Its error names the field. With
// an error the request has the key, if there was one to read.
func parse(in []byte) (request, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(in, &object); err != nil || object == nil {
		return request{}, errors.New("input: want a JSON object with an action, or an event of EventBridge")
	}
	if _, isEvent := object["detail-type"]; isEvent {
		return parseEvent(in)
	}
	if len(in) > maxInputBytes {
		return request{}, fmt.Errorf("input: has %d bytes; want at most %d", len(in), maxInputBytes)
	}
	return parseAction(string(in))
}

func parseAction(in string) (r request, err error) {
	values, err := strictjson.Object(in, maxInputBytes, "action", "key", "execution", "redrive", "fence", "ttl", "taskToken", "woken")
	if err != nil {
		return r, err
	}
	r.key, _ = values["key"].(string) // for the error; looked at again below
	if r.action, err = strictjson.String(values, "action"); err != nil {
		return r, err
	}
	needs, known := fields[r.action]
	if !known {
		return r, fmt.Errorf("action: is %s; want acquire, renew, release or abandon", strictjson.Shown(r.action))
	}
	for _, name := range append([]string{"fence", "ttl"}, optional...) {
		may := slices.Contains(needs, name) || r.action == acquire && slices.Contains(optional, name)
		if _, there := values[name]; there && !may {
			return r, fmt.Errorf("%s: does not belong to the action %s", name, r.action)
		}
	}
	// The first field that is wrong is the error.
	text := func(name string) (v string) {
		if err == nil {
			v, err = strictjson.String(values, name)
		}
		return v
	}
	whole := func(name string, low, high int64) (n int64) {
		if err == nil && (name == "redrive" || slices.Contains(needs, name)) {
			n, err = strictjson.Whole(values, name, "a whole number", low, high)
		}
		return n
	}
	r.key, r.execution = text("key"), execution(text("execution"))
	if err == nil {
		err = r.execution.validate("execution")
	}
	r.redrive = whole("redrive", 0, math.MaxInt64)
	r.fence = lockstore.Fence(whole("fence", 1, math.MaxInt64))
	r.ttl = time.Duration(whole("ttl", minTTL, maxTTL)) * time.Second
	if v, there := values["woken"]; there && err == nil {
		if r.woken, there = v.(bool); !there {
			err = errors.New("woken: want true or false")
		}
	}
	if _, waits := values["taskToken"]; waits && err == nil {
		r.token, err = taskToken(values)
	}
	return r, err
}

// taskToken reads the token of a state that waits. It is a secret, so its error does not show it.
func taskToken(values map[string]json.Token) (lockstore.WakeAddress, error) {
	token, err := strictjson.String(values, "taskToken")
	if err != nil {
		return "", err
	}
	if token == "" || len(token) > lockstore.MaxTaskTokenBytes {
		return "", fmt.Errorf("taskToken: has %d bytes; want 1 to %d, from $$.Task.Token", len(token), lockstore.MaxTaskTokenBytes)
	}
	return lockstore.TaskToken(token), nil
}

// What EventBridge says of executions that run no state any more. One that
// failed may have abandoned by itself; again does no harm.
const (
	eventSource = "aws.states"
	eventType   = "Step Functions Execution Status Change"
)

var ended = []string{"FAILED", "TIMED_OUT", "ABORTED"}

// parseEvent reads an event, and takes only one that says that an execution has
// ended without success.
func parseEvent(in []byte) (r request, err error) {
	var event struct {
		Source string `json:"source"`
		Type   string `json:"detail-type"`
		Detail struct {
			Execution execution       `json:"executionArn"`
			Status    string          `json:"status"`
			Redrive   *strictjson.Int `json:"redriveCount"`
			Input     *string         `json:"input"`
		} `json:"detail"`
	}
	if err := json.Unmarshal(in, &event); err != nil {
		return r, fmt.Errorf("event: %w", err)
	}
	d := event.Detail
	switch {
	case event.Source != eventSource:
		return r, fmt.Errorf("source: is %s; want %q", strictjson.Shown(event.Source), eventSource)
	case event.Type != eventType:
		return r, fmt.Errorf("detail-type: is %s; want %q", strictjson.Shown(event.Type), eventType)
	case !slices.Contains(ended, d.Status):
		return r, fmt.Errorf("detail.status: is %s; want one of %q, or a lock in use would be taken away", strictjson.Shown(d.Status), ended)
	case d.Redrive == nil || *d.Redrive < 0:
		return r, errors.New("detail.redriveCount: want a whole number, 0 or more")
	}
	if err := d.Execution.validate("detail.executionArn"); err != nil {
		return r, err
	}
	if d.Input == nil { // and not errNoKey: it may have had a lock
		return r, errors.New("detail.input: is missing, because it is too large for an event; the lock ends by its ttl")
	}
	r = request{action: abandon, execution: d.Execution, redrive: int64(*d.Redrive)}
	if r.key, err = keyOf([]byte(*d.Input)); err == nil {
		err = lockstore.ValidateKey(r.key)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", errNoKey, err)
	}
	return r, err
}

// errNoKey is of an execution that was started with a wrong input, so that it has had no lock.
var errNoKey = errors.New("no key")

// keyOf finds the key in an execution's input, of which it knows nothing else.
func keyOf(input []byte) (string, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(input, &object); err != nil {
		return "", errors.New("detail.input: want a JSON object with a string key")
	}
	var key string
	if raw := object["key"]; !bytes.HasPrefix(raw, []byte{'"'}) || json.Unmarshal(raw, &key) != nil {
		return "", errors.New("detail.input: has no string key")
	}
	return key, nil
}
