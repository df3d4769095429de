package functest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/template"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// actions are what a role may do or did, such as "dynamodb:GetItem LockTable".
type actions map[string]bool

// The ways in which the template can be deployed, by its parameters. Other names
// are values of resources.
var (
	onDynamoDB  = map[string]string{"LockStore": "dynamodb"}
	onMadeCache = map[string]string{
		"LockStore": "elasticache", "CacheUser": "somebody", "CacheName": "existing",
		"Cache": "made", "Cache.Endpoint.Address": "127.0.0.1",
	}
	onExistingCache = map[string]string{"LockStore": "elasticache", "CacheUser": "somebody", "CacheName": "existing", "CacheEndpoint": "127.0.0.1"}
)

// allowed are the actions that the policies of each function allow, by the
// function's folder. A policy that this function does not understand is an error,
// because the policy may allow more. Nobody looks at what SAM adds to a role: logs,
// traces, the network of a VpcConfig, reading the queue of an event, writing to the
// queue of an EventInvokeConfig.
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
		for _, policy := range p.Policies {
			if err := all[f.CodeURI].add(policy); err != nil {
				return nil, fmt.Errorf("%s: %w", f.ID, err)
			}
		}
	}
	return all, nil
}

func (a actions) add(policy json.RawMessage) error {
	// A managed policy is refused, also the policy for a VPC: SAM adds that by
	// itself, and a role that has the policy twice cannot be made.
	var p struct{ Statement []map[string]any }
	if json.Unmarshal(policy, &p) != nil || p.Statement == nil {
		return fmt.Errorf("%s: want a policy with a list Statement", policy)
	}
	for _, s := range p.Statement {
		if s["Sid"] == nil || len(s) != 4 || s["Effect"] != "Allow" {
			return fmt.Errorf("%v: want Sid, Effect: Allow, Action and Resource", s)
		}
		for _, name := range list(s["Action"]) {
			for _, resource := range list(s["Resource"]) {
				a[fmt.Sprintf("%v %v", name, strings.TrimSuffix(fmt.Sprint(resource), ".Arn"))] = true
			}
		}
	}
	return nil
}

// list is a value of a policy, which may be one text or several.
func list(v any) []any {
	if all, several := v.([]any); several {
		return all
	}
	return []any{v}
}

// connect is the right to use a cache or a user of one.
func connect(kind, name string) string {
	return "elasticache:Connect arn:aws:elasticache:us-east-1:123456789012:" + kind + ":" + name
}

func readTemplate(t *testing.T, values map[string]string) *template.Template {
	t.Helper()
	tm, err := template.Read("../../../template.yaml", values)
	require.NoError(t, err)
	return tm
}

// TestPolicies runs each function of the template, as built for Lambda, on all
// its events, with the locks where the template puts them: its policies are to
// allow what it does on DynamoDB and ElastiCache, and no more.
func TestPolicies(t *testing.T) {
	text, err := os.ReadFile("../../../template.yaml")
	require.NoError(t, err)
	functions, err := readTemplate(t, nil).Functions()
	require.NoError(t, err)
	require.NotEmpty(t, functions)
	endpoint := testservers.DynamoDB(t)
	deployments := map[string]deployment{"dynamodb": onTable(t, endpoint), "elasticache": onCache(t, endpoint)}
	for _, f := range functions {
		t.Run(f.CodeURI, func(t *testing.T) {
			binary := filepath.Join(t.TempDir(), "bootstrap")
			require.NoError(t, lambdatest.Build(t.Context(), "github.com/lambdalock/lambdalock/"+f.CodeURI, binary))
			for store, on := range deployments {
				t.Run(store, func(t *testing.T) {
					used := on.events(t, f.CodeURI, binary)
					policies, err := allowed(readTemplate(t, on.values))
					require.NoError(t, err)
					require.Equal(t, used, policies[f.CodeURI], "expected: what the events make it do; actual: what its policies allow")
					t.Run("a wrong policy is found", func(t *testing.T) { wrongPolicies(t, string(text), store, f.CodeURI, on.values, used) })
				})
			}
		})
	}
}

// A cache that was there before has another name, in LOCK_URL as in the policies.
func TestPoliciesOnAnExistingCache(t *testing.T) {
	tm := readTemplate(t, onExistingCache)
	policies, err := allowed(tm)
	require.NoError(t, err)
	onMade, err := allowed(readTemplate(t, onMadeCache))
	require.NoError(t, err)
	functions, err := tm.Functions()
	require.NoError(t, err)
	for _, f := range functions {
		u, err := url.Parse(f.Environment.Variables["LOCK_URL"])
		require.NoError(t, err)
		want := actions{
			connect("serverlesscache", u.Query().Get("cache")): true,
			connect("user", u.User.Username()):                 true,
		}
		require.Contains(t, want, connect("serverlesscache", "existing"))
		for action := range onMade[f.CodeURI] {
			if !strings.HasPrefix(action, "elasticache:") {
				want[action] = true
			}
		}
		require.Equal(t, want, policies[f.CodeURI], f.CodeURI)
	}
}

// wrongPolicies changes the template's policies: they then differ from what a
// function used on the store, or are refused.
func wrongPolicies(t *testing.T, text, store, folder string, values map[string]string, used actions) {
	const (
		read     = "                  - dynamodb:GetItem\n"
		write    = "dynamodb:UpdateItem\n                Resource: !GetAtt LockTable.Arn"
		accounts = "!GetAtt AccountsTable.Arn"
		secret   = "Resource: !Ref TokenSecret"
		grant    = "Action: elasticache:Connect"
		user     = "                  - !Sub arn:${AWS::Partition}:elasticache:${AWS::Region}:${AWS::AccountId}:user:${CacheUser}\n"
		managed  = "      Policies:\n"
	)
	for name, c := range map[string]struct{ store, old, new, less, more, says string }{
		"one action more":        {"dynamodb", read, read + strings.Replace(read, "Get", "Delete", 1), "", "dynamodb:DeleteItem LockTable", ""},
		"one action less":        {"dynamodb", read, "", "dynamodb:GetItem LockTable", "", ""},
		"another action":         {"dynamodb", write, strings.Replace(write, "Update", "Put", 1), "dynamodb:UpdateItem LockTable", "dynamodb:PutItem LockTable", ""},
		"a wildcard":             {"dynamodb", read, strings.Replace(read, "GetItem", "*", 1), "dynamodb:GetItem LockTable", "dynamodb:* LockTable", ""},
		"the wrong table":        {"dynamodb", accounts, "!GetAtt LockTable.Arn", "dynamodb:UpdateItem AccountsTable", "", ""},
		"all tables":             {"dynamodb", accounts, `"*"`, "dynamodb:UpdateItem AccountsTable", "dynamodb:UpdateItem *", ""},
		"all secrets":            {"dynamodb", secret, `Resource: "*"`, "secretsmanager:GetSecretValue TokenSecret", "secretsmanager:GetSecretValue *", ""},
		"something denied":       {"dynamodb", "Effect: Allow", "Effect: Deny", "", "", "want Sid"},
		"a managed policy":       {"dynamodb", managed, managed + "        - AmazonDynamoDBReadOnlyAccess\n", "", "", "want a policy"},
		"one that SAM adds":      {"elasticache", managed, managed + "        - !If [UseCache, AWSLambdaVPCAccessExecutionRole, !Ref AWS::NoValue]\n", "", "", "want a policy"},
		"the lock table, too":    {"elasticache", accounts, "[" + accounts + ", !GetAtt LockTable.Arn]", "", "dynamodb:UpdateItem LockTable", ""},
		"not the user":           {"elasticache", user, "", connect("user", "somebody"), "", ""},
		"every user":             {"elasticache", "user:${CacheUser}\n", "user:*\n", connect("user", "somebody"), connect("user", "*"), ""},
		"every cache":            {"elasticache", "serverlesscache:${Name}", "serverlesscache:*", connect("serverlesscache", "made"), connect("serverlesscache", "*"), ""},
		"another cache's name":   {"elasticache", "!If [MakeCache, !Ref Cache, !Ref CacheName]", "!Ref CacheName", connect("serverlesscache", "made"), connect("serverlesscache", "existing"), ""},
		"more than to connect":   {"elasticache", grant, grant + "\n                NotAction: x", "", "", "want Sid"},
		"another condition":      {"elasticache", "!If [MakeCache, !Ref Cache,", "!If [MakeRedis, !Ref Cache,", connect("serverlesscache", "made"), connect("serverlesscache", "existing"), ""},
		"what has no value here": {"elasticache", "serverlesscache:${Name}", "serverlesscache:${Nam}", connect("serverlesscache", "made"), connect("serverlesscache", "${Nam}"), ""},
	} {
		own := map[string]string{read: "dynamodb:GetItem LockTable", accounts: "dynamodb:UpdateItem AccountsTable", secret: "secretsmanager:GetSecretValue TokenSecret"}[c.old]
		if c.store != store || own != "" && !used[own] {
			continue
		}
		changed := strings.ReplaceAll(text, c.old, c.new)
		require.NotEqual(t, text, changed, name)
		tm, err := template.Parse([]byte(changed), values)
		require.NoError(t, err, name)
		policies, err := allowed(tm)
		if c.says != "" {
			require.ErrorContains(t, err, c.says, name)
			continue
		}
		require.NoError(t, err, name)
		want := maps.Clone(used)
		want[c.more] = true
		delete(want, c.less)
		delete(want, "")
		require.Equal(t, want, policies[folder], name)
		require.NotEqual(t, used, policies[folder], name)
	}
}
