package functest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/internal/lambdatest"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// actions are those on the two tables, such as "locks GetItem".
type actions map[string]bool

// allowed reads from a template what the policies of each function allow where
// the locks are in DynamoDB, by the function's folder. What it does not
// understand is an error, because that may allow more.
func allowed(template []byte) (map[string]actions, error) {
	var t struct {
		Resources map[string]struct {
			Type       string `yaml:"Type"`
			Properties struct {
				CodeURI  string      `yaml:"CodeUri"`
				Role     yaml.Node   `yaml:"Role"`
				Policies []yaml.Node `yaml:"Policies"`
			} `yaml:"Properties"`
		} `yaml:"Resources"`
	}
	if err := yaml.Unmarshal(template, &t); err != nil {
		return nil, err
	}
	all := map[string]actions{}
	for name, r := range t.Resources {
		p := r.Properties
		if r.Type != "AWS::Serverless::Function" {
			continue
		}
		if all[p.CodeURI] != nil || !p.Role.IsZero() {
			return nil, fmt.Errorf("%s has a Role, or another function's CodeUri", name)
		}
		all[p.CodeURI] = actions{}
		for _, policy := range p.Policies {
			if err := all[p.CodeURI].add(onDynamo(policy)); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return all, nil
}

// onDynamo is the branch of an !If that counts without a cache.
func onDynamo(n yaml.Node) yaml.Node {
	if n.Tag == "!If" && len(n.Content) == 3 && n.Content[0].Value == "UseCache" {
		return onDynamo(*n.Content[2])
	}
	return n
}

func (a actions) add(policy yaml.Node) error {
	if policy.Tag == "!Ref" && policy.Value == "AWS::NoValue" {
		return nil
	}
	var p struct {
		Statement []yaml.Node `yaml:"Statement"`
	}
	if policy.Decode(&p) != nil || p.Statement == nil {
		return fmt.Errorf("line %d: want a policy with a list Statement", policy.Line)
	}
	for _, n := range p.Statement {
		n = onDynamo(n)
		var s map[string]yaml.Node
		if err := n.Decode(&s); err != nil {
			return err
		}
		action, effect, resource := s["Action"], s["Effect"], s["Resource"]
		table := map[string]string{"LockTable.Arn": "locks", "AccountsTable.Arn": "accounts"}[resource.Value]
		if _, sid := s["Sid"]; !sid || len(s) != 4 || effect.Value != "Allow" || resource.Tag != "!GetAtt" || table == "" {
			return fmt.Errorf("line %d: want Sid, Effect: Allow, Action, and one table's Arn as Resource", n.Line)
		}
		names := []string{action.Value}
		if action.Kind != yaml.ScalarNode && action.Decode(&names) != nil {
			return fmt.Errorf("line %d: want an action or a list of them", action.Line)
		}
		for _, name := range names {
			a[table+" "+strings.TrimPrefix(name, "dynamodb:")] = true
		}
	}
	return nil
}

// record starts a way to DynamoDB that notes in used what passes.
func record(t *testing.T, endpoint string, used actions) string {
	target, err := url.Parse(endpoint)
	require.NoError(t, err)
	var mu sync.Mutex
	server := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		var in struct{ TableName string } // stays "" for an action on several tables or on none
		body, err := io.ReadAll(r.In.Body)
		assert.NoError(t, errors.Join(err, json.Unmarshal(body, &in)))
		r.Out.Body = io.NopCloser(bytes.NewReader(body))
		role, _, _ := strings.Cut(in.TableName, "-")
		_, action, _ := strings.Cut(r.In.Header.Get("X-Amz-Target"), ".")
		mu.Lock()
		defer mu.Unlock()
		used[role+" "+action] = true
	}})
	t.Cleanup(server.Close)
	return server.URL
}

// runEvent runs a binary on the event that has the answer in the file, with
// tables of its own behind the proxy.
func runEvent(t *testing.T, endpoint, proxy, binary, file string) {
	t.Parallel()
	name := strings.TrimSuffix(filepath.Base(file), ".out.json")
	lockURL, accountsURL := table(t, endpoint, "locks-"+name, "key"), table(t, endpoint, "accounts-"+name, "account")
	config := func(raw string) lockstore.Config {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		return lockstore.Config{URL: u, Getenv: func(string) string { return "local" }}
	}
	book, err := accounts.Open(config(accountsURL))
	require.NoError(t, err)
	(&Site{Book: book, t: t, ctx: t.Context()}).Open("7", "9")
	if strings.Contains(name, "busy") {
		store, err := dynamostore.Open(t.Context(), config(lockURL))
		require.NoError(t, err)
		for _, key := range []string{accounts.Key("7"), "schedule/nightly"} {
			_, err := store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: lockstore.NewOwner(), TTL: time.Minute})
			require.NoError(t, err)
		}
	}
	e, err := lambdatest.Start(t.Context(), lambdatest.Config{Binary: binary, Timeout: 30 * time.Second, Env: []string{"LOCK_WAIT=2s",
		"LOCK_URL=" + strings.Replace(lockURL, endpoint, proxy, 1), "ACCOUNTS_URL=" + strings.Replace(accountsURL, endpoint, proxy, 1)}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Close()) })
	in, errIn := os.ReadFile(strings.Replace(file, ".out", "", 1))
	want, errWant := os.ReadFile(file)
	r, err := e.Invoke(t.Context(), in)
	require.NoError(t, errors.Join(errIn, errWant, err))
	require.JSONEq(t, string(want), string(r.Payload), "%q", e.Logs())
}

// TestPolicies runs each function of the template, as built for Lambda, on all
// its events: its policies are to allow what it does on DynamoDB, and no more.
func TestPolicies(t *testing.T) {
	template, err := os.ReadFile("../../../template.yaml")
	require.NoError(t, err)
	policies, err := allowed(template)
	require.NoError(t, err)
	require.NotEmpty(t, policies)
	endpoint := testservers.DynamoDB(t)
	for folder, may := range policies {
		t.Run(folder, func(t *testing.T) {
			binary := filepath.Join(t.TempDir(), "bootstrap")
			require.NoError(t, lambdatest.Build(t.Context(), "github.com/lambdalock/lambdalock/"+folder, binary))
			answers, err := filepath.Glob("../../../events/" + filepath.Base(folder) + "*.out.json")
			require.NoError(t, err)
			used := actions{}
			t.Run("events", func(t *testing.T) {
				proxy := record(t, endpoint, used)
				for _, file := range answers {
					t.Run(filepath.Base(file), func(t *testing.T) { runEvent(t, endpoint, proxy, binary, file) })
				}
			})
			require.Equal(t, used, may, "expected: what the events make it do; actual: what its policies allow")
			t.Run("a wrong policy is found", func(t *testing.T) { doctored(t, string(template), folder, used) })
		})
	}
}

// doctored changes the template's policies: they then differ from what a
// function used, or are refused.
func doctored(t *testing.T, template, folder string, used actions) {
	const read, arn = "                  - dynamodb:GetItem\n", "!GetAtt AccountsTable.Arn"
	for name, c := range map[string]struct{ old, new, less, more string }{
		"one action more":  {read, read + strings.Replace(read, "Get", "Delete", 1), "", "locks DeleteItem"},
		"one action less":  {read, "", "locks GetItem", ""},
		"a wildcard":       {read, strings.Replace(read, "GetItem", "*", 1), "locks GetItem", "locks *"},
		"the wrong table":  {arn, "!GetAtt LockTable.Arn", "accounts UpdateItem", ""},
		"all tables":       {arn, `"*"`, "", ""},
		"something denied": {"Effect: Allow", "Effect: Deny", "", ""},
	} {
		changed := strings.ReplaceAll(template, c.old, c.new)
		require.NotEqual(t, template, changed, name)
		policies, err := allowed([]byte(changed))
		if c.less+c.more == "" {
			require.ErrorContains(t, err, "want Sid", name)
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
