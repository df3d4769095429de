package functest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/internal/testservers"
)

// actions are what a role may do or did, such as "dynamodb:GetItem LockTable", or
// "dynamodb:GetItem LockTable shop/*" where only some rows are meant.
type actions map[string]bool

// locksIn has the locks of a stack "locks" of a template in deploy/.
func locksIn(t *testing.T, file string, values map[string]string) *template.Template {
	t.Helper()
	values["AWS::StackName"] = "locks"
	tm, err := template.Read("../../../deploy/"+file, values)
	require.NoError(t, err)
	return tm
}

// allowed are the actions that the policies of each function allow, by the
// function's folder. A policy that this function does not understand is an error,
// because the policy may allow more. Nobody here looks at what SAM adds to a role: logs, traces, the network of a
// VpcConfig, writing to the queue of an EventInvokeConfig. internal/template refuses sources for which it would add
// AWS's policy for all of a kind, and what a function has where the locks are elsewhere.
func allowed(tm *template.Template) (map[string]actions, error) {
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
			document, err := managed(policy, tm)
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

// managed is the document of a policy that a function's list names by itself or by the id of a resource.
func managed(policy json.RawMessage, tm *template.Template) (json.RawMessage, error) {
	var id string
	if json.Unmarshal(policy, &id) != nil || tm.Resources[id].Type != "AWS::IAM::ManagedPolicy" {
		return policy, nil
	}
	var p struct{ PolicyDocument json.RawMessage }
	err := tm.Resources[id].Decode(&p)
	return p.PolicyDocument, err
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
		where, err := restricts(condition)
		if err != nil {
			return err
		}
		for _, name := range list(s["Action"]) {
			for _, resource := range list(s["Resource"]) {
				a[fmt.Sprintf("%v %v", name, strings.TrimSuffix(fmt.Sprint(resource), ".Arn"))+where] = true
			}
		}
	}
	return nil
}

// restricts is which rows of a table a statement's condition allows, such as " shop/*", or through which service it allows
// a key of KMS, such as " via dynamodb.us-east-1.amazonaws.com", and "" without a condition.
func restricts(condition any) (string, error) {
	if condition == nil {
		return "", nil
	}
	const name = "dynamodb:LeadingKeys"
	text, err := json.Marshal(condition)
	var c map[string]map[string]any
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if via := c["StringEquals"]["kms:ViaService"]; err == nil && len(c) == 1 && len(c["StringEquals"]) == 1 && via != nil {
		return fmt.Sprint(" via ", via), nil
	}
	rows := list(c["ForAllValues:StringLike"][name])
	if err != nil || len(c) != 2 || c["Null"][name] != "false" || len(rows) != 1 {
		return "", fmt.Errorf("%s: want ForAllValues:StringLike and Null of %s, or StringEquals of kms:ViaService", text, name)
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

// TestPolicies runs each function of the template, as built for Lambda, on all its events: its policies
// are to allow what it does on DynamoDB, and no more.
func TestPolicies(t *testing.T) {
	endpoint := testservers.DynamoDB(t)
	tm, err := template.Read("../../../template.yaml", nil)
	require.NoError(t, err)
	functions, err := tm.Functions()
	require.NoError(t, err)
	require.NotEmpty(t, functions)
	tables, err := tm.Tables()
	require.NoError(t, err)
	policies, err := allowed(tm)
	require.NoError(t, err)
	for _, f := range functions {
		t.Run(f.CodeURI, func(t *testing.T) {
			t.Parallel()
			used := events(t, f, tables, endpoint)
			maps.Copy(used, sources(t, tm, f.ID))
			used[wakes] = true
			require.Equal(t, used, policies[f.CodeURI], "expected: what the events make it do; actual: what its policies allow")
		})
	}
}

// TestPoliciesOfOtherLocks: a shared table allows what the stack's own does, on all rows, and a part of it on its rows. People
// may look at all of a table. A cache has no rows: who may connect may send what the user's access string allows, see
// redisstore's TestUsersOfTheCache.
func TestPoliciesOfOtherLocks(t *testing.T) {
	const key = "arn:aws:kms:us-east-1:123456789012:key/k"
	const decrypt = "kms:Decrypt " + key + " via dynamodb.us-east-1.amazonaws.com"
	table := locksIn(t, "table.yaml", map[string]string{"KeyArn": key})
	inPart := maps.Clone(table.Exports)
	inPart["LockStack"], inPart["Prefix"], inPart["KeyArn"] = "locks", "shop/", key
	cache := locksIn(t, "cache.yaml", map[string]string{"Name": "somebody", "Cache": "made"})
	const connect = "elasticache:Connect arn:aws:elasticache:us-east-1:123456789012:"
	for _, c := range []struct {
		locks  *template.Template
		policy string
		want   actions
	}{
		{table, "UsePolicy", actions{"dynamodb:GetItem LockTable": true, "dynamodb:UpdateItem LockTable": true, decrypt: true}},
		{table, "OperatePolicy", actions{"dynamodb:DescribeTable LockTable": true, "dynamodb:DescribeTimeToLive LockTable": true,
			"dynamodb:GetItem LockTable": true, "dynamodb:Scan LockTable": true, "dynamodb:UpdateItem LockTable": true, decrypt: true}},
		{locksIn(t, "part.yaml", inPart), "UsePolicy", actions{"dynamodb:GetItem LockTable shop/*": true, "dynamodb:UpdateItem LockTable shop/*": true, decrypt: true}},
		{cache, "UsePolicy", actions{connect + "serverlesscache:made": true, connect + "user:somebody": true}},
		{cache, "OperatePolicy", actions{connect + "serverlesscache:made": true, connect + "user:somebody-operator": true}},
	} {
		allows := actions{}
		document, err := managed(json.RawMessage(strconv.Quote(c.policy)), c.locks)
		require.NoError(t, err)
		require.NoError(t, allows.add(document))
		require.Equal(t, c.want, allows)
	}
}

// TestEndpoints: the VPC of deploy/cache.yaml has no other way out than its endpoints, and they let each action of a function
// through. A queue is read by Lambda, and not out of the VPC.
func TestEndpoints(t *testing.T) {
	through := actions{}
	for id, r := range locksIn(t, "cache.yaml", map[string]string{"ReachSecrets": "true", "ReachStates": "true"}).Resources {
		if r.Type != "AWS::EC2::VPCEndpoint" {
			continue
		}
		var p struct {
			ServiceName    string
			PolicyDocument struct{ Statement []struct{ Action string } }
		}
		require.NoError(t, r.Decode(&p), id)
		require.Len(t, p.PolicyDocument.Statement, 1, id)
		action := p.PolicyDocument.Statement[0].Action
		service, _, _ := strings.Cut(action, ":")
		require.Equal(t, "com.amazonaws.us-east-1."+service, p.ServiceName, id)
		through[action] = true
	}
	tm, err := template.Read("../../../template.yaml", nil)
	require.NoError(t, err)
	policies, err := allowed(tm)
	require.NoError(t, err)
	for function, may := range policies {
		for action := range may {
			name, _, _ := strings.Cut(action, " ")
			service, _, _ := strings.Cut(name, ":")
			require.True(t, through[name] || through[service+":*"] || service == "sqs", "%s has no way for %s", function, name)
		}
	}
}
