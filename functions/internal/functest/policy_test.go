package functest

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// actions are what a role may do or did, such as "dynamodb:GetItem LockTable".
type actions map[string]bool

// deployment is one of the ways in which the template can be deployed: the
// conditions of its !If, and what its !Ref, !GetAtt and ${} stand for.
type deployment struct {
	conditions map[string]bool
	values     map[string]string
}

// deployment is the stack with the parameters' defaults. Tables and secrets have
// their logical ids as names and ARNs.
func (s stack) deployment(useCache, makeCache bool) deployment {
	d := deployment{
		map[string]bool{"UseCache": useCache, "MakeCache": makeCache},
		map[string]string{
			"AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": "123456789012", "AWS::StackName": "stack",
			"Cache": "made", "Cache.Endpoint.Address": "127.0.0.1",
		},
	}
	for name, p := range s.Parameters {
		d.values[name] = p.Default
	}
	for name, r := range s.Resources {
		if r.Type == "AWS::DynamoDB::Table" || r.Type == "AWS::SecretsManager::Secret" {
			d.values[name], d.values[name+".Arn"] = name, name
		}
	}
	maps.Copy(d.values, map[string]string{"CacheUser": "somebody", "CacheName": "existing", "CacheEndpoint": "127.0.0.1"})
	return d
}

func (s stack) onDynamoDB() deployment      { return s.deployment(false, false) }
func (s stack) onMadeCache() deployment     { return s.deployment(true, true) }
func (s stack) onExistingCache() deployment { return s.deployment(true, false) }

// chosen is the side of an !If that counts. One on another condition stays, and
// is then no text and no policy.
func (d deployment) chosen(n yaml.Node) yaml.Node {
	for n.Tag == "!If" && len(n.Content) == 3 {
		met, known := d.conditions[n.Content[0].Value]
		switch {
		case !known:
			return n
		case met:
			n = *n.Content[1]
		default:
			n = *n.Content[2]
		}
	}
	return n
}

// text is what a value of the template comes to. What it does not understand is
// an error.
func (d deployment) text(n yaml.Node) (string, error) {
	n = d.chosen(n)
	pattern, own := n.Value, map[string]string{}
	switch {
	case n.Tag == "!Ref" || n.Tag == "!GetAtt":
		pattern = "${" + n.Value + "}"
	case n.Tag == "!Sub" && len(n.Content) == 2:
		pattern = n.Content[0].Value
		for names := n.Content[1].Content; len(names) > 1; names = names[2:] {
			var err error
			if own[names[0].Value], err = d.text(*names[1]); err != nil {
				return "", err
			}
		}
	case n.Kind != yaml.ScalarNode:
		return "", fmt.Errorf("line %d: want a text, !Ref, !GetAtt or !Sub", n.Line)
	}
	var err error
	text := os.Expand(pattern, func(name string) string {
		for _, values := range []map[string]string{own, d.values} {
			if value, ok := values[name]; ok {
				return value
			}
		}
		err = fmt.Errorf("line %d: %s has no value", n.Line, name)
		return ""
	})
	return text, err
}

// stack is what this test reads of a template.
type stack struct {
	Parameters map[string]struct {
		Default string `yaml:"Default"`
	} `yaml:"Parameters"`
	Globals struct {
		Function struct {
			Environment environment `yaml:"Environment"`
		} `yaml:"Function"`
	} `yaml:"Globals"`
	Resources map[string]struct {
		Type       string `yaml:"Type"`
		Properties struct {
			AccessString string `yaml:"AccessString"`
			KeySchema    []struct {
				AttributeName string `yaml:"AttributeName"`
			} `yaml:"KeySchema"`
			Environment environment `yaml:"Environment"`
			CodeURI     string      `yaml:"CodeUri"`
			Role        yaml.Node   `yaml:"Role"`
			Policies    []yaml.Node `yaml:"Policies"`
		} `yaml:"Properties"`
	} `yaml:"Resources"`
}

type environment struct {
	Variables map[string]yaml.Node `yaml:"Variables"`
}

func readStack(template []byte) (s stack, err error) {
	err = yaml.Unmarshal(template, &s)
	return s, err
}

// variables are the environment of a function.
func (s stack) variables(t *testing.T, d deployment, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	add := func(e environment) {
		for name, value := range e.Variables {
			text, err := d.text(value)
			require.NoError(t, err, name)
			all[name] = text
		}
	}
	add(s.Globals.Function.Environment)
	for _, r := range s.Resources {
		if r.Properties.CodeURI == folder {
			add(r.Properties.Environment)
		}
	}
	return all
}

// allowed is what the policies of each function allow, by the function's folder.
// What it does not understand is an error, because that may allow more. What SAM
// adds to a role by itself is not looked at: logs, traces, the network of a
// VpcConfig, reading the queue of an event, writing to the queue of an
// EventInvokeConfig.
func (s stack) allowed(d deployment) (map[string]actions, error) {
	all := map[string]actions{}
	for name, r := range s.Resources {
		p := r.Properties
		if r.Type != "AWS::Serverless::Function" {
			continue
		}
		if all[p.CodeURI] != nil || !p.Role.IsZero() {
			return nil, fmt.Errorf("%s has a Role, or another function's CodeUri", name)
		}
		all[p.CodeURI] = actions{}
		for _, policy := range p.Policies {
			if err := d.add(all[p.CodeURI], d.chosen(policy)); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return all, nil
}

func (d deployment) add(a actions, policy yaml.Node) error {
	// A managed policy is none, also the one for a VPC: SAM adds that itself, and
	// a role that has it twice cannot be made.
	var p struct {
		Statement []yaml.Node `yaml:"Statement"`
	}
	if policy.Decode(&p) != nil || p.Statement == nil {
		return fmt.Errorf("line %d: want a policy with a list Statement", policy.Line)
	}
	for _, n := range p.Statement {
		n = d.chosen(n)
		var s map[string]yaml.Node
		if err := n.Decode(&s); err != nil {
			return err
		}
		if _, sid := s["Sid"]; !sid || len(s) != 4 || s["Effect"].Value != "Allow" {
			return fmt.Errorf("line %d: want Sid, Effect: Allow, Action and Resource", n.Line)
		}
		names, err := d.texts(s["Action"])
		if err != nil {
			return err
		}
		resources, err := d.texts(s["Resource"])
		if err != nil {
			return err
		}
		for _, name := range names {
			for _, resource := range resources {
				a[name+" "+resource] = true
			}
		}
	}
	return nil
}

// texts are those of one value or of a list of them.
func (d deployment) texts(n yaml.Node) (all []string, err error) {
	list := []*yaml.Node{&n}
	if n.Tag == "!!seq" {
		list = n.Content
	}
	for _, one := range list {
		text, err := d.text(*one)
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, nil
}

// connect is the right to use a cache or a user of one.
func connect(kind, name string) string {
	return "elasticache:Connect arn:aws:elasticache:us-east-1:123456789012:" + kind + ":" + name
}

// TestPolicies runs each function of the template, as built for Lambda, on all
// its events, with the locks where the template puts them: its policies are to
// allow what it does on DynamoDB and ElastiCache, and no more.
func TestPolicies(t *testing.T) {
	template, err := os.ReadFile("../../../template.yaml")
	require.NoError(t, err)
	s, err := readStack(template)
	require.NoError(t, err)
	policies, err := s.allowed(s.onDynamoDB())
	require.NoError(t, err)
	require.NotEmpty(t, policies)
	endpoint := testservers.DynamoDB(t)
	sites := map[string]site{"dynamodb": dynamoSite(t, s, endpoint), "elasticache": cacheSite(t, s, endpoint)}
	for folder := range policies {
		t.Run(folder, func(t *testing.T) {
			binary := filepath.Join(t.TempDir(), "bootstrap")
			require.NoError(t, lambdatest.Build(t.Context(), "github.com/lambdalock/lambdalock/"+folder, binary))
			for store, on := range sites {
				t.Run(store, func(t *testing.T) {
					used := on.events(t, folder, binary)
					policies, err := s.allowed(on.deployment)
					require.NoError(t, err)
					require.Equal(t, used, policies[folder], "expected: what the events make it do; actual: what its policies allow")
					t.Run("a wrong policy is found", func(t *testing.T) { doctored(t, string(template), store, folder, on, used) })
				})
			}
		})
	}
}

// A cache that was there before has another name, in LOCK_URL as in the policies.
func TestPoliciesOnAnExistingCache(t *testing.T) {
	template, err := os.ReadFile("../../../template.yaml")
	require.NoError(t, err)
	s, err := readStack(template)
	require.NoError(t, err)
	policies, err := s.allowed(s.onExistingCache())
	require.NoError(t, err)
	u, err := url.Parse(s.variables(t, s.onExistingCache(), "")["LOCK_URL"])
	require.NoError(t, err)
	want := actions{
		connect("serverlesscache", u.Query().Get("cache")): true,
		connect("user", u.User.Username()):                 true,
	}
	require.Contains(t, want, connect("serverlesscache", "existing"))
	onMade, err := s.allowed(s.onMadeCache())
	require.NoError(t, err)
	for folder, may := range policies {
		want := maps.Clone(want)
		for action := range onMade[folder] {
			if !strings.HasPrefix(action, "elasticache:") {
				want[action] = true
			}
		}
		require.Equal(t, want, may, folder)
	}
}

// doctored changes the template's policies: they then differ from what a
// function used on the store, or are refused.
func doctored(t *testing.T, template, store, folder string, on site, used actions) {
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
		"another condition":      {"elasticache", "!If [MakeCache, !Ref Cache,", "!If [MakeRedis, !Ref Cache,", "", "", "want a text"},
		"what has no value here": {"elasticache", "serverlesscache:${Name}", "serverlesscache:${Nam}", "", "", "Nam has no value"},
	} {
		own := map[string]string{read: "dynamodb:GetItem LockTable", accounts: "dynamodb:UpdateItem AccountsTable", secret: "secretsmanager:GetSecretValue TokenSecret"}[c.old]
		if c.store != store || own != "" && !used[own] {
			continue
		}
		changed := strings.ReplaceAll(template, c.old, c.new)
		require.NotEqual(t, template, changed, name)
		s, err := readStack([]byte(changed))
		require.NoError(t, err, name)
		policies, err := s.allowed(on.deployment)
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
