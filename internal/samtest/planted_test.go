//go:build sam

package samtest

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// TestFakeAWS runs everything against a fake AWS.
func TestFakeAWS(t *testing.T) {
	inSAMTest(t)
	fake := startFakeAWS(t)
	at := openCloud(t, fake.getenv)
	s := at.suite(t, t.Context(), fakeStack)
	on := s.serve(t, oneByOne)
	withdraw := s.named(t, "withdraw")
	request, ok := withdraw.request(t)
	require.True(t, ok)

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
	t.Run("no such stack", func(t *testing.T) {
		err := tried(func(to tester) { at.describe(to, t.Context(), "other", fake.template) }).failed
		assert.ErrorContains(t, err, "ValidationError: Stack with id other does not exist")
	})
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
