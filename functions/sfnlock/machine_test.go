package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
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
	IsNumeric                    bool
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

// edge is a transition, and by what: "Next", "Catch States.ALL", ….
type edge struct{ from, by, to string }

// delay is how long to wait before a retry, without jitter.
func (re retrier) delay(retries int) time.Duration {
	seconds := re.IntervalSeconds * math.Pow(re.BackoffRate, float64(retries))
	return time.Duration(min(seconds, re.MaxDelaySeconds) * float64(time.Second))
}

// look follows a path such as $.a.b; nil is nothing there.
func look(v any, path string) any {
	for _, name := range strings.Split(path, ".")[1:] {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	return v
}

// The states that acquire, renew and release the lock.
const (
	acquireState = "Acquire"
	renewState   = "Renew"
	releaseState = "Release"
	abandonState = "Abandon"
)

const (
	invokeFunction = "arn:aws:states:::lambda:invoke"
	updateItem     = "arn:aws:states:::dynamodb:updateItem"
)

// final are the errors for which a second try does not help.
var final = map[string][]string{
	invokeFunction: {"LockInvalid", "LockCorrupt", "LockLost"},
	updateItem:     {"DynamoDB.ConditionalCheckFailedException"},
}

// edges are all transitions out of a state.
func (m *machine) edges(name string) (all []edge) {
	s := m.States[name]
	if s.Next != "" {
		all = append(all, edge{name, "Next", s.Next})
	}
	for i, c := range s.Choices {
		all = append(all, edge{name, fmt.Sprint("Choice ", i), c.Next})
	}
	if s.Default != "" {
		all = append(all, edge{name, "Default", s.Default})
	}
	for _, c := range s.Catch {
		all = append(all, edge{name, "Catch " + c.ErrorEquals[0], c.Next})
	}
	return all
}

// reach are the states that can follow a state, without going on behind those
// of stop.
func (m *machine) reach(from string, stop ...string) map[string]bool {
	seen := map[string]bool{}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, e := range m.edges(queue[0]) {
			if !seen[e.to] && m.States[e.to] != nil {
				seen[e.to] = true
				if !slices.Contains(stop, e.to) {
					queue = append(queue, e.to)
				}
			}
		}
	}
	return seen
}

// longest is the longest time that a state can take, with all its retries.
func (s *state) longest() time.Duration {
	if s.Type != "Task" {
		return time.Duration(s.Seconds) * time.Second
	}
	tries, total := 1, time.Duration(0)
	for _, re := range s.Retry {
		for i := range *re.MaxAttempts {
			total += re.delay(i)
		}
		tries += *re.MaxAttempts
	}
	return total + time.Duration(tries*s.TimeoutSeconds)*time.Second
}

// longest is the longest time from a state's begin to the end of one of the
// others, or of the execution.
func (m *machine) longest(from string, to ...string) time.Duration {
	var rest time.Duration
	if !slices.Contains(to, from) {
		for _, e := range m.edges(from) {
			rest = max(rest, m.longest(e.to, to...))
		}
	}
	return m.States[from].longest() + rest
}

// problems are what is wrong with a machine that is to hold a lock over some of
// its states, and to release the lock whatever happens.
func (m *machine) problems(functionTimeout int) (all []string) {
	bad := func(format string, a ...any) { all = append(all, fmt.Sprintf(format, a...)) }
	for name, s := range m.States {
		if end := s.Type == "Succeed" || s.Type == "Fail"; end != (len(m.edges(name)) == 0) {
			bad("%s: has the type %s and %d transitions", name, s.Type, len(m.edges(name)))
		}
		for _, e := range m.edges(name) {
			if m.States[e.to] == nil {
				bad("%s: %s leads to %s, which is not there", name, e.by, e.to)
			}
		}
		if m.reach(name)[name] {
			bad("%s: can follow itself, so the execution has no bound", name)
		}
		if s.Type == "Task" {
			all = append(all, s.problems(name, functionTimeout)...)
		}
	}
	if len(all) > 0 {
		return all
	}

	for name := range m.States {
		if name != m.StartAt && !m.reach(m.StartAt)[name] {
			bad("%s: is never reached", name)
		}
	}
	before := m.reach(m.StartAt, acquireState)
	under := m.reach(acquireState, releaseState, abandonState)
	working := 0
	for name, s := range m.States {
		works := s.Resource == updateItem
		holds := name == acquireState || under[name] && name != releaseState && name != abandonState
		switch {
		case works && (before[name] || !under[name]):
			bad("%s: works without the lock", name)
		case holds && len(m.edges(name)) == 0:
			bad("%s: ends the execution and leaves the lock held", name)
		case holds && s.Type == "Task" && (len(s.Catch) != 1 || s.Catch[0].Next != abandonState || s.Catch[0].ErrorEquals[0] != "States.ALL" || string(s.Catch[0].ResultPath) != `"$.failure"`):
			bad("%s: Catch States.ALL has to lead to %s and keep the failure", name, abandonState)
		}
		if works {
			working++
			all = append(all, s.unfenced(name)...)
		}
	}
	if working < 3 {
		bad("%d states work under the lock; want 3 or more", working)
	}
	for _, from := range []string{acquireState, renewState} {
		ttl, ok := look(map[string]any(m.States[from].Parameters), "$.Payload.ttl").(float64)
		next := m.States[from].Next
		// What trusts the lock ends with Renew or Release, and that has to arrive.
		if held := m.longest(next, renewState, releaseState); !ok || held >= time.Duration(ttl)*time.Second {
			bad("%s: the lock lasts %v s, and is to last %v", from, ttl, held)
		}
	}
	if all := m.longest(m.StartAt); all > time.Duration(m.TimeoutSeconds)*time.Second {
		bad("the states may take %v, and TimeoutSeconds is %d", all, m.TimeoutSeconds)
	}
	return all
}

func (s *state) problems(name string, functionTimeout int) (all []string) {
	bad := func(format string, a ...any) { all = append(all, name+": "+fmt.Sprintf(format, a...)) }
	never, known := final[s.Resource]
	switch {
	case !known:
		bad("calls %s", s.Resource)
	case s.TimeoutSeconds <= 0:
		bad("has no TimeoutSeconds")
	case s.Resource == invokeFunction && s.TimeoutSeconds <= functionTimeout:
		bad("TimeoutSeconds is %d, and the function has %d s to answer", s.TimeoutSeconds, functionTimeout)
	}
	if len(s.Retry) < 2 || !slices.Equal(s.Retry[0].ErrorEquals, never) || s.Retry[0].MaxAttempts == nil || *s.Retry[0].MaxAttempts != 0 {
		bad("the first Retry has to be for %v, with MaxAttempts 0", never)
		return all
	}
	for _, re := range s.Retry[1:] {
		switch {
		case re.MaxAttempts == nil || *re.MaxAttempts < 1 || *re.MaxAttempts > 20:
			bad("Retry %v: MaxAttempts has to be 1 to 20", re.ErrorEquals)
		case re.JitterStrategy != "FULL" || re.IntervalSeconds < 1 || re.BackoffRate <= 1 || re.MaxDelaySeconds <= re.IntervalSeconds || math.Trunc(re.IntervalSeconds) != re.IntervalSeconds:
			bad("Retry %v: has to wait longer each time, up to a bound, with full jitter", re.ErrorEquals)
		}
	}
	if !slices.Equal(s.Retry[len(s.Retry)-1].ErrorEquals, []string{"States.ALL"}) {
		bad("the last Retry has to be for States.ALL, because every action can be repeated")
	}
	busy := slices.ContainsFunc(s.Retry[1:], func(re retrier) bool { return slices.Equal(re.ErrorEquals, []string{"LockBusy"}) })
	if acquires := look(map[string]any(s.Parameters), "$.Payload.action") == "acquire"; acquires != busy {
		bad("LockBusy has to be tried again where the lock is acquired, and only there")
	}
	return all
}

// unfenced says how a write differs from what dynamostore.Fenced makes of it.
func (s *state) unfenced(name string) (all []string) {
	const (
		condition = " AND (attribute_not_exists(lock_fence) OR lock_fence <= :lock_fence)"
		update    = "lock_fence = :lock_fence"
	)
	text := func(field string) string { v, _ := s.Parameters[field].(string); return v }
	own := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(text("ConditionExpression"), condition), "("), ")")
	change := strings.Replace(strings.Replace(text("UpdateExpression"), "SET "+update+", ", "SET ", 1), "SET "+update+" ", "", 1)
	in := &dynamodb.UpdateItemInput{ConditionExpression: &own, UpdateExpression: &change}
	if err := dynamostore.Fenced(in, 1); err != nil {
		return []string{err.Error()}
	}
	if *in.ConditionExpression != text("ConditionExpression") || *in.UpdateExpression != text("UpdateExpression") {
		all = append(all, fmt.Sprintf("%s: has no fence; want %q and %q", name, *in.ConditionExpression, *in.UpdateExpression))
	}
	if fence := look(map[string]any(s.Parameters), "$.ExpressionAttributeValues.:lock_fence"); !equal(fence, map[string]any{"N.$": "States.Format('{}', $.lock.fence)"}) {
		all = append(all, fmt.Sprintf("%s: the fence is %v", name, fence))
	}
	return all
}

func equal(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

func TestTheMachineReleasesItsLock(t *testing.T) {
	require.Empty(t, readMachine(t).problems(functionTimeout(t)))
}

// Each of these is one mistake in the definition, and has to be found.
func TestMistakesAreFound(t *testing.T) {
	text := string(readFile(t, "payout.asl.json"))
	for name, c := range map[string]struct{ state, old, new, want string }{
		"no timeout":                    {"Claim", `"TimeoutSeconds": 5`, `"TimeoutSeconds": 0`, "Claim: has no TimeoutSeconds"},
		"less time than the function":   {"Renew", `"TimeoutSeconds": 15`, `"TimeoutSeconds": 10`, "Renew: TimeoutSeconds is 10"},
		"no such state":                 {"Debit", `"Next": "Settle"`, `"Next": "Settled"`, "leads to Settled"},
		"a state that nothing leads to": {"Enough", `"Default": "Insufficient"`, `"Default": "Abandon"`, "Insufficient: is never reached"},
		"a loop":                        {"Settle", `"Next": "Release"`, `"Next": "Claim"`, "can follow itself"},
		"no catch":                      {"Debit", `"Next": "Abandon"`, `"Next": "Failed"`, "Debit: Catch States.ALL has to lead to Abandon"},
		"a catch of one error":          {"Renew", `"ErrorEquals": ["States.ALL"], "ResultPath": "$.failure"`, `"ErrorEquals": ["LockLost"], "ResultPath": "$.failure"`, "Renew: Catch States.ALL"},
		"the failure is overwritten":    {"Settle", `"ResultPath": "$.failure"`, `"ResultPath": "$"`, "keep the failure"},
		"acquire leaves it held":        {"Acquire", `"Next": "Abandon"`, `"Next": "Failed"`, "Acquire: Catch"},
		"the choice leaves it held":     {"Insufficient", `"Next": "Abandon"`, `"Next": "Failed"`, "Failed: ends the execution and leaves the lock held"},
		"work before the lock":          {"Check", `"Default": "BadInput"`, `"Default": "Settle"`, "Settle: works without the lock"},
		"work behind the lock":          {"Release", `"Next": "Done"`, `"Next": "Settle"`, "Settle: can follow itself"},
		"retries for ever":              {"Acquire", `"MaxAttempts": 12`, `"MaxAttempts": 9999`, "MaxAttempts has to be 1 to 20"},
		"no jitter":                     {"Acquire", `"MaxAttempts": 12, "JitterStrategy": "FULL"`, `"MaxAttempts": 12, "JitterStrategy": "NONE"`, "full jitter"},
		"what is final is tried again":  {"Renew", `"MaxAttempts": 0`, `"MaxAttempts": 3`, "with MaxAttempts 0"},
		"a busy lock is not waited for": {"Acquire", `"ErrorEquals": ["LockBusy"]`, `"ErrorEquals": ["LockDeadline"]`, "LockBusy has to be tried again"},
		"some errors are not retried":   {"Release", `"ErrorEquals": ["States.ALL"], "IntervalSeconds"`, `"ErrorEquals": ["LockStoreUnavailable"], "IntervalSeconds"`, "the last Retry has to be for States.ALL"},
		"no fence in the condition":     {"Debit", ` AND (attribute_not_exists(lock_fence) OR lock_fence <= :lock_fence)`, ``, "Debit: has no fence"},
		"the fence is not kept":         {"Settle", `SET lock_fence = :lock_fence REMOVE`, `REMOVE`, "Settle: has no fence"},
		"another fence":                 {"Claim", `$.lock.fence`, `$.fence`, "Claim: the fence is"},
		"the lock ends before renew":    {"Pay", `"Seconds": 20`, `"Seconds": 120`, "Acquire: the lock lasts 180 s"},
		"renew is too short":            {"Renew", `"ttl": 180`, `"ttl": 60`, "Renew: the lock lasts 60 s"},
		"the machine ends first":        {"Comment", `"TimeoutSeconds": 900`, `"TimeoutSeconds": 300`, "TimeoutSeconds is 300"},
	} {
		t.Run(name, func(t *testing.T) {
			i := strings.Index(text, `"`+c.state+`": `)
			require.GreaterOrEqual(t, i, 0)
			changed := text[:i] + strings.Replace(text[i:], c.old, c.new, 1)
			require.NotEqual(t, text, changed)
			var m machine
			require.NoError(t, json.Unmarshal([]byte(substituted(changed)), &m))
			all := m.problems(functionTimeout(t))
			require.NotEmpty(t, all)
			require.Contains(t, strings.Join(all, "\n"), c.want)
		})
	}
}
