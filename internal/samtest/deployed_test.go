package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// TestDeployed runs all of make test-aws against a fake AWS, and then parts of it
// against one that is broken in some way.
func TestDeployed(t *testing.T) {
	aws := startFakeAWS(t)
	t.Run("everything is as expected", func(t *testing.T) {
		var text bytes.Buffer
		require.NoError(t, runDeployed(t.Context(), &screen{out: &text}, aws.getenv, fakeStack), "%s", &text)
		t.Logf("%s", &text)
		_, fixtures, err := readAll()
		require.NoError(t, err)
		for _, f := range fixtures {
			want := `(?m)^  %.25s +ok \d+\.\ds$`
			if _, http := f.http(); http {
				want = `(?m)^  %.25s +ok \d+\.\ds +ok \d+\.\ds$`
			}
			assert.Regexp(t, fmt.Sprintf(want, f.Name), text.String())
		}
		assert.Regexp(t, `(?m)^  the life of a lock +ok \d+\.\ds$`, text.String())
		assert.Regexp(t, `(?m)^  12 withdrawals at once +ok .* busy$`, text.String())
		assert.Regexp(t, `(?m)^  WithdrawFunction +[\d.]+ ms +[\d.]+ ms$`, text.String())
		assert.NotContains(t, text.String(), "not tried")
		assert.Contains(t, text.String(), "replaces the accounts 7 and 9 in the table it-AccountsTable-1A2B3C")
		for _, service := range []string{"cloudformation", "lambda", "execute-api", "dynamodb"} {
			assert.Positive(t, aws.requests(service), service)
		}
		s, err := aws.deployed(t).store(t.Context(), aws.template)
		require.NoError(t, err)
		for _, key := range []string{lockstore.Key("account", account), "schedule/nightly"} {
			release, err := s.hold(t.Context(), aws.template, key)
			require.NoError(t, err, "no lock is held after the run")
			require.NoError(t, release(t.Context()))
		}
	})
	t.Run("a second run finds the functions warm", func(t *testing.T) {
		r, text := aws.part(t, aws.plain(), trial.measure)
		assert.Contains(t, text, "WithdrawFunction             not tried ")
		assert.Contains(t, text, "not tried: a cold start")
		require.NoError(t, verdict(r))
	})
	t.Run("with a cache nothing that is held counts as passed", func(t *testing.T) {
		aws.lockStore = "elasticache"
		defer func() { aws.lockStore = "dynamodb" }()
		r, text := aws.part(t, []string{"withdraw", "withdraw-busy"}, trial.invoke, trial.call, trial.crowd)
		require.NoError(t, verdict(r))
		assert.Equal(t, 4, strings.Count(text, "not tried"), "two of the event, one of the crowd, and why: %s", text)
		assert.Contains(t, text, "not tried: what needs a lock that another holds")
		assert.Len(t, r[0].invoked, 2)
		assert.NotContains(t, r[0].invoked["withdraw-busy"].String(), "ok")
	})

	lambda := func(answer func(w http.ResponseWriter)) func(http.ResponseWriter, *http.Request, string) bool {
		return func(w http.ResponseWriter, _ *http.Request, service string) bool {
			if service == "lambda" {
				answer(w)
			}
			return service == "lambda"
		}
	}
	refused := func(status int, kind, body string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("X-Amzn-ErrorType", kind)
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	const good = `{"statusCode":200,"headers":{"Content-Type":"application/json"},"multiValueHeaders":null,"body":"{\"account\":\"7\",\"withdrawal\":\"w-1\",\"amount\":500,\"balance\":99500}","cookies":null}`
	for name, c := range map[string]struct {
		before   func(http.ResponseWriter, *http.Request, string) bool
		fixtures []string
		steps    []methodStep
		want     string
	}{
		"an answer differs": {
			lambda(func(w http.ResponseWriter) { fmt.Fprint(w, strings.Replace(good, "99500", "99000", 1)) }),
			[]string{"withdraw"}, []methodStep{trial.invoke}, "99000",
		},
		"the function fails": {
			lambda(func(w http.ResponseWriter) {
				w.Header().Set("X-Amz-Function-Error", "Unhandled")
				fmt.Fprint(w, `{"errorType":"LockStoreUnavailable","errorMessage":"x"}`)
			}),
			[]string{"withdraw"}, []methodStep{trial.invoke}, `X-Amz-Function-Error "Unhandled"`,
		},
		"a right answer is marked as an error": {
			lambda(func(w http.ResponseWriter) {
				w.Header().Set("X-Amz-Function-Error", "Unhandled")
				fmt.Fprint(w, good)
			}),
			[]string{"withdraw"}, []methodStep{trial.invoke}, "X-Amz-Function-Error",
		},
		"an expected error is not marked as one": {
			lambda(func(w http.ResponseWriter) {
				fmt.Fprint(w, `{"errorMessage":"detail.accounts[1], detail.fee: account: want 1 to 64 letters, digits, '-' or '_'","errorType":"BadInput"}`)
			}),
			[]string{"nightly-bad-input"}, []methodStep{trial.invoke}, "X-Amz-Function-Error",
		},
		"403": {
			lambda(refused(403, "AccessDeniedException", `{"Message":"User: x is not authorized to perform: lambda:InvokeFunction"}`)),
			[]string{"withdraw"}, []methodStep{trial.invoke}, "Lambda answers 403: AccessDeniedException: User: x is not authorized to perform: lambda:InvokeFunction",
		},
		"429": {
			lambda(refused(429, "TooManyRequestsException", `{"Reason":"ConcurrentInvocationLimitExceeded","Type":"User","message":"Rate Exceeded."}`)),
			[]string{"withdraw"}, []methodStep{trial.invoke}, "TooManyRequestsException: Rate Exceeded. (throttled",
		},
		"a timing fails": {
			lambda(refused(500, "ServiceException", "{}")),
			aws.plain(), []methodStep{trial.measure}, "Lambda answers 500",
		},
		"the API refuses": {
			func(w http.ResponseWriter, _ *http.Request, service string) bool {
				if service == "execute-api" {
					w.WriteHeader(403)
					fmt.Fprint(w, `{"message":"Forbidden"}`)
				}
				return service == "execute-api"
			},
			[]string{"withdraw"}, []methodStep{trial.call}, "got  403",
		},
	} {
		t.Run(name, func(t *testing.T) {
			aws.before = c.before
			defer func() { aws.before = nil }()
			r, text := aws.part(t, append(c.fixtures, "withdraw-busy"), c.steps...)
			require.ErrorContains(t, verdict(r), "checks differ")
			assert.Contains(t, text, c.want)
			assert.NotContains(t, strings.Join(strings.Fields(text), " "), c.fixtures[0]+" ok")
		})
	}
	for name, c := range map[string]struct {
		change func(*http.Request)
		want   string
	}{
		"an API that decodes paths twice":   {func(r *http.Request) { r.URL.Path = strings.ReplaceAll(r.URL.Path, "%2F", "/") }, "%252F is taken for a slash"},
		"an API that tidies paths":          {func(r *http.Request) { r.URL.Path = path.Clean(r.URL.Path) }, "PUT /locks/shared//"},
		"an API that keeps a header back":   {func(r *http.Request) { r.Header.Del("Idempotency-Key") }, "is answered by 409"},
		"an API that takes paths literally": {func(r *http.Request) { r.URL.Path = r.URL.EscapedPath() }, "is answered by 403"},
	} {
		t.Run(name, func(t *testing.T) {
			aws.before = func(_ http.ResponseWriter, r *http.Request, service string) bool {
				if service == "execute-api" {
					c.change(r)
				}
				return false
			}
			defer func() { aws.before = nil }()
			r, text := aws.part(t, []string{"withdraw"}, trial.call)
			require.ErrorContains(t, verdict(r), "1 of 3 checks differ", "the burst counts, too")
			assert.Contains(t, text, lifeRow+" differs:")
			assert.Contains(t, text, c.want)
		})
	}
	t.Run("a function without the lock", func(t *testing.T) {
		aws.forget()
		defer func(real string) { aws.forget(); aws.bootstrap["WithdrawFunction"] = real }(aws.bootstrap["WithdrawFunction"])
		aws.bootstrap["WithdrawFunction"] = aws.clerk
		r, text := aws.part(t, []string{"withdraw", "withdraw-busy"}, trial.crowd)
		require.ErrorContains(t, verdict(r), "1 of 1 checks differ")
		assert.Contains(t, text, "while the lock was held")
	})

	for name, c := range map[string]struct {
		stack  string
		status string
		before func(http.ResponseWriter, *http.Request, string) bool
		want   []string
	}{
		"no such stack": {"other", "", nil, []string{"CloudFormation answers 400: ValidationError: Stack with id other does not exist"}},
		"not deployed":  {fakeStack, "ROLLBACK_COMPLETE", nil, []string{"is ROLLBACK_COMPLETE"}},
		"not allowed": {fakeStack, "", func(w http.ResponseWriter, _ *http.Request, _ string) bool {
			w.WriteHeader(403)
			fmt.Fprint(w, `<ErrorResponse><Error><Code>AccessDenied</Code><Message>User: x is not authorized to perform: cloudformation:DescribeStacks</Message></Error></ErrorResponse>`)
			return true
		}, []string{"CloudFormation answers 403: AccessDenied: User: x", "lambda:InvokeFunction", "dynamodb:DeleteItem"}},
		"not XML": {fakeStack, "", func(w http.ResponseWriter, _ *http.Request, _ string) bool {
			fmt.Fprint(w, `{}`)
			return true
		}, []string{"CloudFormation's answer to DescribeStacks"}},
	} {
		t.Run(name, func(t *testing.T) {
			aws.before, aws.status = c.before, cmp.Or(c.status, "CREATE_COMPLETE")
			defer func() { aws.before, aws.status = nil, "CREATE_COMPLETE" }()
			var text bytes.Buffer
			err := runDeployed(t.Context(), &screen{out: &text}, aws.getenv, c.stack)
			for _, want := range c.want {
				assert.ErrorContains(t, err, want)
			}
			assert.Empty(t, text.String(), "nothing was written yet")
		})
	}
	t.Run("somebody has account 8", func(t *testing.T) {
		d := aws.deployed(t)
		s, err := d.store(t.Context(), aws.template)
		require.NoError(t, err)
		desk, err := openDesk(t.Context(), aws.clerk, s, aws.template)
		require.NoError(t, err)
		require.NoError(t, desk.open(t.Context(), nobody, 5))
		require.NoError(t, desk.env.Close())
		err = runDeployed(t.Context(), &screen{out: &bytes.Buffer{}}, aws.getenv, fakeStack)
		assert.ErrorContains(t, err, "the account 8 is in the table it-AccountsTable-1A2B3C")
	})
}

// plain are the events that are just the functions' names.
func (f *fakeAWS) plain() (names []string) {
	for _, f := range f.template.functions {
		names = append(names, f.name)
	}
	return names
}

func (f *fakeAWS) deployed(t *testing.T) deployed {
	c, err := openCloud(t.Context(), f.getenv)
	require.NoError(t, err)
	at, err := c.describe(t.Context(), fakeStack, f.template)
	require.NoError(t, err)
	return deployed{c, at}
}

// part runs some steps with some fixtures and returns what was seen and what was
// shown.
func (f *fakeAWS) part(t *testing.T, names []string, steps ...methodStep) ([]*report, string) {
	t.Helper()
	_, fixtures, err := readAll()
	require.NoError(t, err)
	fixtures = slices.DeleteFunc(fixtures, func(f fixture) bool { return !slices.Contains(names, f.Name) })
	d := f.deployed(t)
	s, err := d.store(t.Context(), f.template)
	require.NoError(t, err)
	var text bytes.Buffer
	tr := trial{template: f.template, fixtures: fixtures, clerk: f.clerk, out: &screen{out: &text}}
	var bound []step
	for _, step := range steps {
		bound = append(bound, func(ctx context.Context, s *store, d desk, functions runner, r *report) error {
			return step(tr, ctx, s, d, functions, r)
		})
	}
	r, err := tr.on(t.Context(), s, d, bound...)
	require.NoError(t, err)
	reports := []*report{r}
	return reports, text.String() + table(fixtures, f.template, reports)
}

// methodStep is a step of a trial that is not there yet.
type methodStep = func(trial, context.Context, *store, desk, runner, *report) error

func TestDeployedNeeds(t *testing.T) {
	t.Chdir("../..")
	env := map[string]string{}
	run := func() error {
		return runDeployed(t.Context(), &screen{out: &bytes.Buffer{}}, func(name string) string { return env[name] }, fakeStack)
	}
	for _, next := range []struct{ name, value, want string }{
		{"", "", "AWS_REGION is not set"},
		{"AWS_REGION", "eu-central-1", "there are no credentials"},
		{"AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"},
	} {
		env[next.name] = next.value
		err := run()
		require.ErrorContains(t, err, next.want)
		assert.NotContains(t, err.Error(), "dynamostore")
		assert.NotContains(t, err.Error(), "lock request")
		for _, want := range []string{"AWS_SESSION_TOKEN", "lambda:InvokeFunction", "execute-api:Invoke", "dynamodb:DeleteItem", "cloudformation:DescribeStacks"} {
			assert.ErrorContains(t, err, want)
		}
		status, _ := ending(err, false, false)
		assert.Equal(t, 1, status)
	}
}

func TestUnreachableServicesAreNamed(t *testing.T) {
	dead := httptest.NewServer(nil)
	dead.Close()
	c, err := openCloud(t.Context(), (&fakeAWS{Server: dead}).getenv)
	require.NoError(t, err)
	d := deployed{c, stack{api: dead.URL}}
	_, describing := c.describe(t.Context(), fakeStack, template{})
	_, invoking := d.invoke(t.Context(), "x", nil)
	_, calling := d.call(t.Context(), request{})
	for want, err := range map[string]error{
		"CloudFormation": describing, "Lambda": invoking, "the API": calling,
	} {
		assert.ErrorContains(t, err, want+" cannot be reached; check AWS_REGION ("+region+") and the network: ")
	}
}

func TestCommand(t *testing.T) {
	t.Chdir("../..")
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"-stack", "x"}, ""},
		{[]string{"-stack", ""}, "want the name of a stack"},
		{[]string{"-help"}, "replaces the accounts 7 and 9"},
		{[]string{"lambdalock"}, `"lambdalock" is no argument here`},
	} {
		var text bytes.Buffer
		run, err := command(c.args, &text)
		if c.want == "" {
			require.NoError(t, err)
			require.NotNil(t, run)
			if c.args != nil {
				err := run(t.Context(), &screen{out: &text}, func(string) string { return "" })
				assert.ErrorContains(t, err, "AWS cannot be asked")
			}
			continue
		}
		require.Error(t, err)
		assert.Contains(t, text.String(), c.want)
	}
}

func TestIncompleteStack(t *testing.T) {
	tm, err := readTemplate("../../template.yaml")
	require.NoError(t, err)
	whole := func() stack {
		s := stack{name: "x", lockStore: "dynamodb", api: "https://x", ids: map[string]string{}}
		for _, f := range tm.functions {
			s.ids[f.id] = "x"
		}
		for _, table := range tm.tables {
			s.ids[table.id] = "x"
		}
		return s
	}
	require.NoError(t, whole().complete(tm))
	for want, change := range map[string]func(*stack){
		"parameter LockStore":       func(s *stack) { s.lockStore = "" },
		"output ApiUrl":             func(s *stack) { s.api = "" },
		"function WithdrawFunction": func(s *stack) { delete(s.ids, "WithdrawFunction") },
		"table AccountsTable":       func(s *stack) { delete(s.ids, "AccountsTable") },
	} {
		s := whole()
		change(&s)
		assert.ErrorContains(t, s.complete(tm), "has no "+want)
	}
}

func TestColdStartsAreRead(t *testing.T) {
	for log, want := range map[string]bool{
		"REPORT RequestId: 1\tDuration: 1.2 ms\tInit Duration: 40.1 ms\t": true,
		`{"record":{"metrics":{"initDurationMs":40.1}}}`:                  true,
		"REPORT RequestId: 1\tDuration: 1.2 ms\t":                         false,
		"": false,
	} {
		assert.Equal(t, want, began(base64.StdEncoding.EncodeToString([]byte(log))), log)
	}
	assert.False(t, began("?"))
}

func TestEndpoints(t *testing.T) {
	env := map[string]string{"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "HTTPS_PROXY": "http://proxy:1"}
	getenv := func(name string) string { return env[name] }
	c, err := openCloud(t.Context(), getenv)
	require.NoError(t, err)
	assert.Equal(t, "https://lambda.eu-central-1.amazonaws.com", c.base("lambda"))
	assert.Equal(t, "dynamodb://x", c.tableURL("x"))
	handed, err := c.environment(t.Context())
	require.NoError(t, err)
	assert.Contains(t, handed, "HTTPS_PROXY=http://proxy:1")
	env["AWS_REGION"] = "cn-north-1"
	c, err = openCloud(t.Context(), getenv)
	require.NoError(t, err)
	assert.Equal(t, "https://lambda.cn-north-1.amazonaws.com.cn", c.base("lambda"))
}
