package samlocal

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"path"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lambdatest"
)

// failing is a tester for a check that is to fail or to be skipped.
type failing struct {
	failed error
	reason string // why it was skipped
	log    string
}

func (f *failing) Errorf(format string, args ...any) {
	f.failed = errors.Join(f.failed, fmt.Errorf(format, args...))
}
func (f *failing) FailNow()                        { runtime.Goexit() }
func (f *failing) Skip(args ...any)                { f.reason = fmt.Sprint(args...); runtime.Goexit() }
func (f *failing) Logf(format string, args ...any) { f.log += fmt.Sprintf(format+"\n", args...) }

// tried runs a check and returns what became of it.
func tried(check func(tester)) *failing {
	f, done := &failing{}, make(chan struct{})
	go func() { defer close(done); check(f) }()
	<-done
	return f
}

// TestFakeAWS runs everything against a fake AWS, and then parts of it against one
// that is broken in some way.
func TestFakeAWS(t *testing.T) {
	inSAMTest(t)
	fake := startFakeAWS(t)
	at := openCloud(t, fake.getenv)
	s := at.suite(t, t.Context(), fakeStack)
	on := s.serve(t, oneByOne)
	withdraw := s.named(t, "withdraw")
	request, ok := withdraw.request(t)
	require.True(t, ok)
	withdrawFunction := s.functions[len(s.functions)-1]
	require.Equal(t, "WithdrawFunction", withdrawFunction.ID)
	send := func(t tester) { s.event(t, withdraw) }
	lock := func(t tester) { s.lock(t, on) }

	t.Run("everything is as expected", func(t *testing.T) {
		require.NotNil(t, s.locks, "else tests would be skipped")
		s.run(t)
		for _, service := range []string{"cloudformation", "lambda", "execute-api", "dynamodb"} {
			assert.Positive(t, fake.seen[service], service)
		}
		for _, key := range []string{"account/" + account, "schedule/nightly"} {
			s.hold(t, key)() // no lock is held after the run
		}
	})
	t.Run("a repeat of a key is another answer, and a second run is no repeat", func(t *testing.T) {
		keyed := s.named(t, "withdraw-key")
		s.event(t, keyed)
		s.event(t, keyed)
		again, ok := keyed.request(t)
		require.True(t, ok)
		s.request(t, on, keyed, again)
		require.NoError(t, s.fresh(t.Context()))
		got, err := on.call(t.Context(), again)
		require.NoError(t, err)
		assert.Equal(t, "true", got.header.Get("Idempotent-Replayed"))
		require.NoError(t, got.same(keyed.Want), "the account is not asked: there is none")
	})
	t.Run("with a cache, what is held is skipped", func(t *testing.T) {
		fake.lockStack = "locks"
		defer func() { fake.lockStack = "" }()
		cached := at.suite(t, t.Context(), fakeStack)
		busy := cached.named(t, "withdraw-busy")
		for _, check := range []func(tester){
			func(t tester) { cached.event(t, busy) },
			func(t tester) { cached.request(t, on, busy, request) },
			func(t tester) { cached.burst(t, on) },
		} {
			got := tried(check)
			assert.NoError(t, got.failed)
			assert.Contains(t, got.reason, "a lock that another holds")
		}
		assert.Equal(t, &failing{}, tried(func(t tester) { cached.event(t, withdraw) }))
	})

	answer := func(service string, status int, header, value, body string) func(http.ResponseWriter, *http.Request, string) bool {
		return func(w http.ResponseWriter, _ *http.Request, to string) bool {
			if to == service {
				w.Header().Set(header, value)
				w.WriteHeader(status)
				fmt.Fprint(w, body)
			}
			return to == service
		}
	}
	change := func(change func(*http.Request)) func(http.ResponseWriter, *http.Request, string) bool {
		return func(_ http.ResponseWriter, r *http.Request, service string) bool {
			if service == "execute-api" {
				change(r)
			}
			return false
		}
	}
	const unhandled = "X-Amz-Function-Error"
	good := strings.Replace(string(withdraw.Want), "\n", " ", -1)
	require.Contains(t, good, "99500")
	for name, c := range map[string]struct {
		before func(http.ResponseWriter, *http.Request, string) bool
		check  func(tester)
		want   string
	}{
		"an answer differs":  {answer("lambda", 200, "", "", strings.Replace(good, "99500", "99000", 1)), send, "99000"},
		"the function fails": {answer("lambda", 200, unhandled, "Unhandled", `{"errorType":"LockStoreUnavailable","errorMessage":"x"}`), send, `X-Amz-Function-Error is "Unhandled"`},
		"403": {answer("lambda", 403, "X-Amzn-ErrorType", "AccessDeniedException", `{"Message":"User: x is not authorized to perform: lambda:InvokeFunction"}`),
			send, "AccessDeniedException: User: x is not authorized to perform: lambda:InvokeFunction"},
		"429": {answer("lambda", 429, "X-Amzn-ErrorType", "TooManyRequestsException", `{"Reason":"ConcurrentInvocationLimitExceeded","Type":"User","message":"Rate Exceeded."}`),
			send, "TooManyRequestsException: Rate Exceeded. (a run has up to 12 invocations at once"},
		"an API that decodes paths twice":   {change(func(r *http.Request) { r.URL.Path = strings.ReplaceAll(r.URL.Path, "%2F", "/") }), lock, "%252F is taken for a slash"},
		"an API that tidies paths":          {change(func(r *http.Request) { r.URL.Path = path.Clean(r.URL.Path) }), lock, "PUT /locks/shared//"},
		"an API that keeps a header back":   {change(func(r *http.Request) { r.Header.Del("Idempotency-Key") }), lock, "is answered by 409"},
		"an API that takes paths literally": {change(func(r *http.Request) { r.URL.Path = r.URL.EscapedPath() }), lock, "is answered by 403"},
	} {
		t.Run(name, func(t *testing.T) {
			fake.pretend("CREATE_COMPLETE", c.before)
			defer fake.pretend("CREATE_COMPLETE", nil)
			assert.ErrorContains(t, tried(c.check).failed, c.want)
		})
	}
	t.Run("a function without the lock", func(t *testing.T) {
		fake.forget()
		real, unlocked := fake.bootstrap["WithdrawFunction"], t.TempDir()+"/unguarded"
		defer func() { fake.forget(); fake.bootstrap["WithdrawFunction"] = real }()
		require.NoError(t, lambdatest.Build(t.Context(), "./functions/internal/unguarded", unlocked))
		fake.bootstrap["WithdrawFunction"] = unlocked
		assert.ErrorContains(t, tried(func(t tester) { s.burst(t, on) }).failed, "the balance while the lock was held")
	})

	denied := answer("cloudformation", 403, "", "", `<ErrorResponse><Error><Code>AccessDenied</Code><Message>User: x is not authorized to perform: cloudformation:DescribeStacks</Message></Error></ErrorResponse>`)
	for name, c := range map[string]struct {
		stack, status string
		before        func(http.ResponseWriter, *http.Request, string) bool
		want          []string
	}{
		"no such stack": {"other", "", nil, []string{"ValidationError: Stack with id other does not exist"}},
		"not deployed":  {fakeStack, "ROLLBACK_COMPLETE", nil, []string{"ROLLBACK_COMPLETE", "at rest"}},
		"not allowed":   {fakeStack, "", denied, []string{"AccessDenied: User: x", "lambda:InvokeFunction", "dynamodb:DeleteItem"}},
		"no stack":      {fakeStack, "", answer("cloudformation", 200, "", "", "{}"), []string{"should have 1 item"}},
	} {
		t.Run(name, func(t *testing.T) {
			fake.pretend(cmp.Or(c.status, "CREATE_COMPLETE"), c.before)
			defer fake.pretend("CREATE_COMPLETE", nil)
			err := tried(func(to tester) { at.describe(to, t.Context(), c.stack, fake.template) }).failed
			for _, want := range c.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
	t.Run("somebody has account 8", func(t *testing.T) {
		s.accounts.open(t, nobody, 5)
		err := tried(func(to tester) {
			at.mustBeAbsent(to, t.Context(), at.describe(to, t.Context(), fakeStack, fake.template))
		}).failed
		assert.ErrorContains(t, err, "the account 8 is in the table it-AccountsTable-1A2B3C")
	})
}

func TestRunInAWSNeedsCredentials(t *testing.T) {
	env := map[string]string{}
	for _, next := range []struct{ name, value, want string }{
		{"", "", "AWS_REGION is not set"},
		{"AWS_REGION", "eu-central-1", "there are no credentials"},
		{"AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"},
	} {
		env[next.name] = next.value
		err := tried(func(t tester) { openCloud(t, func(name string) string { return env[name] }) }).failed
		for _, want := range []string{next.want, "AWS_SESSION_TOKEN", "lambda:InvokeFunction", "execute-api:Invoke", "dynamodb:DeleteItem", "cloudformation:DescribeStacks"} {
			require.ErrorContains(t, err, want)
		}
		assert.NotContains(t, err.Error(), "dynamostore")
		assert.NotContains(t, err.Error(), "lock request")
	}
	env["AWS_SECRET_ACCESS_KEY"], env["HTTPS_PROXY"] = "b", "http://proxy:1"
	c := openCloud(t, func(name string) string { return env[name] })
	assert.Equal(t, "dynamodb://x", c.tableURL("x"))
	assert.Contains(t, c.environment(t), "HTTPS_PROXY=http://proxy:1")
}
