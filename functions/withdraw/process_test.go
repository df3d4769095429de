package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/httpapi"
	"github.com/lambdalock/lambdalock/internal/lambdatest"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// The tests in this file run the function in real processes, which are killed,
// stopped and timed out. The process is this test binary, started again with
// gateVariable set: it is main with a payment that does what the withdrawal's
// id says, so that a test knows where in its work the process is.
const gateVariable = "WITHDRAW_TEST_GATE"

func TestMain(m *testing.M) {
	if gate := os.Getenv(gateVariable); gate != "" {
		function(gate)
		return
	}
	os.Exit(m.Run())
}

// function is main. What the id begins with says what happens:
//
//	wait      the payment waits for the gate or for the end of its context
//	stubborn  the payment waits for the gate, and nothing looks at the context
//	hang      the payment never returns
//	exit      the payment ends the process
//	panic     the payment panics
//	stall     everything is done, but the handler does not return
func function(gate string) {
	g := boot.Guard(lockstore.Openers{"dynamodb": dynamostore.Open, "redis": redisstore.Open})
	book := boot.Must(accounts.Open(boot.Config("ACCOUNTS_URL")))
	book.Pay = func(ctx context.Context, w accounts.Withdrawal) error {
		kind, _, _ := strings.Cut(w.ID, "-")
		fmt.Println("paying", w.ID)
		switch kind {
		case "wait", "stubborn":
			return wait(ctx, gate)
		case "hang":
			select {}
		case "exit":
			os.Exit(3)
		case "panic":
			panic("no such card")
		}
		return nil
	}
	asked := func(ctx context.Context, r httpapi.Request) (string, error) {
		fmt.Println("asked")
		return key(ctx, r)
	}
	next := handle(book)
	boot.Start(g, httpapi.Wrap(g, asked, func(ctx context.Context, lock guard.Lock, r httpapi.Request) (httpapi.Response, error) {
		w, err := key(ctx, r)
		fmt.Println("granted", w, int64(lock.Fence), err)
		if strings.Contains(r.Body, `"stubborn-`) {
			ctx = context.WithoutCancel(ctx)
		}
		response, err := next(ctx, lock, r)
		fmt.Println("worked", response.StatusCode, err)
		if strings.Contains(r.Body, `"stall-`) {
			select {}
		}
		return response, err
	}))
}

func wait(ctx context.Context, gate string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if _, err := os.Stat(gate); err == nil {
				return nil
			}
		}
	}
}

// site is one server with an account, and the environments that use it.
type site struct {
	t    *testing.T
	ctx  context.Context
	env  []string
	gate string
	book *accounts.Book

	account string
	late    time.Duration // how long after a lease's TTL a takeover may come
}

const (
	opening = 100_000
	ttl     = 2 * time.Second
	// slack is for a machine that is busy with something else: a poll of the
	// waiter (up to 1 s) and the processes themselves.
	slack = 3 * time.Second
)

// TestProcesses runs all cases on both kinds of stores, each with an account of
// its own.
func TestProcesses(t *testing.T) {
	for name, store := range map[string]struct {
		open func(*testing.T) string
		late time.Duration
	}{
		"redis": {open: func(t *testing.T) string { return "redis://" + miniredis.RunT(t).Addr() }},
		// Two skews of a second, and the service's whole seconds.
		"dynamodb": {open: dynamo, late: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			lockURL := store.open(t)
			accountsURL := strings.Replace(lockURL, "//locks", "//accounts", 1)
			u, err := url.Parse(accountsURL)
			require.NoError(t, err)
			book, err := accounts.Open(lockstore.Config{URL: u, Getenv: func(string) string { return "local" }})
			require.NoError(t, err)
			for i, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					t.Cleanup(cancel)
					s := &site{t: t, ctx: ctx, book: book, account: fmt.Sprint("acc-", i), late: store.late, gate: filepath.Join(t.TempDir(), "gate")}
					s.env = []string{"LOCK_URL=" + lockURL, "ACCOUNTS_URL=" + accountsURL, "LOCK_TTL=" + ttl.String(), gateVariable + "=" + s.gate}
					require.NoError(t, book.Create(ctx, s.account, opening))
					c.run(t, s)
				})
			}
		})
	}
}

// dynamo starts a DynamoDB Local with the two tables.
func dynamo(t *testing.T) string {
	endpoint := testservers.DynamoDB(t)
	client := dynamodb.New(dynamodb.Options{
		BaseEndpoint: &endpoint, Region: "us-east-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
		}),
	})
	for table, attribute := range map[string]string{"locks": "key", "accounts": "account"} {
		_, err := client.CreateTable(t.Context(), &dynamodb.CreateTableInput{
			TableName:            &table,
			BillingMode:          types.BillingModePayPerRequest,
			AttributeDefinitions: []types.AttributeDefinition{{AttributeName: &attribute, AttributeType: types.ScalarAttributeTypeS}},
			KeySchema:            []types.KeySchemaElement{{AttributeName: &attribute, KeyType: types.KeyTypeHash}},
		})
		require.NoError(t, err)
	}
	return "dynamodb://locks?region=us-east-1&endpoint=" + endpoint
}

// start starts an environment of the function.
func (s *site) start(config lambdatest.Config, env ...string) *lambdatest.Env {
	s.t.Helper()
	binary, err := os.Executable()
	require.NoError(s.t, err)
	config.Binary, config.Name = binary, "withdraw"
	config.Env = append(append([]string{}, s.env...), env...)
	if config.Timeout == 0 {
		config.Timeout = 30 * time.Second
	}
	e, err := lambdatest.Start(s.ctx, config)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { assert.NoError(s.t, e.Close()) })
	return e
}

// patient waits for the lock longer than any test lets another have it.
const patient = "LOCK_WAIT=15s"

// payload is events/withdraw.json with another id.
func (s *site) payload(id string) []byte {
	s.t.Helper()
	text, err := os.ReadFile("../../events/withdraw.json")
	require.NoError(s.t, err)
	var request httpapi.Request
	require.NoError(s.t, json.Unmarshal(text, &request))
	request.PathParameters["id"] = s.account
	request.Body = fmt.Sprintf(`{"id": %q, "amount": 500}`, id)
	text, err = json.Marshal(request)
	require.NoError(s.t, err)
	return text
}

// answer is what the client got. Status 0 is an error of the function.
type answer struct {
	lambdatest.Result
	status int
	body   string
}

// send runs one withdrawal.
func (s *site) send(e *lambdatest.Env, id, requestID string) answer {
	s.t.Helper()
	r, err := e.Send(s.ctx, lambdatest.Event{Payload: s.payload(id), ID: requestID})
	if !assert.NoError(s.t, err) {
		return answer{}
	}
	a := answer{Result: r}
	if r.ErrorType == "" {
		var response httpapi.Response
		assert.NoError(s.t, json.Unmarshal(r.Payload, &response))
		a.status, a.body = response.StatusCode, response.Body
	}
	return a
}

// sending is send in the background; the func it returns waits for the answer.
func (s *site) sending(e *lambdatest.Env, id, requestID string) func() answer {
	var a answer
	var done sync.WaitGroup
	done.Go(func() { a = s.send(e, id, requestID) })
	return func() answer { done.Wait(); return a }
}

// at waits until the process writes a line that begins so, and returns the line.
func (s *site) at(e *lambdatest.Env, begin string) string {
	s.t.Helper()
	line, err := e.WaitLog(s.ctx, func(line string) bool { return strings.HasPrefix(line, begin) })
	require.NoError(s.t, err, "waiting for %q in %q", begin, e.Logs())
	return line
}

// fences are those of all grants in the environment, oldest first.
func (s *site) fences(e *lambdatest.Env) []int64 {
	s.t.Helper()
	var all []int64
	for _, line := range e.Logs() {
		if rest, ok := strings.CutPrefix(line, "granted account/"+s.account+" "); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			require.NoError(s.t, err)
			all = append(all, n)
		}
	}
	return all
}

func (s *site) balance() int64 {
	s.t.Helper()
	b, err := s.book.Balance(s.ctx, s.account)
	require.NoError(s.t, err)
	return b
}

func (s *site) openGate() {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.gate, nil, 0o600))
}

// takesOver checks that a withdrawal in another environment gets the lock of a
// process that died at the given time, in time and with a larger fence.
func (s *site) takesOver(dead *lambdatest.Env, died time.Time, id string) answer {
	s.t.Helper()
	next := s.start(lambdatest.Config{}, patient)
	a := s.send(next, id, "")
	assert.Less(s.t, time.Since(died), ttl+s.late+slack)
	require.Equal(s.t, 200, a.status, "%s %s", a.body, a.ErrorMessage)
	before, after := s.fences(dead), s.fences(next)
	require.NotEmpty(s.t, before)
	require.Len(s.t, after, 1)
	assert.Greater(s.t, after[0], before[len(before)-1])
	s.t.Logf("taken over %v after the end, TTL %v", time.Since(died).Round(time.Millisecond), ttl)
	return a
}

var cases = []struct {
	name string
	run  func(*testing.T, *site)
}{
	{"F01 killed right after acquire", testF01},
	{"F02 killed while waiting", testF02},
	{"F03 killed between write and release", testF03},
	{"F04 panic in the handler", testF04},
	{"F05 exit in the handler", testF05},
	{"F07 stopped for longer than the lease: a work that looks at its context ends", testF07("wait-1", "worked 0 account")},
	{"F07 F12 stopped for longer than the lease: the fence refuses a work that does not", testF07("stubborn-1", "worked 409 <nil>")},
	{"F13 F70 eight owners in one process", testF70},
	{"F63 F68 timeout while holding", testF63},
	{"F64 duplicate event while the first runs", testF64},
	{"F65 F66 no time left", testF65},
	{"F69 SIGTERM: work that returns is released", testF69Returns},
	{"F69 SIGTERM: work that does not return keeps its lease", testF69DoesNotReturn},
	{"F69 not asked for: the lease ends by its TTL", testF69NotAsked},
}

func testF01(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{})
	first := s.sending(e, "hang-1", "")
	s.at(e, "granted")
	require.NoError(t, e.Kill())
	died := time.Now()
	assert.Equal(t, lambdatest.ErrorExit, first().ErrorType)

	assert.Equal(t, 409, s.send(s.start(lambdatest.Config{}), "plain-0", "").status, "until its lease ends, others see it held")
	s.takesOver(e, died, "plain-1")
	assert.EqualValues(t, opening-500, s.balance())
}

func testF02(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{})
	first := s.sending(e, "wait-1", "")
	s.at(e, "paying")
	waiter := s.start(lambdatest.Config{}, patient)
	waiting := s.sending(waiter, "plain-1", "")
	s.at(waiter, "asked")
	require.NoError(t, waiter.Kill())
	assert.Equal(t, lambdatest.ErrorExit, waiting().ErrorType)
	s.openGate()
	require.Equal(t, 200, first().status)
	assert.Equal(t, 200, s.send(waiter, "plain-2", "").status, "a dead waiter keeps nobody out")
	assert.EqualValues(t, opening-2*500, s.balance())
}

func testF03(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{})
	first := s.sending(e, "stall-1", "")
	s.at(e, "worked 200")
	require.NoError(t, e.Kill())
	died := time.Now()
	assert.Equal(t, lambdatest.ErrorExit, first().ErrorType)
	assert.EqualValues(t, opening-500, s.balance())

	// The client asks again, with the same id; after its answer stands, this
	// process stalls too.
	again := s.start(lambdatest.Config{}, patient)
	retry := s.sending(again, "stall-1", "")
	s.at(again, "worked 200")
	assert.Less(t, time.Since(died), ttl+s.late+slack)
	assert.NotContains(t, strings.Join(again.Logs(), "\n"), "paying", "the retry sees the first outcome")
	assert.EqualValues(t, opening-500, s.balance(), "the write is kept once")
	require.NoError(t, again.Kill())
	retry()
}

func testF04(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{})
	a := s.send(e, "panic-1", "")
	assert.Equal(t, "string", a.ErrorType, "the panic is the function's own")
	assert.Equal(t, "no such card", a.ErrorMessage)
	assert.Contains(t, string(a.Payload), "process_test.go", "with the stack of where it happened")
	assert.Equal(t, 200, s.send(s.start(lambdatest.Config{}), "plain-1", "").status, "the lock is free at once")
	assert.EqualValues(t, opening-500, s.balance())
}

func testF05(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{})
	a := s.send(e, "exit-1", "")
	died := time.Now()
	assert.Equal(t, lambdatest.ErrorExit, a.ErrorType)
	assert.Contains(t, a.ErrorMessage, "exit status 3")
	s.takesOver(e, died, "plain-1")
	assert.EqualValues(t, opening-500, s.balance())
}

// testF07 stops the process for longer than its lease, and lets it go on when
// another has withdrawn.
func testF07(id, worked string) func(*testing.T, *site) {
	return func(t *testing.T, s *site) {
		e := s.start(lambdatest.Config{})
		first := s.sending(e, id, "")
		s.at(e, "paying")
		require.NoError(t, e.Stop())
		s.takesOver(e, time.Now(), "plain-1")
		if strings.HasPrefix(id, "stubborn") {
			s.openGate()
		}
		require.NoError(t, e.Cont())

		a := first()
		assert.Equal(t, 500, a.status, "%s %s", a.body, a.ErrorMessage)
		assert.Contains(t, a.body, "The lock was lost while working.")
		s.at(e, worked)
		assert.EqualValues(t, opening-500, s.balance(), "only the later holder's withdrawal is there")
		line, err := e.WaitLog(s.ctx, func(line string) bool { return strings.Contains(line, `"message":"lock"`) })
		require.NoError(t, err)
		assert.Contains(t, line, `"outcome":"lost"`)
	}
}

func testF70(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{MaxConcurrency: 8})
	first := s.sending(e, "wait-1", "")
	s.at(e, "paying")
	var others []func() answer
	for i := range 7 {
		others = append(others, s.sending(e, fmt.Sprint("plain-", i), ""))
	}
	for _, other := range others {
		assert.Equal(t, 409, other().status, "an invocation of the same process is another owner")
	}
	s.openGate()
	require.Equal(t, 200, first().status)

	waiting := s.start(lambdatest.Config{MaxConcurrency: 8}, patient)
	others = nil
	for i := range 8 {
		others = append(others, s.sending(waiting, fmt.Sprint("plain-", i), ""))
	}
	for _, other := range others {
		a := other()
		assert.Equal(t, 200, a.status, "%s %s", a.body, a.ErrorMessage)
	}
	assert.EqualValues(t, opening-9*500, s.balance(), "no update is lost among them")
	fences := s.fences(waiting)
	require.Len(t, fences, 8)
	for i := 1; i < len(fences); i++ {
		assert.Greater(t, fences[i], fences[i-1])
	}
	assert.Equal(t, 1, waiting.Started(), "all of it in one process")
}

func testF63(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{Timeout: 3 * time.Second}, "LOCK_WAIT=1s")
	a := s.send(e, "hang-1", "async-1")
	died := time.Now()
	require.Equal(t, lambdatest.ErrorTimeout, a.ErrorType)
	pid := e.PID()
	assert.Zero(t, pid)

	// Lambda tries an async invocation again with the same request id, in an
	// environment whose process is new.
	tries := 0
	require.Eventually(t, func() bool {
		tries++
		a = s.send(e, "plain-1", "async-1")
		return a.status == 200
	}, ttl+s.late+slack, time.Millisecond)
	assert.Less(t, time.Since(died), ttl+s.late+slack)
	assert.Equal(t, 2, e.Started())
	fences := s.fences(e)
	require.Len(t, fences, 2, "the dead try's lock is never taken for the retry's own")
	assert.Greater(t, fences[1], fences[0])
	assert.EqualValues(t, opening-500, s.balance())
	t.Logf("taken over %v after the timeout, in try %d", time.Since(died).Round(time.Millisecond), tries)

	again := s.send(e, "plain-2", "")
	assert.Equal(t, 200, again.status, "the environment goes on")
	assert.Equal(t, 2, e.Started())
}

func testF64(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{})
	first := s.sending(e, "wait-1", "the-same")
	s.at(e, "paying")
	assert.Equal(t, 409, s.send(s.start(lambdatest.Config{}), "wait-1", "the-same").status, "the same request id is no reason to share")

	waiting := s.start(lambdatest.Config{}, patient)
	queued := s.sending(waiting, "wait-1", "the-same")
	s.openGate()
	a, b := first(), queued()
	require.Equal(t, 200, a.status)
	require.Equal(t, 200, b.status)
	assert.Equal(t, a.body, b.body, "the duplicate gets the first outcome")
	assert.EqualValues(t, opening-500, s.balance())
	assert.Greater(t, s.fences(waiting)[0], s.fences(e)[0])
}

func testF65(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{})
	for _, left := range []time.Duration{300 * time.Millisecond, 0, -time.Hour} {
		r, err := e.Send(s.ctx, lambdatest.Event{Payload: s.payload("plain-1"), Deadline: time.Now().Add(left)})
		require.NoError(t, err)
		assert.Contains(t, string(r.Payload), `"statusCode":503`, "%v left", left)
	}
	assert.Empty(t, s.fences(e), "the work was not begun")
	assert.Equal(t, 200, s.send(e, "plain-1", "").status, "and nothing is left locked")
}

func testF69Returns(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{}, "LOCK_SIGTERM=true")
	first := s.sending(e, "wait-1", "")
	s.at(e, "paying")
	require.NoError(t, e.Shutdown())
	first()
	assert.Equal(t, 200, s.send(s.start(lambdatest.Config{}), "plain-1", "").status, "without waiting for the lease's end")
	assert.EqualValues(t, opening-500, s.balance())
}

func testF69DoesNotReturn(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{}, "LOCK_SIGTERM=true")
	first := s.sending(e, "hang-1", "")
	s.at(e, "paying")
	require.NoError(t, e.Shutdown())
	died := time.Now()
	first()
	assert.Equal(t, 409, s.send(s.start(lambdatest.Config{}), "plain-0", "").status)
	s.takesOver(e, died, "plain-1")
}

func testF69NotAsked(t *testing.T, s *site) {
	e := s.start(lambdatest.Config{})
	first := s.sending(e, "wait-1", "")
	s.at(e, "paying")
	require.NoError(t, e.Shutdown())
	first()
	assert.Equal(t, 409, s.send(s.start(lambdatest.Config{}), "plain-0", "").status)
}
