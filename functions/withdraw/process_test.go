package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// The test binary is also the function that the tests run as a process. What the
// id has in it, besides what the payment looks at, says what happens:
//
//	stubborn  nothing looks at the context
//	stall     everything is done, but the handler does not return
func TestMain(m *testing.M) {
	functest.Main(m, os.Getenv(functest.GateVariable), func(g *guard.Guard, ledger *accounts.Ledger) {
		asked := func(ctx context.Context, r httpapi.Request) (string, error) {
			fmt.Println("asked")
			return key(ctx, r)
		}
		next := handle(ledger)
		boot.Start(g, serve(g, asked, func(ctx context.Context, lock guard.Lock, r httpapi.Request) (httpapi.Response, error) {
			fmt.Println("granted", lock.Key, int64(lock.Fence))
			if strings.Contains(string(r.Body), "stubborn") {
				ctx = context.WithoutCancel(ctx)
			}
			response, err := next(ctx, lock, r)
			fmt.Println("worked", response.StatusCode, err)
			if strings.Contains(string(r.Body), "stall") {
				select {}
			}
			return response, err
		}))
	})
}

func TestProcesses(t *testing.T) {
	functest.OnRedis(t, map[string]func(*testing.T, *functest.Target){
		"F01 killed right after acquire":            killedAfterAcquire,
		"F02 killed while waiting":                  killedWhileWaiting,
		"F03 killed between write and release":      killedBeforeRelease,
		"F04 panic in the handler":                  panics,
		"F05 exit in the handler":                   exits,
		"F06 killed for its memory while it renews": killedWhileRenewing,
		"F07 stopped for longer than the lease: a work that looks at its context ends":      frozen("wait-1", "worked 0 account"),
		"F07 F12 stopped for longer than the lease: the fence refuses a work that does not": frozen("wait-stubborn-1", "worked 409 <nil>"),
		"F13 F70 eight owners in one process":                                               eightOwners,
		"F63 F68 timeout while holding":                                                     timesOut,
		"F64 duplicate event while the first runs":                                          duplicateEvent,
		"F65 F66 no time left":                                                              noTimeLeft,
		"F69 SIGTERM: work that returns is released":                                        shutDownReturns,
		"F69 SIGTERM: work that does not return keeps its lease":                            shutDownDoesNotReturn,
		"F69 not asked for: the lease ends by its TTL":                                      shutDownNotAsked,
		"F71 credentials expire while holding":                                              credentialsExpire,
	})
}

const account = "a"

// start starts an environment of the function.
func start(s *functest.Target, config lambdatest.Config, env ...string) *lambdatest.Environment {
	config.Name = "withdraw"
	return s.Start(config, env...)
}

// payload is events/withdraw.json with another account and id.
func payload(t *testing.T, id string) json.RawMessage {
	t.Helper()
	text, err := os.ReadFile("../../events/withdraw.json")
	require.NoError(t, err)
	var event map[string]any
	require.NoError(t, json.Unmarshal(text, &event))
	event["pathParameters"] = map[string]string{"id": account}
	event["body"] = fmt.Sprintf(`{"id": %q, "amount": 500}`, id)
	text, err = json.Marshal(event)
	require.NoError(t, err)
	return text
}

// answer is what the client got. Status 0 is an error of the function.
type answer struct {
	lambdatest.Result
	status int
	body   string
}

func read(t *testing.T, r lambdatest.Result) answer {
	t.Helper()
	a := answer{Result: r}
	if r.ErrorType == "" {
		var response httpapi.Response
		assert.NoError(t, json.Unmarshal(r.Payload, &response))
		assert.NoError(t, described.check(response))
		a.status, a.body = response.StatusCode, string(response.Body)
	}
	return a
}

// send runs one withdrawal.
func send(t *testing.T, s *functest.Target, e *lambdatest.Environment, id, requestID string) answer {
	t.Helper()
	return read(t, s.Send(e, payload(t, id), requestID))
}

// sending is send in the background; the func it returns waits for the answer.
func sending(t *testing.T, s *functest.Target, e *lambdatest.Environment, id, requestID string) func() answer {
	t.Helper()
	wait := s.Sending(e, payload(t, id), requestID)
	return func() answer { return read(t, wait()) }
}

func fences(s *functest.Target, e *lambdatest.Environment) []int64 {
	return s.Fences(e, accounts.Key(account))
}

// takesOver checks that a withdrawal in another environment gets the lock of a
// process that died at the given time, in time and with a larger fence.
func takesOver(t *testing.T, s *functest.Target, dead *lambdatest.Environment, died time.Time, id string) answer {
	t.Helper()
	next := start(s, lambdatest.Config{}, functest.Patient)
	a := send(t, s, next, id, "")
	assert.Less(t, time.Since(died), s.TTL+functest.Slack)
	require.Equal(t, 200, a.status, "%s %s", a.body, a.ErrorMessage)
	before, after := fences(s, dead), fences(s, next)
	require.NotEmpty(t, before)
	require.Len(t, after, 1)
	assert.Greater(t, after[0], before[len(before)-1])
	t.Logf("taken over %v after the end, TTL %v", time.Since(died).Round(time.Millisecond), s.TTL)
	return a
}

func killedAfterAcquire(t *testing.T, s *functest.Target) {
	s.Open(account)
	e, other := start(s, lambdatest.Config{}), start(s, lambdatest.Config{})
	first := sending(t, s, e, "hang-1", "")
	s.At(e, "granted")
	require.NoError(t, e.Kill())
	died := time.Now()
	assert.Equal(t, lambdatest.ErrorExit, first().ErrorType)

	assert.Equal(t, 409, send(t, s, other, "plain-0", "").status, "until its lease ends, others see it held")
	takesOver(t, s, e, died, "plain-1")
	assert.EqualValues(t, 500, s.Withdrawn(account))
}

func killedWhileWaiting(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{})
	first := sending(t, s, e, "wait-1", "")
	s.At(e, "paying")
	waiter := start(s, lambdatest.Config{}, functest.Patient)
	waiting := sending(t, s, waiter, "plain-1", "")
	s.At(waiter, "asked")
	require.NoError(t, waiter.Kill())
	assert.Equal(t, lambdatest.ErrorExit, waiting().ErrorType)
	s.OpenGate()
	require.Equal(t, 200, first().status)
	assert.Equal(t, 200, send(t, s, waiter, "plain-2", "").status, "a dead waiter keeps nobody out")
	assert.EqualValues(t, 1000, s.Withdrawn(account))
}

func killedBeforeRelease(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{})
	first := sending(t, s, e, "stall-1", "")
	s.At(e, "worked 200")
	require.NoError(t, e.Kill())
	died := time.Now()
	assert.Equal(t, lambdatest.ErrorExit, first().ErrorType)
	assert.EqualValues(t, 500, s.Withdrawn(account))

	// The client asks again, with the same id; after its answer stands, this
	// process stalls too.
	again := start(s, lambdatest.Config{}, functest.Patient)
	retry := sending(t, s, again, "stall-1", "")
	s.At(again, "worked 200")
	assert.Less(t, time.Since(died), s.TTL+functest.Slack)
	assert.NotContains(t, strings.Join(again.Logs(), "\n"), "paying", "the retry sees the first outcome")
	assert.EqualValues(t, 500, s.Withdrawn(account), "the write is kept once")
	require.NoError(t, again.Kill())
	retry()
}

func panics(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{})
	a := send(t, s, e, "panic-1", "")
	assert.Equal(t, "string", a.ErrorType, "the panic is the function's own")
	assert.Equal(t, "no such card", a.ErrorMessage)
	assert.Contains(t, string(a.Payload), `(*Ledger).Withdraw"`, "with the stack of where it happened")
	assert.Equal(t, 200, send(t, s, start(s, lambdatest.Config{}), "plain-1", "").status, "the lock is free at once")
	assert.EqualValues(t, 500, s.Withdrawn(account))
}

func exits(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{})
	a := send(t, s, e, "exit-1", "")
	died := time.Now()
	assert.Equal(t, lambdatest.ErrorExit, a.ErrorType)
	assert.Contains(t, a.ErrorMessage, "exit status 3")
	takesOver(t, s, e, died, "plain-1")
	assert.EqualValues(t, 500, s.Withdrawn(account))
}

// killedWhileRenewing kills as the kernel kills a process that takes too much memory: by
// SIGKILL. By then the lease has been renewed.
func killedWhileRenewing(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{})
	first := sending(t, s, e, "hang-1", "")
	s.At(e, "granted")
	granted := time.Now()
	other := start(s, lambdatest.Config{})
	for time.Since(granted) < s.TTL+s.TTL/2 {
		require.Equal(t, 409, send(t, s, other, "plain-0", "").status, "it is renewed past its first end")
	}
	require.NoError(t, e.Kill())
	died := time.Now()
	assert.Equal(t, lambdatest.ErrorExit, first().ErrorType)
	takesOver(t, s, e, died, "plain-1")
	assert.EqualValues(t, 500, s.Withdrawn(account))
}

// frozen stops the process for longer than its lease, and lets it go on when
// another has withdrawn.
func frozen(id, worked string) func(*testing.T, *functest.Target) {
	return func(t *testing.T, s *functest.Target) {
		s.Open(account)
		e := start(s, lambdatest.Config{})
		first := sending(t, s, e, id, "")
		s.At(e, "paying")
		require.NoError(t, e.Freeze())
		takesOver(t, s, e, time.Now(), "plain-1")
		if strings.Contains(id, "stubborn") {
			s.OpenGate()
		}
		require.NoError(t, e.Thaw())

		a := first()
		assert.Equal(t, 500, a.status, "%s %s", a.body, a.ErrorMessage)
		assert.Contains(t, a.body, "The lock was lost while working.")
		s.At(e, worked)
		assert.EqualValues(t, 500, s.Withdrawn(account), "only the later holder's withdrawal is there")
		line, err := e.WaitLog(s.Context(), func(line string) bool { return strings.Contains(line, `"message":"lock"`) })
		require.NoError(t, err)
		assert.Contains(t, line, `"outcome":"lost"`)
	}
}

func eightOwners(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{MaxConcurrency: 8})
	first := sending(t, s, e, "wait-1", "")
	s.At(e, "paying")
	var others []func() answer
	for i := range 7 {
		others = append(others, sending(t, s, e, fmt.Sprint("plain-", i), ""))
	}
	for _, other := range others {
		assert.Equal(t, 409, other().status, "an invocation of the same process is another owner")
	}
	s.OpenGate()
	require.Equal(t, 200, first().status)

	waiting := start(s, lambdatest.Config{MaxConcurrency: 8}, functest.Patient)
	others = nil
	for i := range 8 {
		others = append(others, sending(t, s, waiting, fmt.Sprint("plain-", i), ""))
	}
	for _, other := range others {
		a := other()
		assert.Equal(t, 200, a.status, "%s %s", a.body, a.ErrorMessage)
	}
	assert.EqualValues(t, 4500, s.Withdrawn(account), "no update is lost among them")
	all := fences(s, waiting)
	require.Len(t, all, 8)
	for i := 1; i < len(all); i++ {
		assert.Greater(t, all[i], all[i-1])
	}
	assert.Equal(t, 1, waiting.Started(), "all of it in one process")
}

func timesOut(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{Timeout: 3 * time.Second}, "LOCK_WAIT=1s")
	a := send(t, s, e, "hang-1", "async-1")
	died := time.Now()
	require.Equal(t, lambdatest.ErrorTimeout, a.ErrorType)
	pid := e.PID()
	assert.Zero(t, pid)

	// Lambda tries an async invocation again with the same request id, in an
	// environment whose process is new.
	tries := 0
	require.Eventually(t, func() bool {
		tries++
		a = send(t, s, e, "plain-1", "async-1")
		return a.status == 200
	}, s.TTL+functest.Slack, time.Millisecond)
	assert.Less(t, time.Since(died), s.TTL+functest.Slack)
	assert.Equal(t, 2, e.Started())
	all := fences(s, e)
	require.Len(t, all, 2, "the dead try's lock is never taken for the retry's own")
	assert.Greater(t, all[1], all[0])
	assert.EqualValues(t, 500, s.Withdrawn(account))
	t.Logf("taken over %v after the timeout, in try %d", time.Since(died).Round(time.Millisecond), tries)

	again := send(t, s, e, "plain-2", "")
	assert.Equal(t, 200, again.status, "the environment goes on")
	assert.Equal(t, 2, e.Started())
}

func duplicateEvent(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{})
	first := sending(t, s, e, "wait-1", "the-same")
	s.At(e, "paying")
	assert.Equal(t, 409, send(t, s, start(s, lambdatest.Config{}), "wait-1", "the-same").status, "the same request id is no reason to share")

	waiting := start(s, lambdatest.Config{}, functest.Patient)
	queued := sending(t, s, waiting, "wait-1", "the-same")
	s.OpenGate()
	a, b := first(), queued()
	require.Equal(t, 200, a.status)
	require.Equal(t, 200, b.status)
	assert.Equal(t, a.body, b.body, "the duplicate gets the first outcome")
	assert.EqualValues(t, 500, s.Withdrawn(account))
	assert.Greater(t, fences(s, waiting)[0], fences(s, e)[0])
}

func noTimeLeft(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{})
	for _, left := range []time.Duration{300 * time.Millisecond, 0, -time.Hour} {
		r, err := e.Send(s.Context(), lambdatest.Event{Payload: payload(t, "plain-1"), Deadline: time.Now().Add(left)})
		require.NoError(t, err)
		assert.Contains(t, string(r.Payload), `"statusCode":503`, "%v left", left)
	}
	assert.Empty(t, fences(s, e), "the work was not begun")
	assert.Equal(t, 200, send(t, s, e, "plain-1", "").status, "and nothing is left locked")
}

func shutDownReturns(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{}, "LOCK_SIGTERM=true")
	first := sending(t, s, e, "wait-1", "")
	s.At(e, "paying")
	require.NoError(t, e.Shutdown())
	first()
	assert.Equal(t, 200, send(t, s, start(s, lambdatest.Config{}), "plain-1", "").status, "without waiting for the lease's end")
	assert.EqualValues(t, 500, s.Withdrawn(account))
}

func shutDownDoesNotReturn(t *testing.T, s *functest.Target) {
	s.Open(account)
	e, other := start(s, lambdatest.Config{}, "LOCK_SIGTERM=true"), start(s, lambdatest.Config{})
	first := sending(t, s, e, "hang-1", "")
	s.At(e, "paying")
	require.NoError(t, e.Shutdown())
	died := time.Now()
	first()
	assert.Equal(t, 409, send(t, s, other, "plain-0", "").status)
	takesOver(t, s, e, died, "plain-1")
}

func shutDownNotAsked(t *testing.T, s *functest.Target) {
	s.Open(account)
	e, other := start(s, lambdatest.Config{}), start(s, lambdatest.Config{})
	first := sending(t, s, e, "wait-1", "")
	s.At(e, "paying")
	require.NoError(t, e.Shutdown())
	first()
	assert.Equal(t, 409, send(t, s, other, "plain-0", "").status)
}

func credentialsExpire(t *testing.T, s *functest.Target) {
	s.Open(account)
	e := start(s, lambdatest.Config{})
	first := sending(t, s, e, "wait-1", "")
	s.At(e, "paying")
	s.Refuse(true)
	refused := time.Now()
	a := first()
	assert.Less(t, time.Since(refused), s.TTL+functest.Slack, "long before its deadline")
	assert.Equal(t, 500, a.status, "%s %s", a.body, a.ErrorMessage)
	assert.Contains(t, a.body, "The lock was lost while working.")
	s.Refuse(false)
	takesOver(t, s, e, refused, "plain-1")
	s.Refuse(true)
	assert.Equal(t, 503, send(t, s, e, "plain-2", "").status, "no lock, and not busy")
	s.Refuse(false)
	assert.EqualValues(t, 500, s.Withdrawn(account))
}
