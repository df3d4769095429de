package main

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/lockstore"
)

// machine is what these tests read of a state machine in the Amazon States Language.
type machine struct {
	StartAt        string
	TimeoutSeconds int
	States         map[string]*state
}

type state struct {
	Type, Next, Default, Resource             string
	Parameters                                map[string]any
	Choices, Catch                            []following
	Seconds, HeartbeatSeconds, TimeoutSeconds int
	Retry                                     []retrier
}

type following struct{ Next string }

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

// The page names the states to copy: those that call the function, and the ends behind them.
func TestPageNamesTheStates(t *testing.T) {
	want := []string{"Done", "Failed"}
	for name, s := range readMachine(t).States {
		if s.Parameters["FunctionName"] == "sfnlock" {
			want = append(want, name)
		}
	}
	step := regexp.MustCompile("1\\. Copy (.*), and the parameter `wait` of the state `Read`").FindSubmatch(readFile(t, "../../docs/http.md"))
	require.NotNil(t, step)
	var named []string
	for _, name := range regexp.MustCompile("`(\\w+)`").FindAllSubmatch(step[1], -1) {
		named = append(named, string(name[1]))
	}
	require.ElementsMatch(t, want, named)
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
	waitState    = "WaitForLock"
	renewState   = "Renew"
	releaseState = "Release"
	abandonState = "Abandon"
)

const (
	invokeFunction   = "arn:aws:states:::lambda:invoke"
	invokeWithAToken = invokeFunction + ".waitForTaskToken"
	updateItem       = "arn:aws:states:::dynamodb:updateItem"
)

// final are the errors for which a second try does not help.
var final = map[string][]string{
	invokeFunction:   {"LockBadRequest", "LockCorrupt", "LockLost"},
	invokeWithAToken: {"LockBadRequest", "LockCorrupt", "LockLost"},
	updateItem:       {"DynamoDB.ConditionalCheckFailedException"},
}

// next are the states that may follow.
func (s *state) next() (all []string) {
	all = append(all, s.Next, s.Default)
	for _, to := range slices.Concat(s.Choices, s.Catch) {
		all = append(all, to.Next)
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// pause is the longest before a retry, after so many others.
func (re retrier) pause(tries int) time.Duration {
	return time.Duration(min(re.IntervalSeconds*math.Pow(re.BackoffRate, float64(tries)), re.MaxDelaySeconds) * float64(time.Second))
}

// longest is the longest time that a state can take, with all its retries.
func (s *state) longest() time.Duration {
	once := time.Duration(s.Seconds+s.TimeoutSeconds) * time.Second
	all := once
	for _, re := range s.Retry {
		for i := range re.MaxAttempts {
			all += once + re.pause(i)
		}
	}
	return all
}

// longest is the longest time from a state's begin to the end of one of the others, or of the
// execution, if it comes to no state twice. One that waits may: the machine's own time bounds that.
func (m machine) longest(from string, to ...string) time.Duration {
	return m.longestPath(nil, from, to)
}

func (m machine) longestPath(before []string, from string, to []string) (longest time.Duration) {
	before = append(slices.Clone(before), from)
	if !slices.Contains(to, from) {
		for _, next := range m.States[from].next() {
			if !slices.Contains(before, next) {
				longest = max(longest, m.longestPath(before, next, to))
			}
		}
	}
	return m.States[from].longest() + longest
}

// TestTimes is about what an interpreter shows only in hours: how long states and locks last. TestPayout has the rest.
func TestTimes(t *testing.T) {
	m := readMachine(t)
	var function template.Function
	decodeResource(t, "SfnlockFunction", &function)
	for name, s := range m.States {
		if s.Type != "Task" {
			continue
		}
		assert.Positive(t, s.TimeoutSeconds, name)
		if s.Resource != updateItem {
			assert.Greater(t, s.TimeoutSeconds, function.Timeout, "%s: the function has this time to answer", name)
		}
		for _, re := range s.Retry[1:] { // the first is for what is final
			assert.True(t, re.JitterStrategy == "FULL" && re.BackoffRate > 1 && re.MaxDelaySeconds > re.IntervalSeconds && re.MaxAttempts <= 20,
				"%s: %v: has to wait longer each time, up to a bound, with full jitter", name, re.ErrorEquals)
		}
	}
	ttl := func(state string) float64 { return look(m.States[state].Parameters, "$.Payload.ttl").(float64) }
	// What trusts the lock ends with Renew or Release, and that has to arrive. The lock begins with the
	// first request that is granted: of Acquire, or of a wait whose own wake-up is lost.
	rest := func(state string) time.Duration { return m.longest(m.States[state].Next, renewState, releaseState) }
	wait := m.States[waitState]
	retries := func(failed string) retrier {
		return wait.Retry[slices.IndexFunc(wait.Retry, func(re retrier) bool { return slices.Contains(re.ErrorEquals, failed) })]
	}
	again := retries("States.Timeout")
	before := time.Duration(wait.HeartbeatSeconds)*time.Second + again.pause(again.MaxAttempts) + m.States[acquireState].longest()
	assert.Less(t, (before + rest(acquireState)).Seconds(), ttl(acquireState), "for as long as the lock lasts")
	assert.Less(t, rest(renewState).Seconds(), ttl(renewState), "for as long as the lock lasts")
	assert.Equal(t, ttl(acquireState), ttl(waitState))

	// A shorter one than the turn would ask for nothing during each turn; a state whose time is over has failed
	// by another name than one whose heartbeat is missing.
	assert.Greater(t, wait.HeartbeatSeconds, int(lockstore.MaxParkedTurn.Seconds()))
	assert.Greater(t, wait.TimeoutSeconds, wait.HeartbeatSeconds, "Step Functions wants that")
	assert.Contains(t, again.ErrorEquals, "States.HeartbeatTimeout")
	busy, asks := retries("LockBusy"), time.Duration(0)
	for i := range busy.MaxAttempts {
		asks += busy.pause(i) / 2 // with full jitter, on average
	}
	assert.Greater(t, asks.Seconds(), ttl(acquireState), "who finds no place still asks when the lock of an execution that has died is over")
	assert.LessOrEqual(t, m.longest(m.StartAt).Seconds(), float64(m.TimeoutSeconds))
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return text
}

// decodeResource stores the properties of a resource of template.yaml in to.
func decodeResource(t *testing.T, id string, to any) {
	t.Helper()
	tm, err := template.Read("../../template.yaml", nil)
	require.NoError(t, err)
	require.NoError(t, tm.Resources[id].Decode(to))
}

func TestTheRoleMayDoWhatTheStatesDoAndNoMore(t *testing.T) {
	var machine struct {
		Type, DefinitionURI     string
		DefinitionSubstitutions map[string]string
		Policies                []struct {
			Statement []struct {
				Sid, Effect string
				Action      any
				Resource    string
			}
		}
	}
	decodeResource(t, "PayoutStateMachine", &machine)
	require.Equal(t, "functions/sfnlock/payout.asl.json", machine.DefinitionURI)
	require.Equal(t, "STANDARD", machine.Type, "an express workflow sends no event when it ends")
	var named []string
	for _, found := range regexp.MustCompile(`\$\{(\w+)\}`).FindAllStringSubmatch(string(readFile(t, "payout.asl.json")), -1) {
		named = append(named, found[1])
	}
	slices.Sort(named)
	assert.Equal(t, slices.Sorted(maps.Keys(machine.DefinitionSubstitutions)), slices.Compact(named))
	assert.Equal(t, map[string]string{"Partition": "aws", "SfnlockFunction": "SfnlockFunction.Alias", "AccountsTable": "AccountsTable"}, machine.DefinitionSubstitutions)

	used, allowed := map[string]bool{}, map[string]bool{}
	for _, s := range readMachine(t).States {
		switch s.Resource {
		case invokeFunction, invokeWithAToken:
			used["lambda:InvokeFunction SfnlockFunction.Alias"] = true
		case updateItem:
			used["dynamodb:UpdateItem AccountsTable.Arn"] = true
		}
	}
	require.Len(t, machine.Policies, 1)
	for _, s := range machine.Policies[0].Statement {
		require.Equal(t, "Allow", s.Effect)
		if s.Sid != "Logs" { // what sends the machine's logs, by the manual of Step Functions
			allowed[s.Action.(string)+" "+s.Resource] = true
			continue
		}
		assert.Equal(t, []any{
			"logs:CreateLogDelivery", "logs:DeleteLogDelivery", "logs:DescribeLogGroups", "logs:DescribeResourcePolicies",
			"logs:GetLogDelivery", "logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:UpdateLogDelivery",
		}, s.Action)
	}
	assert.Equal(t, used, allowed)
}

// The rule sends each end of an execution that the function is told of, for a
// bounded time. What it cannot send goes to a queue.
func TestTheRuleSendsWhatTheFunctionTakes(t *testing.T) {
	var function struct {
		Events map[string]struct {
			Type       string
			Properties struct {
				Pattern          map[string]any
				RetryPolicy      map[string]int
				DeadLetterConfig map[string]string
			}
		}
	}
	decodeResource(t, "SfnlockFunction", &function)
	event := function.Events["Ended"]
	require.Equal(t, "EventBridgeRule", event.Type)
	assert.Equal(t, map[string]any{
		"source": []any{"aws.states"}, "detail-type": []any{"Step Functions Execution Status Change"},
		"detail": map[string]any{"stateMachineArn": []any{"PayoutStateMachine"}, "status": []any{"FAILED", "TIMED_OUT", "ABORTED"}},
	}, event.Properties.Pattern)
	assert.Positive(t, event.Properties.RetryPolicy["MaximumRetryAttempts"])
	assert.Positive(t, event.Properties.RetryPolicy["MaximumEventAgeInSeconds"])
	assert.Equal(t, "EndedFailures.Arn", event.Properties.DeadLetterConfig["Arn"])
}
