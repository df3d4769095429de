package template

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const example = `
Parameters:
  Store: {Type: String, Default: dynamodb}
  Days: {Type: Number, Default: 30}
Conditions:
  Cached: !Not [!Equals [!Ref Store, dynamodb]]
  CachedAndLong: !And [!Condition Cached, !Equals [!Ref Days, 30]]
Globals:
  Function:
    Timeout: 10
    Environment: {Variables: {LOCK_URL: !If [Cached, !Sub ['rediss://${Host}', {Host: !GetAtt Cache.Address}], !Sub 'dynamodb://${Locks}'], SAME: all}}
Resources:
  Locks: {Type: 'AWS::DynamoDB::Table', Properties: {KeySchema: [{AttributeName: key, KeyType: HASH}]}}
  Cache: {Type: Other, Properties: {Name: !If [CachedAndLong, long, !Ref AWS::NoValue], All: [1, !Ref AWS::NoValue, !GetAtt [Locks, Arn]], Bad: !Sub 'x ${Nam} $.y'}}
  ReportFunction:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: functions/report, Timeout: 20, Environment: {Variables: {OWN: !Ref AWS::Region, SAME: own}}}
  WorkFunction: {Type: 'AWS::Serverless::Function', Properties: {CodeUri: functions/work}}
`

func parse(t *testing.T, text string, values map[string]string) *Template {
	t.Helper()
	tm, err := Parse([]byte(text), values)
	require.NoError(t, err)
	return tm
}

func TestFunctionsHaveWhatGlobalsGives(t *testing.T) {
	all, err := parse(t, example, nil).Functions()
	require.NoError(t, err)
	require.Len(t, all, 2)
	assert.Equal(t, "ReportFunction", all[0].ID)
	assert.Equal(t, 20, all[0].Timeout)
	assert.Equal(t, map[string]string{"LOCK_URL": "dynamodb://Locks", "SAME": "own", "OWN": "us-east-1"}, all[0].Environment.Variables)
	assert.Equal(t, "work", all[1].Name())
	assert.Equal(t, 10, all[1].Timeout)
	assert.Equal(t, map[string]string{"LOCK_URL": "dynamodb://Locks", "SAME": "all"}, all[1].Environment.Variables)
	tables, err := parse(t, example, nil).Tables()
	require.NoError(t, err)
	assert.Equal(t, []Table{{"Locks", "key"}}, tables)
}

func TestValuesDecide(t *testing.T) {
	type cache struct {
		Name, Bad string
		All       []any
	}
	for _, c := range []struct {
		values map[string]string
		url    string
		name   string
	}{
		{nil, "dynamodb://Locks", ""},
		{map[string]string{"Store": "cache", "Cache.Address": "127.0.0.1"}, "rediss://127.0.0.1", "long"},
		{map[string]string{"Store": "cache", "Days": "7"}, "rediss://Cache.Address", ""},
	} {
		tm := parse(t, example, c.values)
		all, err := tm.Functions()
		require.NoError(t, err)
		assert.Equal(t, c.url, all[0].Environment.Variables["LOCK_URL"])
		var got cache
		require.NoError(t, tm.Resources["Cache"].Decode(&got))
		assert.Equal(t, cache{c.name, "x ${Nam} $.y", []any{1.0, "Locks.Arn"}}, got)
	}
}

func TestExportsAreImported(t *testing.T) {
	const exporting = `
Parameters: {Long: {Type: String, Default: 'no'}}
Conditions: {IsLong: !Equals [!Ref Long, 'yes']}
Resources: {Table: {Type: 'AWS::DynamoDB::Table'}}
Outputs:
  Url: {Value: !Sub 'dynamodb://${Table}', Export: {Name: !Sub '${AWS::StackName}-Url'}}
  More: {Condition: IsLong, Value: !Ref Table, Export: {Name: !Sub '${AWS::StackName}-More'}}
  Shown: {Value: !Ref Table}
`
	exports, err := parse(t, exporting, map[string]string{"AWS::StackName": "locks"}).Exports()
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"import locks-Url": "dynamodb://Table"}, exports)
	exports, err = parse(t, exporting, map[string]string{"AWS::StackName": "locks", "Long": "yes"}).Exports()
	require.NoError(t, err)
	assert.Len(t, exports, 2)
	var got struct {
		A, B string
		C    []string
	}
	importing := parse(t, `Resources: {X: {Type: Other, Properties: {A: {'Fn::ImportValue': !Sub '${Stack}-Url'}, B: {'Fn::ImportValue': other}, C: !Split [',', !Ref Both]}}}`,
		map[string]string{"Stack": "locks", "import locks-Url": "dynamodb://Table", "Both": "a,b"})
	require.NoError(t, importing.Resources["X"].Decode(&got))
	assert.Equal(t, "dynamodb://Table", got.A)
	assert.Equal(t, "${import other}", got.B, "nothing exports it")
	assert.Equal(t, []string{"a", "b"}, got.C)
	_, err = parse(t, "Outputs: {X: {Value: !Select [0, [1]], Export: {Name: n}}}", nil).Exports()
	assert.ErrorContains(t, err, "X: line 1: the function !Select is unknown")
}

func TestWhatIsNotKnownIsAnError(t *testing.T) {
	for properties, want := range map[string]string{
		"{A: !Select [0, [1]]}":   "the function !Select is unknown",
		"{A: !If [Absent, 1, 2]}": `there is no condition "Absent"`,
	} {
		tm := parse(t, "Resources: {X: {Type: Other, Properties: "+properties+"}}", nil)
		var to any
		assert.ErrorContains(t, tm.Resources["X"].Decode(&to), want)
	}
	_, err := parse(t, "Resources: {X: {Type: 'AWS::DynamoDB::Table', Properties: {KeySchema: [{AttributeName: a}, {AttributeName: b}]}}}", nil).Tables()
	assert.ErrorContains(t, err, "has 2 keys")
	_, err = Parse([]byte("{"), nil)
	assert.ErrorContains(t, err, "the template: ")
	_, err = Read("absent.yaml", nil)
	assert.Error(t, err)
}
