package main

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
)

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

// functionTimeout is what the template gives the function, in seconds.
func functionTimeout(t *testing.T) int {
	t.Helper()
	tm, err := template.Read("../../template.yaml", nil)
	require.NoError(t, err)
	all, err := tm.Functions()
	require.NoError(t, err)
	i := slices.IndexFunc(all, func(f template.Function) bool { return f.ID == "SfnlockFunction" })
	return all[i].Timeout
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
		for _, action := range s.Action.([]any) {
			assert.Regexp(t, `^logs:\w+$`, action)
		}
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
