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
	"strings"
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

// local is services for an interpreter that others wrote: the function as it is
// deployed, with its locks and the accounts in a DynamoDB Local. Three things are not
// the interpreter's own: the two service integrations, which it does not have, come
// here; Pay takes no time; and only Acquire's retries wait as long as the definition
// says, with its jitter.
type local struct {
	t        *testing.T
	dynamodb string // endpoint
	function *lambdatest.Environment
}

// localCase is an execution with at most one fault, by the name of its account.
type localCase struct {
	state    string
	fault    fault
	amount   int
	here     *world
	expected *memory
	end      lockstore.State // of the lock, after the execution's end
}

// TestInAnInterpreter runs the machine in aws-local-stepfunctions, and compares the
// path that it takes with that of this package's own interpreter.
func TestInAnInterpreter(t *testing.T) {
	testservers.StepFunctions(t, "") // skips where there is none
	l := &local{t: t, dynamodb: testservers.DynamoDB(t)}
	getenv := func(string) string { return "local" }
	lockURL := testservers.Table(t, l.dynamodb, "locks", "key")
	locks, err := lockstore.Open(t.Context(), lockURL, getenv, dynamostore.Opener)
	require.NoError(t, err)
	accountsURL, err := lockstore.ParseURL(testservers.Table(t, l.dynamodb, "accounts", "account"))
	require.NoError(t, err)
	ledger, err := accounts.Open(accountsURL, getenv)
	require.NoError(t, err)
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), "github.com/lambdalock/lambdalock/functions/sfnlock", binary))
	l.function, err = lambdatest.Start(t.Context(), lambdatest.Config{
		Binary: binary, Timeout: 10 * time.Second, MaxConcurrency: 8, Env: []string{"LOCK_URL=" + lockURL, "LOCK_TTL=60s"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.function.Close()) })

	cases := map[string]*localCase{
		"good": {}, "insufficient": {amount: opening + 1}, "busy": {},
		"Debit-hangs": {state: "Debit", fault: fault{hangs: true, applied: true}},
	}
	for name, s := range readMachine(t).States {
		if s.Type != "Task" || name == abandonState {
			continue
		}
		cases[name+"-once"] = &localCase{state: name, fault: fault{err: "Lambda.TooManyRequestsException"}}
		cases[name+"-lost-reply"] = &localCase{state: name, fault: fault{err: "Sandbox.Timedout", applied: true}}
		cases[name+"-final"] = &localCase{state: name, fault: fault{err: final[s.Resource][0]}}
		cases[name+"-aborted"] = &localCase{state: name, fault: fault{stop: errAborted}}
		cases[name+"-aborted-late"] = &localCase{state: name, fault: fault{stop: errAborted, applied: true}}
	}
	// An account and a lock of its own for each, and what the other interpreter
	// makes of it.
	executions := map[string]any{}
	for name, c := range cases {
		if c.amount == 0 {
			c.amount = amount
		}
		require.NoError(t, ledger.Create(t.Context(), name, opening))
		c.here = newWorld(t, l, readMachine(t), name, name)
		executions[name] = map[string]any{"input": input(accounts.Key(name), c.amount), "context": c.here.run.context}
		synctest.Test(t, func(t *testing.T) {
			c.expected = newMemory(t, readMachine(t))
			if c.state != "" {
				c.expected.plan = map[string][]fault{c.state: {c.fault}}
				c.here.plan = c.expected.plan
			}
			c.expected.start(c.expected.run.StartAt, input(key, c.amount))
			if c.expected.run.status == "ABORTED" {
				c.expected.event(good())
			}
			status, err := c.expected.store.Inspect(t.Context(), key)
			require.NoError(t, err)
			c.end = status.State
		})
	}
	lease, err := locks.Acquire(t.Context(), lockstore.Request{Key: accounts.Key("busy"), Owner: lockstore.NewOwner(), TTL: time.Minute})
	require.NoError(t, err)
	all := l.run(executions, func(ctx context.Context, name, state string, parameters map[string]any) map[string]any {
		w := cases[name].here
		if name == "busy" && state == acquireState && w.attempts[acquireState] == 1 {
			assert.NoError(t, locks.Release(ctx, lease))
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(w.ctx, cancel)()
		result, failed := w.task(ctx, state, parameters)
		switch {
		case w.ctx.Err() != nil:
			return map[string]any{"abort": true}
		case failed != nil:
			return map[string]any{"error": failed.Error, "cause": failed.Cause}
		}
		return map[string]any{"result": result}
	})
	assert.Equal(t, 2, cases["busy"].here.attempts[acquireState], "a busy lock is asked for again")
	for name, got := range all {
		t.Run(name, func(t *testing.T) {
			c, want := cases[name], cases[name].expected.run
			assert.Equal(t, want.status, got.Status, "%+v", got)
			if want.failure != nil {
				assert.Equal(t, want.failure.Error, got.Error)
				assert.Equal(t, want.failure.Cause == "planned", got.Cause == "planned")
			}
			states := []string{want.StartAt}
			for _, e := range want.trail {
				states = append(states, e.to)
			}
			assert.Equal(t, states, got.States)
			balance, err := ledger.Balance(t.Context(), name)
			require.NoError(t, err)
			assert.Equal(t, c.expected.row["balance"], balance)

			if got.Status == "ABORTED" {
				_, failed := l.invoke(event(t, caller{name: name}.arn(), "ABORTED", 0, input(accounts.Key(name), c.amount)))
				require.Nil(t, failed)
			}
			status, err := locks.Inspect(t.Context(), accounts.Key(name))
			require.NoError(t, err)
			assert.Equal(t, c.end, status.State, "held by %v", status.Holder)
			if c.end == lockstore.Held {
				return
			}
			_, late := l.invoke(fmt.Appendf(nil, `{"action": "acquire", "key": %q, "execution": %q, "redrive": 0, "ttl": 60}`, accounts.Key(name), caller{name: name}.arn()))
			if assert.NotNil(t, late, "a late acquire") {
				assert.Equal(t, "LockLost", late.Error)
			}
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

// outcome is what the interpreter says of an execution.
type outcome struct {
	Status, Error, Cause string
	States               []string
}

// run runs the executions. task does the task of a state.
func (l *local) run(executions map[string]any, task func(ctx context.Context, name, state string, parameters map[string]any) map[string]any) (all map[string]outcome) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(l.t, err)
		parts := strings.Split(r.URL.Path, "/") // /NAME/STATE
		assert.NoError(l.t, json.NewEncoder(w).Encode(task(r.Context(), parts[1], parts[2], decode(body).(map[string]any))))
	}))
	defer server.Close()
	definition := decode([]byte(substituted(string(readFile(l.t, "payout.asl.json")))))
	look(definition, "$.States.Debit").(map[string]any)["TimeoutSeconds"] = 2 // one hangs that long
	in, err := json.Marshal(map[string]any{"definition": definition, "url": server.URL, "executions": executions})
	require.NoError(l.t, err)
	cmd := testservers.StepFunctions(l.t, filepath.Join("interpreter", "run.cjs"))
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	out, err := cmd.Output()
	require.NoError(l.t, err, "%s", stderr.Bytes())
	require.NoError(l.t, json.Unmarshal(out, &all), "%s%s", out, stderr.Bytes())
	require.Len(l.t, all, len(executions))
	return all
}

// invoke calls the function.
func (l *local) invoke(payload []byte) (any, *failure) {
	r, err := l.function.Invoke(context.Background(), payload)
	assert.NoError(l.t, err)
	if r.ErrorType != "" {
		return nil, &failure{r.ErrorType, string(r.Payload)}
	}
	return decode(r.Payload), nil
}

// update sends a request as the service integration does, in DynamoDB's own JSON.
func (l *local) update(parameters map[string]any) (any, *failure) {
	body, err := json.Marshal(parameters)
	assert.NoError(l.t, err)
	request, err := http.NewRequest(http.MethodPost, l.dynamodb, bytes.NewReader(body))
	if !assert.NoError(l.t, err) {
		return nil, &failure{}
	}
	request.Header.Set("Content-Type", "application/x-amz-json-1.0")
	request.Header.Set("X-Amz-Target", "DynamoDB_20120810.UpdateItem")
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=local/20261121/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=none")
	response, err := http.DefaultClient.Do(request)
	if !assert.NoError(l.t, err) {
		return nil, &failure{}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	assert.NoError(l.t, err)
	answer := decode(text)
	if response.StatusCode == http.StatusOK {
		return answer, nil
	}
	_, name, _ := strings.Cut(fmt.Sprint(look(answer, "$.__type")), "#")
	return nil, &failure{"DynamoDB." + name, fmt.Sprint(look(answer, "$.Message"))}
}
