package functest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/internal/testservers"
)

// actions are what a role may do or did, such as "dynamodb:GetItem LockTable", or
// "dynamodb:GetItem LockTable shop/*" where only some rows are meant.
type actions map[string]bool

// where says where the locks of template.yaml are: the template with its values, and
// the stack that it imports them from, nil where it does not.
type where struct {
	values map[string]string // of template.yaml
	locks  *template.Template
}

// The ways in which template.yaml can be deployed. Other names are values of resources.
func ownTable(*testing.T) where { return where{} }

func sharedTable(t *testing.T) where {
	return imported(t, "table.yaml", map[string]string{})
}

// sharedPart is the part of a shared table that begins with shop/.
func sharedPart(t *testing.T) where {
	values := sharedTable(t).values
	values["Prefix"], values["LockStack"] = "shop/", "locks"
	return imported(t, "part.yaml", values)
}

func sharedCache(t *testing.T) where {
	return imported(t, "cache.yaml", map[string]string{
		"Name": "somebody", "Cache": "made", "Cache.Endpoint.Address": "127.0.0.1", "Cache.Endpoint.Port": "6379",
	})
}

// imported has the locks in a stack "locks" of a template in deploy/.
func imported(t *testing.T, file string, values map[string]string) where {
	t.Helper()
	values["AWS::StackName"] = "locks"
	tm, err := template.Read("../../../deploy/"+file, values)
	require.NoError(t, err)
	exports, err := tm.Exports()
	require.NoError(t, err)
	exports["LockStack"], exports["Imports"] = "locks", "true"
	return where{exports, tm}
}

// allowed are the actions that the policies of each function allow, by the
// function's folder. A policy that this function does not understand is an error,
// because the policy may allow more. Nobody here looks at what SAM adds to a role: logs,
// traces, the network of a VpcConfig, writing to the queue of an EventInvokeConfig;
// deploy/check_templates.py does. locks is the stack that policies are imported from.
func allowed(tm, locks *template.Template) (map[string]actions, error) {
	functions, err := tm.Functions()
	if err != nil {
		return nil, err
	}
	all := map[string]actions{}
	for _, f := range functions {
		var p struct {
			Role     any
			Policies []json.RawMessage
		}
		if err := tm.Resources[f.ID].Decode(&p); err != nil {
			return nil, fmt.Errorf("%s: %w", f.ID, err)
		}
		if all[f.CodeURI] != nil || p.Role != nil {
			return nil, fmt.Errorf("%s has a Role, or another function's CodeUri", f.ID)
		}
		all[f.CodeURI] = actions{}
		for _, policy := range append(p.Policies, attached(tm, f.ID+"Role")...) {
			document, err := managed(policy, tm, locks)
			if err == nil {
				err = all[f.CodeURI].add(document)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.ID, err)
			}
		}
	}
	return all, nil
}

// managed is the document of a policy that a function's list names by itself or by the
// id of a resource of the two stacks.
func managed(policy json.RawMessage, stacks ...*template.Template) (json.RawMessage, error) {
	var id string
	if json.Unmarshal(policy, &id) != nil {
		return policy, nil
	}
	for _, tm := range stacks {
		if tm == nil || tm.Resources[id].Type != "AWS::IAM::ManagedPolicy" {
			continue
		}
		var p struct{ PolicyDocument json.RawMessage }
		err := tm.Resources[id].Decode(&p)
		return p.PolicyDocument, err
	}
	return policy, nil
}

// attached are the ids of the policies that name a role themselves.
func attached(tm *template.Template, role string) (ids []json.RawMessage) {
	for id, r := range tm.Resources {
		var p struct{ Roles []string }
		if r.Type == "AWS::IAM::ManagedPolicy" && r.Decode(&p) == nil && slices.Contains(p.Roles, "${"+role+"}") { // SAM makes the role
			ids = append(ids, json.RawMessage(strconv.Quote(id)))
		}
	}
	return ids
}

// wakes is what the release of a lock does for which a state machine waits. No event has one that waits.
const wakes = "states:SendTaskSuccess PayoutStateMachine"

// sources are what Lambda does for a function with the function's role: it reads the
// queues that are mapped to the function's alias.
func sources(t *testing.T, tm *template.Template, function string) actions {
	t.Helper()
	all := actions{}
	for id, r := range tm.Resources {
		if r.Type != "AWS::Lambda::EventSourceMapping" {
			continue
		}
		var p struct{ FunctionName, EventSourceArn string }
		require.NoError(t, r.Decode(&p), id)
		queue := strings.TrimSuffix(p.EventSourceArn, ".Arn")
		require.Equal(t, "AWS::SQS::Queue", tm.Resources[queue].Type, id)
		if p.FunctionName == function+".Alias" {
			for _, action := range []string{"DeleteMessage", "GetQueueAttributes", "ReceiveMessage"} {
				all["sqs:"+action+" "+queue] = true
			}
		}
	}
	return all
}

func (a actions) add(policy json.RawMessage) error {
	// AWS's own managed policies are refused, also the policy for a VPC: SAM adds that
	// by itself, and a role that has the policy twice cannot be made.
	var p struct{ Statement []map[string]any }
	if json.Unmarshal(policy, &p) != nil || p.Statement == nil {
		return fmt.Errorf("%s: want a policy with a list Statement", policy)
	}
	for _, s := range p.Statement {
		if s["Effect"] == "Deny" && s["Sid"] == "NoNetwork" && s["Action"] == "ec2:*" {
			continue
		}
		condition := s["Condition"]
		delete(s, "Condition")
		if s["Sid"] == nil || len(s) != 4 || s["Effect"] != "Allow" {
			return fmt.Errorf("%v: want Sid, Effect: Allow, Action and Resource", s)
		}
		rows, err := leadingKeys(condition)
		if err != nil {
			return err
		}
		for _, name := range list(s["Action"]) {
			for _, resource := range list(s["Resource"]) {
				a[fmt.Sprintf("%v %v", name, strings.TrimSuffix(fmt.Sprint(resource), ".Arn"))+rows] = true
			}
		}
	}
	return nil
}

// leadingKeys is which rows of a table a statement's condition allows, such as " shop/*",
// and "" without a condition.
func leadingKeys(condition any) (string, error) {
	if condition == nil {
		return "", nil
	}
	const name = "dynamodb:LeadingKeys"
	text, err := json.Marshal(condition)
	var c map[string]map[string]any
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	rows := list(c["ForAllValues:StringLike"][name])
	if err != nil || len(c) != 2 || c["Null"][name] != "false" || len(rows) != 1 {
		return "", fmt.Errorf("%s: want ForAllValues:StringLike and Null of %s", text, name)
	}
	return fmt.Sprint(" ", rows[0]), nil
}

// list is a value of a policy, which may be one text or several.
func list(v any) []any {
	if all, several := v.([]any); several {
		return all
	}
	return []any{v}
}

func readTemplate(t *testing.T, values map[string]string) *template.Template {
	t.Helper()
	tm, err := template.Read("../../../template.yaml", values)
	require.NoError(t, err)
	return tm
}

// TestPolicies runs each function of the template, as built for Lambda, on all its events: its policies
// are to allow what it does on DynamoDB, and no more. Where the locks are elsewhere, one function shows
// what they need, and each function's policies are to allow that in the place of the table.
func TestPolicies(t *testing.T) {
	endpoint := testservers.DynamoDB(t)
	tm := readTemplate(t, nil)
	functions, err := tm.Functions()
	require.NoError(t, err)
	require.NotEmpty(t, functions)
	policies, err := allowed(tm, nil)
	require.NoError(t, err)
	own, mu := map[string]actions{}, sync.Mutex{}
	t.Run("own", func(t *testing.T) {
		for _, f := range functions {
			t.Run(f.CodeURI, func(t *testing.T) {
				t.Parallel()
				used := onTable(t, endpoint, f.ID, ownTable(t)).events(t, f.CodeURI, built(t, f.CodeURI))
				maps.Copy(used, sources(t, tm, f.ID))
				if f.ID != "LocksFunction" { // its keys are others than those of accounts
					used[wakes] = true
				}
				require.Equal(t, used, policies[f.CodeURI], "expected: what the events make it do; actual: what its policies allow")
				mu.Lock()
				defer mu.Unlock()
				own[f.CodeURI] = used
			})
		}
	})
	t.Run("part", func(t *testing.T) {
		const one = "functions/withdraw"
		on := onTable(t, endpoint, "part", sharedPart(t))
		needs := on.events(t, one, built(t, one))
		needs["dynamodb:GetItem LockTable shop/*"] = true // the policy is for all functions, and this one may never wait
		maps.DeleteFunc(needs, func(action string, _ bool) bool { return own[one][action] })
		policies, err := allowed(on.template, on.where.locks)
		require.NoError(t, err)
		for folder, used := range own {
			want := maps.Clone(used)
			maps.DeleteFunc(want, func(action string, _ bool) bool { return strings.HasSuffix(action, " LockTable") })
			maps.Copy(want, needs)
			require.Equal(t, want, policies[folder], folder)
		}
	})
}

// A cache has no rows: who may connect may send what the user's access string allows, see redisstore's TestUsersOfTheCache.
func TestPolicyOfTheCache(t *testing.T) {
	allows := actions{}
	document, err := managed(json.RawMessage(`"UsePolicy"`), sharedCache(t).locks)
	require.NoError(t, err)
	require.NoError(t, allows.add(document))
	const connect = "elasticache:Connect arn:aws:elasticache:us-east-1:123456789012:"
	require.Equal(t, actions{connect + "serverlesscache:made": true, connect + "user:somebody": true}, allows)
}

// The policy of a shared table is that of its parts, on all rows.
func TestPolicyOfTheWholeTable(t *testing.T) {
	whole, part := actions{}, actions{}
	for at, in := range map[*template.Template]actions{sharedTable(t).locks: whole, sharedPart(t).locks: part} {
		document, err := managed(json.RawMessage(`"UsePolicy"`), at)
		require.NoError(t, err)
		require.NoError(t, in.add(document))
	}
	require.Equal(t, actions{"dynamodb:GetItem LockTable": true, "dynamodb:UpdateItem LockTable": true}, whole)
	require.Equal(t, actions{"dynamodb:GetItem LockTable shop/*": true, "dynamodb:UpdateItem LockTable shop/*": true}, part)
}
