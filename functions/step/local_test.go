package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
)

// local is where an interpreter that others wrote runs the machine: the function
// as it is deployed, with its locks and the accounts in a DynamoDB Local. Three
// things are not the interpreter's own: the two service integrations, which it
// does not have, come here; Pay takes no time; and only Acquire's retries wait as
// long as the definition says, with its jitter.
type local struct {
	t        *testing.T
	dynamodb string // endpoint
	function *lambdatest.Env

	mu       sync.Mutex
	cases    map[string]localCase
	attempts map[string]int // by case and state
}

// localCase is an execution with at most one fault.
type localCase struct {
	state  string
	fault  fault
	amount int
	free   func() // gives back the lock that somebody else has when the execution begins
}

// TestInAnInterpreter runs the machine in aws-local-stepfunctions, and compares
// the path that it takes with that of this package's own interpreter.
func TestInAnInterpreter(t *testing.T) {
	l := newLocal(t)
	l.cases["good"] = localCase{}
	l.cases["insufficient"] = localCase{amount: opening + 1}
	l.cases["busy"] = localCase{}
	for name, s := range readMachine(t).States {
		if s.Type != "Task" || name == abandonState {
			continue
		}
		l.cases[name+"-once"] = localCase{state: name, fault: fault{err: "Lambda.TooManyRequestsException"}}
		l.cases[name+"-lost-reply"] = localCase{state: name, fault: fault{err: "Sandbox.Timedout", applied: true}}
		l.cases[name+"-final"] = localCase{state: name, fault: fault{err: final[s.Resource][0]}}
		l.cases[name+"-aborted"] = localCase{state: name, fault: fault{stop: errAborted}}
		l.cases[name+"-aborted-late"] = localCase{state: name, fault: fault{stop: errAborted, applied: true}}
	}
	l.cases["Debit-hangs"] = localCase{state: "Debit", fault: fault{hangs: true, applied: true}}

	// An account and a lock of its own for each, and what the other interpreter
	// makes of it.
	ledger := l.open("accounts", "account")
	locks, err := dynamostore.Open(t.Context(), l.config("locks", "key"))
	require.NoError(t, err)
	executions := map[string]any{}
	want, kept := map[string]*world{}, map[string]bool{}
	for name, c := range l.cases {
		if c.amount == 0 {
			c.amount = amount
		}
		require.NoError(t, ledger.Create(t.Context(), name, opening))
		input := map[string]any{"key": accounts.Key(name), "amount": c.amount}
		executions[name] = map[string]any{"input": input, "context": executionContext(name, 0)}
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, readMachine(t))
			if c.state != "" {
				w.plan = map[string][]fault{c.state: {c.fault}}
			}
			w.start(w.run.StartAt, decode(fmt.Appendf(nil, `{"key": %q, "amount": %d}`, lockKey, c.amount)))
			if w.run.status == "ABORTED" {
				w.event(good())
			}
			status, err := w.store.Inspect(t.Context(), lockKey)
			require.NoError(t, err)
			want[name], kept[name] = w, status.Held
		})
	}
	lease, err := locks.Acquire(t.Context(), lockstore.Request{Key: accounts.Key("busy"), Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
	l.cases["busy"] = localCase{free: func() { assert.NoError(t, locks.Release(t.Context(), lease)) }}

	all := l.run(executions)
	assert.Equal(t, 2, l.attempts["/busy/"+acquireState], "a busy lock is asked for again")
	for name, got := range all {
		t.Run(name, func(t *testing.T) {
			w := want[name]
			assert.Equal(t, w.run.status, got.Status, "%+v", got)
			if w.run.failure != nil {
				assert.Equal(t, w.run.failure.Error, got.Error)
				assert.Equal(t, w.run.failure.Cause == "planned", got.Cause == "planned")
			}
			assert.Equal(t, w.states(), got.States)
			balance, err := ledger.Balance(t.Context(), name)
			require.NoError(t, err)
			assert.Equal(t, w.account["balance"], balance)

			if got.Status == "ABORTED" {
				l.event(t, name, executions[name].(map[string]any)["input"])
			}
			inspector, ok := lockstore.As[lockstore.Inspector](locks)
			require.True(t, ok)
			status, err := inspector.Inspect(t.Context(), accounts.Key(name))
			require.NoError(t, err)
			assert.Equal(t, kept[name], status.Held, "held by %v", status.Holder)
			if kept[name] {
				return
			}

			late := l.lambda([]byte(fmt.Sprintf(`{"action": "acquire", "key": %q, "execution": %q, "redrive": 0, "ttl": 60}`,
				accounts.Key(name), look(executionContext(name, 0), "$.Execution.Id"))))
			assert.Equal(t, "LockLost", late["error"], "a late acquire: %v", late)
			// The next holder of the account's lock finds an account as it wrote one.
			g, err := guard.New(locks, guard.Options{})
			require.NoError(t, err)
			require.NoError(t, g.Do(t.Context(), accounts.Key(name), func(ctx context.Context, lock guard.Lock) error {
				_, err := ledger.Withdraw(ctx, lock, accounts.Withdrawal{Account: name, ID: "w-1", Amount: 1})
				return err
			}))
		})
	}
}

// states are those that the execution was in.
func (w *world) states() []string {
	all := []string{w.run.StartAt}
	for _, e := range w.run.trail {
		all = append(all, e.to)
	}
	return all
}

func newLocal(t *testing.T) *local {
	l := &local{t: t, cases: map[string]localCase{}, attempts: map[string]int{}}
	testservers.StepFunctions(t, "") // skips where there is none
	l.dynamodb = testservers.DynamoDB(t)
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), "github.com/lambdalock/lambdalock/functions/step", binary))
	var err error
	l.function, err = lambdatest.Start(t.Context(), lambdatest.Config{
		Binary: binary, Timeout: 10 * time.Second, MaxConcurrency: 8,
		Env: []string{"LOCK_URL=" + l.url("locks"), "LOCK_TTL=60s"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.function.Close()) })
	return l
}

func (l *local) url(table string) string {
	return "dynamodb://" + table + "?region=us-east-1&endpoint=" + l.dynamodb
}

// config makes a table, and says where it is.
func (l *local) config(table, attribute string) lockstore.Config {
	l.t.Helper()
	status, text := l.call("CreateTable", fmt.Appendf(nil, `{"TableName": %q, "BillingMode": "PAY_PER_REQUEST",
		"AttributeDefinitions": [{"AttributeName": %q, "AttributeType": "S"}], "KeySchema": [{"AttributeName": %q, "KeyType": "HASH"}]}`,
		table, attribute, attribute))
	require.Equal(l.t, http.StatusOK, status, "%s", text)
	u, err := lockstore.ParseURL(l.url(table))
	require.NoError(l.t, err)
	return lockstore.Config{URL: u, Getenv: func(string) string { return "local" }}
}

func (l *local) open(table, attribute string) *accounts.Ledger {
	l.t.Helper()
	at := l.config(table, attribute)
	ledger, err := accounts.Open(at.URL, at.Getenv)
	require.NoError(l.t, err)
	return ledger
}

// call sends a request as the service integration does, in DynamoDB's own JSON.
func (l *local) call(action string, body []byte) (status int, answer []byte) {
	request, err := http.NewRequest(http.MethodPost, l.dynamodb, bytes.NewReader(body))
	if !assert.NoError(l.t, err) {
		return 0, nil
	}
	request.Header.Set("Content-Type", "application/x-amz-json-1.0")
	request.Header.Set("X-Amz-Target", "DynamoDB_20120810."+action)
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=local/20261121/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=none")
	response, err := http.DefaultClient.Do(request)
	if !assert.NoError(l.t, err) {
		return 0, nil
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	assert.NoError(l.t, err)
	return response.StatusCode, answer
}

// outcome is what the interpreter says of an execution.
type outcome struct {
	Status, Error, Cause string
	States               []string
}

func (l *local) run(executions map[string]any) (all map[string]outcome) {
	server := httptest.NewServer(http.HandlerFunc(l.task))
	defer server.Close()
	var definition map[string]any
	require.NoError(l.t, json.Unmarshal([]byte(substituted(string(readFile(l.t, "payout.asl.json")))), &definition))
	definition["States"].(map[string]any)["Debit"].(map[string]any)["TimeoutSeconds"] = 2 // one hangs that long
	in, err := json.Marshal(map[string]any{"definition": definition, "url": server.URL, "executions": executions})
	require.NoError(l.t, err)
	cmd := testservers.StepFunctions(l.t, filepath.Join("testdata", "run.cjs"))
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	out, err := cmd.Output()
	require.NoError(l.t, err, "%s", stderr.Bytes())
	require.NoError(l.t, json.Unmarshal(out, &all), "%s%s", out, stderr.Bytes())
	require.Len(l.t, all, len(executions))
	return all
}

// task does the task of /NAME/STATE.
func (l *local) task(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	parameters, err := io.ReadAll(r.Body)
	assert.NoError(l.t, err)
	l.mu.Lock()
	c, n := l.cases[parts[1]], l.attempts[r.URL.Path]
	l.attempts[r.URL.Path]++
	l.mu.Unlock()
	if c.free != nil && parts[2] == acquireState && n == 1 {
		c.free()
	}
	var f fault
	if c.state == parts[2] && n == 0 {
		f = c.fault
	}
	answer := map[string]any{"error": f.err, "cause": "planned"}
	if f.stop != nil {
		answer = map[string]any{"abort": true}
	}
	if f == (fault{}) || f.applied {
		if real := l.apply(parameters); f == (fault{}) {
			answer = real
		}
	}
	if f.hangs {
		<-r.Context().Done()
		return
	}
	assert.NoError(l.t, json.NewEncoder(w).Encode(answer))
}

func (l *local) apply(parameters []byte) map[string]any {
	var p struct {
		FunctionName string
		Payload      json.RawMessage
	}
	assert.NoError(l.t, json.Unmarshal(parameters, &p))
	if p.FunctionName != "" {
		return l.lambda(p.Payload)
	}
	status, text := l.call("UpdateItem", parameters)
	if status == http.StatusOK {
		return map[string]any{"result": json.RawMessage(text)}
	}
	var refused struct {
		Type    string `json:"__type"`
		Message string
	}
	assert.NoError(l.t, json.Unmarshal(text, &refused))
	_, name, _ := strings.Cut(refused.Type, "#")
	return map[string]any{"error": "DynamoDB." + name, "cause": refused.Message}
}

func (l *local) lambda(payload []byte) map[string]any {
	r, err := l.function.Invoke(context.Background(), payload)
	assert.NoError(l.t, err)
	if r.ErrorType != "" {
		return map[string]any{"error": r.ErrorType, "cause": string(r.Payload)}
	}
	return map[string]any{"result": map[string]any{"StatusCode": 200, "Payload": json.RawMessage(r.Payload)}}
}

// event is what EventBridge sends when the execution was aborted.
func (l *local) event(t *testing.T, name string, input any) {
	t.Helper()
	text, err := json.Marshal(input)
	require.NoError(t, err)
	event := fmt.Sprintf(`{"source": "aws.states", "detail-type": "Step Functions Execution Status Change",
		"detail": {"executionArn": %q, "status": "ABORTED", "redriveCount": 0, "input": %s}}`,
		look(executionContext(name, 0), "$.Execution.Id"), strconv.Quote(string(text)))
	answer := l.lambda([]byte(event))
	require.NotContains(t, answer, "error")
}
