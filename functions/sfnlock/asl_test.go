package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
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

// resultPath is where a result goes into the input, as JSON: nothing replaces the
// input, null drops the result.
type resultPath = json.RawMessage

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
	return strings.NewReplacer("${Partition}", "aws", "${SfnlockFunction}", "sfnlock", "${AccountsTable}", "accounts").Replace(text)
}

// failure is how a state fails.
type failure struct{ Error, Cause string }

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
		return "Next", s.Next, put(s.ResultPath, r.input, result), nil
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
			return "Next", s.Next, put(s.ResultPath, r.input, result), nil
		}
		if i := slices.IndexFunc(s.Retry, func(re retrier) bool { return covers(re.ErrorEquals, f.Error) }); i >= 0 && tries[i] < *s.Retry[i].MaxAttempts {
			sleep(ctx, r.jitter(s.Retry[i].delay(tries[i])))
			tries[i]++
			continue
		}
		for _, c := range s.Catch {
			if covers(c.ErrorEquals, f.Error) {
				return "Catch " + c.ErrorEquals[0], c.Next, put(c.ResultPath, r.input, map[string]any{"Error": f.Error, "Cause": f.Cause}), nil
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
	case c.StringMatches != "":
		text, ok := look(input, c.Variable).(string)
		return ok && regexp.MustCompile("^"+strings.ReplaceAll(regexp.QuoteMeta(c.StringMatches), `\*`, ".*")+"$").MatchString(text)
	}
	number := func(path string) (float64, bool) {
		n, ok := look(input, path).(json.Number)
		f, err := n.Float64()
		return f, ok && err == nil
	}
	n, ok := number(c.Variable)
	if c.NumericGreaterThan != nil {
		return ok && n > *c.NumericGreaterThan
	}
	than, known := number(c.NumericGreaterThanEqualsPath)
	return ok && known && n >= than
}

// put is the input with the result where the path says.
func put(path resultPath, input, result any) any {
	switch string(path) {
	case "":
		return result
	case "null":
		return input
	}
	object := maps.Clone(input.(map[string]any))
	object[strings.Trim(string(path), `"$.`)] = result
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

// The intrinsic functions, in the forms that the definition uses.
var (
	format       = regexp.MustCompile(`^States\.Format\('\{\}', (.+)\)$`)
	itemOfSplit  = regexp.MustCompile(`^States\.ArrayGetItem\(States\.StringSplit\((.+), '(.)'\), (\d)\)$`)
	stringToJSON = regexp.MustCompile(`^States\.StringToJson\((.+)\)$`)
)

// value is that of a path or of an intrinsic function.
func (r *run) value(text string, input any) (any, *failure) {
	for _, function := range []*regexp.Regexp{format, itemOfSplit, stringToJSON} {
		m := function.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		found, f := r.value(m[1], input)
		if f != nil {
			return nil, f
		}
		argument := fmt.Sprint(found)
		switch function {
		case format:
			return argument, nil
		case stringToJSON:
			return decode([]byte(argument)), nil
		}
		parts := strings.FieldsFunc(argument, func(c rune) bool { return string(c) == m[2] })
		if i := int(m[3][0] - '0'); i < len(parts) {
			return parts[i], nil
		}
		return nil, &failure{"States.IntrinsicFailure", text}
	}
	found := look(input, text)
	if strings.HasPrefix(text, "$$.") {
		found = look(r.context, text)
	}
	if found == nil {
		return nil, &failure{"States.ParameterPathFailure", text + " is not there"}
	}
	return found, nil
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
