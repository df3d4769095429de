package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// gateVariable makes the test binary the function. It names a file: withdrawals wait until it is there.
const gateVariable = "WITHDRAW_TEST_GATE"

// The test binary is also the function that the tests run as a process, with the payment of pay. Nothing looks at the
// context of a withdrawal whose id has "stubborn" in it.
func TestMain(m *testing.M) {
	gate := os.Getenv(gateVariable)
	if gate == "" {
		os.Exit(m.Run())
	}
	g := boot.MustGuardFromEnv(redisstore.Opener)
	ledger := boot.Must(accounts.Open(boot.MustURLFromEnv("ACCOUNTS_URL"), boot.EnvVar))
	ledger.Pay = pay(gate)
	next := handle(ledger)
	boot.Start(g, serve(g, key, func(ctx context.Context, lock guard.Lock, r httpapi.Request) (httpapi.Response, error) {
		fmt.Println("granted", lock.Key, int64(lock.Fence))
		if strings.Contains(string(r.Body), "stubborn") {
			ctx = context.WithoutCancel(ctx)
		}
		response, err := next(ctx, lock, r)
		fmt.Println("worked", response.StatusCode, err)
		return response, err
	}))
}

// pay is a payment that says where it is and does what the id begins with: wait waits for the gate or the end of its
// context, and hang never returns.
func pay(gate string) func(context.Context, accounts.Withdrawal) error {
	return func(ctx context.Context, w accounts.Withdrawal) error {
		fmt.Println("paying", w.ID)
		switch {
		case strings.HasPrefix(w.ID, "wait"):
			for _, err := os.Stat(gate); err != nil; _, err = os.Stat(gate) {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(5 * time.Millisecond):
				}
			}
		case strings.HasPrefix(w.ID, "hang"):
			select {}
		}
		return nil
	}
}

const (
	account = "a"
	// ttl is each lease's. A lease is trusted for less than that, and a process on a busy machine
	// needs what is left.
	ttl = 5 * time.Second
	// patient waits for a lock longer than any test lets another have it.
	patient = "LOCK_WAIT=15s"
)

// bench is a Redis without locks, with an account, and what processes that use it have in their environment.
type bench struct {
	*testing.T
	ctx    context.Context
	redis  *miniredis.Miniredis
	ledger *accounts.Ledger
	gate   string
	env    []string
}

// What has many processes that die at random is in verify/processes.
func TestProcesses(t *testing.T) {
	for name, run := range map[string]func(*bench){
		"F07 F12 stopped for longer than the lease: the fence refuses the work": (*bench).frozen,
		"F13 F70 eight owners in one process":                                   (*bench).eightOwners,
		"F63 F68 timeout while holding":                                         (*bench).timesOut,
		"F71 credentials expire while holding":                                  (*bench).credentialsExpire,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			t.Cleanup(cancel)
			b := &bench{T: t, ctx: ctx, redis: miniredis.RunT(t), gate: filepath.Join(t.TempDir(), "gate")}
			at := "redis://" + b.redis.Addr()
			b.env = []string{"LOCK_URL=" + at, "ACCOUNTS_URL=" + at, "LOCK_TTL=" + ttl.String(), gateVariable + "=" + b.gate}
			u, err := lockstore.ParseURL(at)
			require.NoError(t, err)
			b.ledger, err = accounts.Open(u, func(string) string { return "" })
			require.NoError(t, err)
			require.NoError(t, b.ledger.Create(ctx, account, functest.Opening))
			run(b)
		})
	}
}

func (b *bench) start(config lambdatest.Config, env ...string) *lambdatest.Environment {
	b.Helper()
	binary, err := os.Executable()
	require.NoError(b, err)
	config.Name, config.Binary, config.Env = "withdraw", binary, slices.Concat(b.env, env)
	if config.Timeout == 0 {
		config.Timeout = 30 * time.Second
	}
	e, err := lambdatest.Start(b.ctx, config)
	require.NoError(b, err)
	b.Cleanup(func() { assert.NoError(b, e.Close()) })
	return e
}

func (b *bench) withdrawn() int64 {
	b.Helper()
	balance, err := b.ledger.Balance(b.ctx, account)
	require.NoError(b, err)
	return functest.Opening - balance
}

// openGate lets waiting payments go on.
func (b *bench) openGate() {
	b.Helper()
	require.NoError(b, os.WriteFile(b.gate, nil, 0o600))
}

// refuse makes the Redis refuse all credentials from now on, or no more.
func (b *bench) refuse(on bool) { b.redis.RequireAuth(map[bool]string{true: "another token"}[on]) }

// answer is what the client got. Status 0 is an error of the function.
type answer struct {
	lambdatest.Result
	status int
	body   string
}

// send runs one withdrawal: events/withdraw.json with another account and id, and a new request id if that is "".
func (b *bench) send(e *lambdatest.Environment, id, requestID string) answer {
	b.Helper()
	text, err := os.ReadFile("../../events/withdraw.json")
	assert.NoError(b, err)
	var event map[string]any
	assert.NoError(b, json.Unmarshal(text, &event))
	event["pathParameters"] = map[string]string{"id": account}
	event["body"] = fmt.Sprintf(`{"id": %q, "amount": 500}`, id)
	text, err = json.Marshal(event)
	assert.NoError(b, err)
	r, err := e.Send(b.ctx, lambdatest.Event{Payload: text, ID: requestID})
	assert.NoError(b, err)
	a := answer{Result: r}
	if r.ErrorType == "" {
		var response httpapi.Response
		assert.NoError(b, json.Unmarshal(r.Payload, &response))
		assert.NoError(b, described.check(response))
		a.status, a.body = response.StatusCode, string(response.Body)
	}
	return a
}

// sending is send in the background; the func it returns waits for the answer.
func (b *bench) sending(e *lambdatest.Environment, id string) func() answer {
	var a answer
	var done sync.WaitGroup
	done.Go(func() { a = b.send(e, id, "") })
	return func() answer { done.Wait(); return a }
}

// at waits until the process writes a line that begins so.
func (b *bench) at(e *lambdatest.Environment, begin string) {
	b.Helper()
	_, err := e.WaitLog(b.ctx, func(line string) bool { return strings.HasPrefix(line, begin) })
	require.NoError(b, err, "waiting for %q in %q", begin, e.Logs())
}

// fences are those that were granted, oldest first.
func (b *bench) fences(e *lambdatest.Environment) (all []int64) {
	b.Helper()
	for _, line := range e.Logs() {
		if rest, ok := strings.CutPrefix(line, "granted "+accounts.Key(account)+" "); ok {
			n, err := strconv.ParseInt(rest, 10, 64)
			require.NoError(b, err)
			all = append(all, n)
		}
	}
	return all
}

// takesOver checks that a withdrawal in another environment, which waits, gets the lock of a process that has died, with
// a larger fence.
func (b *bench) takesOver(dead *lambdatest.Environment) {
	b.Helper()
	next := b.start(lambdatest.Config{}, patient)
	a := b.send(next, "plain-1", "")
	require.Equal(b, 200, a.status, "%s %s", a.body, a.ErrorMessage)
	before, after := b.fences(dead), b.fences(next)
	require.NotEmpty(b, before)
	require.Len(b, after, 1)
	assert.Greater(b, after[0], before[len(before)-1])
}

// frozen stops the process for longer than its lease, and lets it go on when another has withdrawn. Its work does not
// look at its context.
func (b *bench) frozen() {
	e := b.start(lambdatest.Config{})
	first := b.sending(e, "wait-stubborn-1")
	b.at(e, "paying")
	require.NoError(b, e.Freeze())
	b.takesOver(e)
	b.openGate()
	require.NoError(b, e.Thaw())

	a := first()
	assert.Equal(b, 500, a.status, "%s %s", a.body, a.ErrorMessage)
	assert.Contains(b, a.body, "The lock was lost while working.")
	b.at(e, "worked 409 <nil>")
	assert.EqualValues(b, 500, b.withdrawn(), "only the later holder's withdrawal is there")
	line, err := e.WaitLog(b.ctx, func(line string) bool { return strings.Contains(line, `"message":"lock"`) })
	require.NoError(b, err)
	assert.Contains(b, line, `"outcome":"lost"`)
}

func (b *bench) eightOwners() {
	e := b.start(lambdatest.Config{MaxConcurrency: 8})
	first := b.sending(e, "wait-1")
	b.at(e, "paying")
	var others []func() answer
	for i := range 7 {
		others = append(others, b.sending(e, fmt.Sprint("plain-", i)))
	}
	for _, other := range others {
		assert.Equal(b, 409, other().status, "an invocation of the same process is another owner")
	}
	b.openGate()
	require.Equal(b, 200, first().status)

	waiting := b.start(lambdatest.Config{MaxConcurrency: 8}, patient)
	others = nil
	for i := range 8 {
		others = append(others, b.sending(waiting, fmt.Sprint("plain-", i)))
	}
	for _, other := range others {
		a := other()
		assert.Equal(b, 200, a.status, "%s %s", a.body, a.ErrorMessage)
	}
	assert.EqualValues(b, 4500, b.withdrawn(), "no update is lost among them")
	all := b.fences(waiting)
	require.True(b, slices.IsSorted(all), "%v", all)
	require.Len(b, slices.Compact(all), 8)
	assert.Equal(b, 1, waiting.Started(), "all of it in one process")
}

func (b *bench) timesOut() {
	e := b.start(lambdatest.Config{Timeout: 3 * time.Second}, "LOCK_WAIT=1s")
	a := b.send(e, "hang-1", "async-1")
	require.Equal(b, lambdatest.ErrorTimeout, a.ErrorType)
	assert.Zero(b, e.PID())

	// Lambda tries an async invocation again with the same request id, in an
	// environment whose process is new.
	for a.status != 200 {
		require.NoError(b, b.ctx.Err())
		a = b.send(e, "plain-1", "async-1")
	}
	all := b.fences(e)
	require.Len(b, all, 2, "the dead try's lock is never taken for the retry's own")
	assert.Greater(b, all[1], all[0])
	assert.EqualValues(b, 500, b.withdrawn())
	assert.Equal(b, 200, b.send(e, "plain-2", "").status, "the environment goes on")
	assert.Equal(b, 2, e.Started())
}

func (b *bench) credentialsExpire() {
	e := b.start(lambdatest.Config{})
	first := b.sending(e, "wait-1")
	b.at(e, "paying")
	b.refuse(true)
	a := first()
	assert.Equal(b, 500, a.status, "%s %s", a.body, a.ErrorMessage)
	assert.Contains(b, a.body, "The lock was lost while working.")
	b.refuse(false)
	b.takesOver(e)
	b.refuse(true)
	assert.Equal(b, 503, b.send(e, "plain-2", "").status, "no lock, and not busy")
	b.refuse(false)
	assert.EqualValues(b, 500, b.withdrawn())
}
