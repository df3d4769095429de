package main

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return text
}

// template is what these tests read of template.yaml. CloudFormation's tags do
// not matter: !GetAtt StepFunction.Arn is read as StepFunction.Arn.
type template struct {
	Globals struct {
		Function struct {
			Timeout int `yaml:"Timeout"`
		} `yaml:"Function"`
	} `yaml:"Globals"`
	Resources struct {
		Function struct {
			Properties struct {
				Timeout int `yaml:"Timeout"`
				Events  map[string]struct {
					Type       string `yaml:"Type"`
					Properties struct {
						Pattern          map[string]any    `yaml:"Pattern"`
						RetryPolicy      map[string]int    `yaml:"RetryPolicy"`
						DeadLetterConfig map[string]string `yaml:"DeadLetterConfig"`
					} `yaml:"Properties"`
				} `yaml:"Events"`
			} `yaml:"Properties"`
		} `yaml:"StepFunction"`
		Machine struct {
			Properties struct {
				Type          string            `yaml:"Type"`
				DefinitionURI string            `yaml:"DefinitionUri"`
				Substitutions map[string]string `yaml:"DefinitionSubstitutions"`
				Policies      []struct {
					Statement []struct {
						Sid      string    `yaml:"Sid"`
						Effect   string    `yaml:"Effect"`
						Action   yaml.Node `yaml:"Action"`
						Resource string    `yaml:"Resource"`
					} `yaml:"Statement"`
				} `yaml:"Policies"`
			} `yaml:"Properties"`
		} `yaml:"PayoutStateMachine"`
	} `yaml:"Resources"`
}

func readTemplate(t *testing.T) (all template) {
	t.Helper()
	require.NoError(t, yaml.Unmarshal(readFile(t, "../../template.yaml"), &all))
	return all
}

// functionTimeout is what the template gives the function, in seconds.
func functionTimeout(t *testing.T) int {
	t.Helper()
	all := readTemplate(t)
	return max(all.Globals.Function.Timeout, all.Resources.Function.Properties.Timeout)
}

// TestTheRoleMayDoWhatTheStatesDo, and no more.
func TestTheRoleMayDoWhatTheStatesDo(t *testing.T) {
	machine := readTemplate(t).Resources.Machine.Properties
	require.Equal(t, "functions/step/payout.asl.json", machine.DefinitionURI)
	require.Equal(t, "STANDARD", machine.Type, "an express workflow sends no event when it ends")
	var named []string
	for _, found := range regexp.MustCompile(`\$\{(\w+)\}`).FindAllStringSubmatch(string(readFile(t, "payout.asl.json")), -1) {
		named = append(named, found[1])
	}
	slices.Sort(named)
	var given []string
	for name := range machine.Substitutions {
		given = append(given, name)
	}
	assert.ElementsMatch(t, slices.Compact(named), given)
	assert.Equal(t, map[string]string{"Partition": "AWS::Partition", "StepFunction": "StepFunction.Arn", "AccountsTable": "AccountsTable"}, machine.Substitutions)

	used := map[string]bool{}
	for _, s := range readMachine(t).States {
		switch s.Resource {
		case invokeFunction:
			used["lambda:InvokeFunction StepFunction.Arn"] = true
		case updateItem:
			used["dynamodb:UpdateItem AccountsTable.Arn"] = true
		}
	}
	allowed := map[string]bool{}
	require.Len(t, machine.Policies, 1)
	for _, s := range machine.Policies[0].Statement {
		require.Equal(t, "Allow", s.Effect)
		if s.Sid == "Logs" { // what sends the machine's logs, by the manual of Step Functions
			var actions []string
			require.NoError(t, s.Action.Decode(&actions))
			for _, action := range actions {
				assert.Regexp(t, `^logs:\w+$`, action)
			}
			continue
		}
		allowed[s.Action.Value+" "+s.Resource] = true
	}
	assert.Equal(t, used, allowed)
}

// TestTheRuleSendsWhatTheFunctionTakes: each end of an execution that the
// function is told of, for a bounded time, and a queue for those that it cannot
// be told of.
func TestTheRuleSendsWhatTheFunctionTakes(t *testing.T) {
	event, ok := readTemplate(t).Resources.Function.Properties.Events["Ended"]
	require.True(t, ok)
	require.Equal(t, "EventBridgeRule", event.Type)
	assert.Equal(t, map[string]any{
		"source": []any{"aws.states"}, "detail-type": []any{"Step Functions Execution Status Change"},
		"detail": map[string]any{"stateMachineArn": []any{"PayoutStateMachine"}, "status": []any{"FAILED", "TIMED_OUT", "ABORTED"}},
	}, event.Properties.Pattern)
	assert.Positive(t, event.Properties.RetryPolicy["MaximumRetryAttempts"])
	assert.Positive(t, event.Properties.RetryPolicy["MaximumEventAgeInSeconds"])
	assert.Equal(t, "EndedFailures.Arn", event.Properties.DeadLetterConfig["Arn"])
}
