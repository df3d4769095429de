package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// machine is a state machine in the Amazon States Language, of which it knows
// what payout.asl.json uses. A field that it does not know is an error.
type machine struct {
	Comment        string
	StartAt        string
	TimeoutSeconds int
	States         map[string]*state
}

type state struct {
	Comment, Type, Next  string
	Parameters           map[string]any
	Result               any
	ResultSelector       map[string]any
	ResultPath           resultPath
	Choices              []rule
	Default              string
	Seconds              int
	Resource             string
	TimeoutSeconds       int
	Retry                []retrier
	Catch                []catcher
	Error, Cause         string
	ErrorPath, CausePath string
}

type rule struct {
	And                          []rule
	Not                          *rule
	Variable                     string
	StringMatches                string
	NumericGreaterThan           *float64
	NumericGreaterThanEqualsPath string
	Next                         string
}

type retrier struct {
	ErrorEquals     []string
	IntervalSeconds float64
	BackoffRate     float64
	MaxDelaySeconds float64
	MaxAttempts     *int
	JitterStrategy  string
}

type catcher struct {
	ErrorEquals []string
	ResultPath  resultPath
	Next        string
}

// resultPath is where a result goes into the input: "" replaces it, "null"
// drops the result.
type resultPath string

func (p *resultPath) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*p = "null"
		return nil
	}
	return json.Unmarshal(text, (*string)(p))
}

// readMachine reads the definition with what the template puts into it.
func readMachine(t *testing.T) *machine {
	t.Helper()
	text, err := os.ReadFile("payout.asl.json")
	require.NoError(t, err)
	d := json.NewDecoder(strings.NewReader(substituted(string(text))))
	d.DisallowUnknownFields()
	m := &machine{}
	require.NoError(t, d.Decode(m))
	return m
}

func substituted(text string) string {
	return strings.NewReplacer("${Partition}", "aws", "${StepFunction}", "step", "${AccountsTable}", "accounts").Replace(text)
}

// failure is how a state fails.
type failure struct{ Error, Cause string }

func (f *failure) object() any { return map[string]any{"Error": f.Error, "Cause": f.Cause} }

// How an execution is stopped from outside.
var (
	errAborted  = errors.New("ABORTED")
	errTimedOut = errors.New("TIMED_OUT")
)

// run is one execution of a machine.
type run struct {
	*machine
	context map[string]any // the context object, $$
	// task does a task's work. Its context ends with the attempt.
	task   func(ctx context.Context, state string, parameters map[string]any) (any, *failure)
	jitter func(time.Duration) time.Duration

	// What came of it.
	status  string
	failure *failure
	at      string // the state that it is in
	input   any    // of that state
	trail   []edge
}

// edge is a transition, and by what: "Next", "Catch States.ALL", ….
type edge struct{ from, by, to string }

// fullJitter is JitterStrategy FULL.
func fullJitter(d time.Duration) time.Duration { return rand.N(d + 1) }

// do runs the execution from a state on.
func (r *run) do(ctx context.Context, from string, input any) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(r.TimeoutSeconds)*time.Second, errTimedOut)
	defer cancel()
	r.status, r.at, r.input = "RUNNING", from, input
	for r.status == "RUNNING" {
		s := r.States[r.at]
		by, next, output, f := r.step(ctx, s)
		switch {
		case ctx.Err() != nil:
			r.status = context.Cause(ctx).Error()
		case f != nil:
			r.status, r.failure = "FAILED", f
		case next == "":
			r.status, r.input = "SUCCEEDED", output
		default:
			r.trail = append(r.trail, edge{r.at, by, next})
			r.at, r.input = next, output
		}
	}
}

func (r *run) step(ctx context.Context, s *state) (by, next string, output any, f *failure) {
	switch s.Type {
	case "Pass":
		result := s.Result
		if s.Parameters != nil {
			if result, f = r.template(s.Parameters, r.input); f != nil {
				return "", "", nil, f
			}
		}
		return "Next", s.Next, s.ResultPath.put(r.input, result), nil
	case "Choice":
		for i, c := range s.Choices {
			if c.matches(r.input) {
				return fmt.Sprint("Choice ", i), c.Next, r.input, nil
			}
		}
		return "Default", s.Default, r.input, nil
	case "Wait":
		sleep(ctx, time.Duration(s.Seconds)*time.Second)
		return "Next", s.Next, r.input, nil
	case "Succeed":
		return "", "", r.input, nil
	case "Fail":
		f := &failure{s.Error, s.Cause}
		if s.ErrorPath != "" {
			f.Error, f.Cause = look(r.input, s.ErrorPath).(string), look(r.input, s.CausePath).(string)
		}
		return "", "", nil, f
	case "Task":
		return r.try(ctx, s)
	}
	panic("a state of type " + s.Type)
}

// try runs a task with its Retry and its Catch.
func (r *run) try(ctx context.Context, s *state) (by, next string, output any, f *failure) {
	tries := make([]int, len(s.Retry))
	for {
		result, f := r.attempt(ctx, s)
		if ctx.Err() != nil {
			return "", "", nil, f
		}
		if f == nil {
			return "Next", s.Next, s.ResultPath.put(r.input, result), nil
		}
		if i := slices.IndexFunc(s.Retry, func(re retrier) bool { return covers(re.ErrorEquals, f.Error) }); i >= 0 && tries[i] < *s.Retry[i].MaxAttempts {
			sleep(ctx, r.jitter(s.Retry[i].delay(tries[i])))
			tries[i]++
			continue
		}
		for _, c := range s.Catch {
			if covers(c.ErrorEquals, f.Error) {
				return "Catch " + c.ErrorEquals[0], c.Next, c.ResultPath.put(r.input, f.object()), nil
			}
		}
		return "", "", nil, f
	}
}

func (r *run) attempt(ctx context.Context, s *state) (any, *failure) {
	parameters, f := r.template(s.Parameters, r.input)
	if f != nil {
		return nil, f
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.TimeoutSeconds)*time.Second)
	defer cancel()
	type answer struct {
		result any
		f      *failure
	}
	done := make(chan answer, 1)
	go func(at string) {
		result, f := r.task(ctx, at, parameters.(map[string]any))
		done <- answer{result, f}
	}(r.at)
	select {
	case a := <-done:
		if a.f == nil && s.ResultSelector != nil {
			a.result, a.f = r.template(s.ResultSelector, a.result)
		}
		return a.result, a.f
	case <-ctx.Done():
		return nil, &failure{"States.Timeout", "the state is over its TimeoutSeconds"}
	}
}

// delay is how long to wait before a retry, without jitter.
func (re retrier) delay(retries int) time.Duration {
	seconds := re.IntervalSeconds * math.Pow(re.BackoffRate, float64(retries))
	return time.Duration(min(seconds, re.MaxDelaySeconds) * float64(time.Second))
}

func covers(list []string, err string) bool {
	return slices.Contains(list, err) || slices.Contains(list, "States.ALL") && err != "States.Runtime"
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (c rule) matches(input any) bool {
	switch {
	case c.And != nil:
		return !slices.ContainsFunc(c.And, func(c rule) bool { return !c.matches(input) })
	case c.Not != nil:
		return !c.Not.matches(input)
	}
	value := look(input, c.Variable)
	if c.StringMatches != "" {
		text, ok := value.(string)
		return ok && like(text, c.StringMatches)
	}
	n, ok := value.(json.Number)
	switch {
	case !ok:
		return false
	case c.NumericGreaterThan != nil:
		return number(n) > *c.NumericGreaterThan
	case c.NumericGreaterThanEqualsPath != "":
		than, ok := look(input, c.NumericGreaterThanEqualsPath).(json.Number)
		return ok && number(n) >= number(than)
	}
	panic(fmt.Sprintf("the choice %+v", c))
}

func number(n json.Number) float64 {
	f, err := n.Float64()
	if err != nil {
		panic(err)
	}
	return f
}

// like is StringMatches, whose * is any text.
func like(text, pattern string) bool {
	first, rest, more := strings.Cut(pattern, "*")
	if !more || !strings.HasPrefix(text, first) {
		return !more && text == first
	}
	for i := len(first); i <= len(text); i++ {
		if like(text[i:], rest) {
			return true
		}
	}
	return false
}

// put is the input with the result where the path says.
func (p resultPath) put(input, result any) any {
	switch p {
	case "":
		return result
	case "null":
		return input
	}
	object := map[string]any{}
	for k, v := range input.(map[string]any) {
		object[k] = v
	}
	object[strings.TrimPrefix(string(p), "$.")] = result
	return object
}

// look follows a path such as $.a.b; nil is nothing there.
func look(v any, path string) any {
	for _, name := range strings.Split(path, ".")[1:] {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	return v
}

// template fills in a payload template.
func (r *run) template(v, input any) (any, *failure) {
	object, ok := v.(map[string]any)
	if !ok {
		return v, nil
	}
	filled := map[string]any{}
	for name, value := range object {
		var f *failure
		if short, dynamic := strings.CutSuffix(name, ".$"); dynamic {
			filled[short], f = r.value(value.(string), input)
		} else {
			filled[name], f = r.template(value, input)
		}
		if f != nil {
			return nil, f
		}
	}
	return filled, nil
}

// value is that of a path or of an intrinsic function.
func (r *run) value(text string, input any) (any, *failure) {
	switch {
	case strings.HasPrefix(text, "'"):
		return strings.Trim(text, "'"), nil
	case strings.HasPrefix(text, "$$."), strings.HasPrefix(text, "$."):
		found := look(input, text)
		if strings.HasPrefix(text, "$$.") {
			found = look(r.context, text)
		}
		if found == nil {
			return nil, &failure{"States.ParameterPathFailure", text + " is not there"}
		}
		return found, nil
	case !strings.HasPrefix(text, "States."):
		return json.Number(text), nil
	}
	name, rest, _ := strings.Cut(text, "(")
	var arguments []any
	for _, a := range split(strings.TrimSuffix(rest, ")")) {
		value, f := r.value(a, input)
		if f != nil {
			return nil, f
		}
		arguments = append(arguments, value)
	}
	result, err := intrinsic(name, arguments)
	if err != nil {
		return nil, &failure{"States.IntrinsicFailure", fmt.Sprintf("%s: %v", text, err)}
	}
	return result, nil
}

// split splits at the commas that are in no brackets and no quotes.
func split(text string) (parts []string) {
	depth, quoted, begin := 0, false, 0
	for i, c := range text + "," {
		switch {
		case c == '\'':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			parts, begin = append(parts, strings.TrimSpace(text[begin:i])), i+1
		}
	}
	return parts
}

func intrinsic(name string, a []any) (any, error) {
	switch name {
	case "States.Format":
		text, err := a[0].(string), error(nil)
		for _, v := range a[1:] {
			switch v.(type) {
			case string, json.Number:
			default:
				err = fmt.Errorf("%v is no text and no number", v)
			}
			text = strings.Replace(text, "{}", fmt.Sprint(v), 1)
		}
		return text, err
	case "States.StringSplit":
		text, ok := a[0].(string)
		if !ok {
			return nil, fmt.Errorf("%v is no text", a[0])
		}
		parts := []any{}
		for _, part := range strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(a[1].(string), c) }) {
			parts = append(parts, part)
		}
		return parts, nil
	case "States.ArrayGetItem":
		i, err := a[1].(json.Number).Int64()
		if list := a[0].([]any); err == nil && int(i) < len(list) {
			return list[i], nil
		}
		return nil, fmt.Errorf("there is no item %v", a[1])
	case "States.StringToJson":
		return decode([]byte(a[0].(string))), nil
	}
	panic("the intrinsic function " + name)
}

// decode reads JSON whose numbers stay as they are.
func decode(text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return v
}
