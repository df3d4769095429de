package main

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// machine is what these tests read of a state machine in the Amazon States Language.
type machine struct {
	StartAt        string
	TimeoutSeconds int
	States         map[string]*state
}

type state struct {
	Type, Next, Default, Resource string
	Parameters                    map[string]any
	Choices, Catch                []struct{ Next string }
	Seconds, TimeoutSeconds       int
	Retry                         []retrier
}

type retrier struct {
	ErrorEquals                                   []string
	IntervalSeconds, BackoffRate, MaxDelaySeconds float64
	MaxAttempts                                   int
	JitterStrategy                                string
}

// readMachine reads the definition with what the template puts into it.
func readMachine(t *testing.T) (m machine) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(substituted(string(readFile(t, "payout.asl.json")))), &m))
	return m
}

func substituted(text string) string {
	return strings.NewReplacer("${Partition}", "aws", "${SfnlockFunction}", "sfnlock", "${AccountsTable}", "accounts").Replace(text)
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

// next are the states that may follow.
func (s *state) next() (all []string) {
	all = append(all, s.Next, s.Default)
	for _, to := range slices.Concat(s.Choices, s.Catch) {
		all = append(all, to.Next)
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// longest is the longest time that a state can take, with all its retries.
func (s *state) longest() time.Duration {
	seconds := float64(s.Seconds + s.TimeoutSeconds)
	for _, re := range s.Retry {
		for i := range re.MaxAttempts {
			seconds += float64(s.TimeoutSeconds) + min(re.IntervalSeconds*math.Pow(re.BackoffRate, float64(i)), re.MaxDelaySeconds)
		}
	}
	return time.Duration(seconds * float64(time.Second))
}

// longest is the longest time from a state's begin to the end of one of the others, or of the
// execution.
func (m machine) longest(from string, to ...string) (longest time.Duration) {
	if !slices.Contains(to, from) {
		for _, next := range m.States[from].next() {
			longest = max(longest, m.longest(next, to...))
		}
	}
	return m.States[from].longest() + longest
}

// TestTimes is about what an interpreter shows only in hours: how long states and locks last. TestPayout has the rest.
func TestTimes(t *testing.T) {
	m := readMachine(t)
	for name, s := range m.States {
		if s.Type != "Task" {
			continue
		}
		assert.Positive(t, s.TimeoutSeconds, name)
		if s.Resource == invokeFunction {
			assert.Greater(t, s.TimeoutSeconds, functionTimeout(t), "%s: the function has this time to answer", name)
		}
		for _, re := range s.Retry[1:] { // the first is for what is final
			assert.True(t, re.JitterStrategy == "FULL" && re.BackoffRate > 1 && re.MaxDelaySeconds > re.IntervalSeconds && re.MaxAttempts <= 20,
				"%s: %v: has to wait longer each time, up to a bound, with full jitter", name, re.ErrorEquals)
		}
	}
	for _, from := range []string{acquireState, renewState} {
		ttl := look(m.States[from].Parameters, "$.Payload.ttl").(float64)
		// What trusts the lock ends with Renew or Release, and that has to arrive.
		assert.Less(t, m.longest(m.States[from].Next, renewState, releaseState).Seconds(), ttl, "%s: for as long as the lock lasts", from)
	}
	assert.LessOrEqual(t, m.longest(m.StartAt).Seconds(), float64(m.TimeoutSeconds))
}
