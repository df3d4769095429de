package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/internal/testservers"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore"
)

const (
	opening = 1000
	amount  = 300
)

// fault is what happens to an attempt of a task.
type fault struct {
	err     string // the task fails with this error; "" if it does not
	hangs   bool   // it does not answer until its time is over
	aborts  bool   // the execution is stopped when the call has arrived
	applied bool   // what it asks for is done all the same
}

// failure is how a task fails.
type failure struct{ Error, Cause string }

// payout is an execution of the machine.
type payout struct {
	name    string // and its account
	input   map[string]any
	faults  map[string]fault // by state
	always  bool             // in each attempt, and not in the first one only
	before  func(state string, attempt int)
	frees   func()           // another execution releases the lock, when this one waits; nil: the lock is free
	deaf    int              // how many wake-ups are lost
	unwoken bool             // each wake-up fails, and whoever sends it is told so
	pauses  map[string][]int // see run.cjs
	want    string           // SUCCEEDED, ABORTED, or the error of one that has failed
	others  int64            // what others have withdrawn meanwhile
	held    bool             // the release has failed for good, and the lease ends by its time

	mu       sync.Mutex
	attempts map[string]int
	fence    any  // of its lock
	debited  bool // the payout was made
}

func arn(name string) string { return caller{name: name}.arn() }

// TestPayout runs the machine in an interpreter that others wrote, with the function as it is
// deployed, and locks and accounts in a DynamoDB Local. Not the interpreter's own are the three
// service integrations, which it does not have, and that Pay takes no time and a heartbeat a second. Only
// the retries of one wait that finds no place take as long as the definition says, with its jitter.
//
// Each task fails in each way, once and for good, and is stopped. Whatever happens, the payout is made once or
// not at all, the lock is free afterwards, and a late request of the execution takes no lock. The executions take
// each transition that the machine has.
func TestPayout(t *testing.T) {
	testservers.StepFunctions(t, "") // skips where there is none
	l := openLocal(t)
	all := map[string]*payout{}
	add := func(name, want string, change func(*payout)) {
		e := &payout{name: name, want: want, input: map[string]any{"key": accounts.Key(name), "amount": amount}, attempts: map[string]int{}}
		if change != nil {
			change(e)
		}
		all[name] = e
		l.accounts.Put(t, name, opening)
	}
	add("good", "SUCCEEDED", nil)
	add("insufficient", "Insufficient", func(e *payout) { e.input["amount"] = opening + 1 })
	for name, change := range map[string]func(map[string]any){
		"nothing": func(in map[string]any) { in["amount"] = 0 }, "a-part": func(in map[string]any) { in["amount"] = 1.5 }, "a-text": func(in map[string]any) { in["amount"] = "300" },
		"key-of-three": func(in map[string]any) { in["key"] = "account/7/8" }, "another-key": func(in map[string]any) { in["key"] = "accounts/7" },
	} {
		add(name, "BadInput", func(e *payout) { change(e.input) })
	}
	waits := func(e *payout) { e.frees = l.blocked(e.name) }
	add("busy", "SUCCEEDED", waits)
	add("wake-up-lost", "SUCCEEDED", func(e *payout) {
		waits(e)
		e.deaf = 1
	})
	add("not-woken", "SUCCEEDED", func(e *payout) {
		waits(e)
		e.unwoken = true
	})
	add("no-place", "SUCCEEDED", func(e *payout) {
		waits(e)
		e.faults, e.pauses = map[string]fault{waitState: {err: "LockBusy"}}, map[string][]int{waitState: {20, 20, -1, 20}}
	})
	for state, s := range readMachine(t).States {
		final := final[s.Resource]
		if s.Type != "Task" {
			continue
		}
		with := func(what, want string, f fault, always bool) {
			add(state+"-"+what, want, func(e *payout) {
				e.faults, e.always = map[string]fault{state: f}, always
				e.held = state == releaseState && want == "SUCCEEDED" && (always || slices.Contains(final, f.err))
				if state == waitState {
					waits(e)
				}
				if state == abandonState { // it runs after another failure, which is the one to be seen
					e.faults["Claim"] = fault{err: "DynamoDB.ConditionalCheckFailedException"}
				}
			})
		}
		if state != acquireState && state != waitState && state != abandonState {
			// The lock gets lost, and others have been at the account. What comes after that is refused.
			add(state+"-lost", final[len(final)-1], func(e *payout) {
				e.others = 1
				e.before = func(at string, _ int) {
					if at != state {
						return
					}
					status, err := l.locks.Inspect(t.Context(), accounts.Key(e.name))
					assert.NoError(t, err)
					_, err = l.locks.Revoke(t.Context(), lockstore.RevokeRequest{Key: accounts.Key(e.name), Fence: status.Fence, OpenAtOnce: true})
					assert.NoError(t, err)
					assert.NoError(t, l.withdraw(t.Context(), e.name, "w-0"))
				}
			})
		}
		const throttled, lostReply, stays = "Lambda.TooManyRequestsException", "Sandbox.Timedout", "DynamoDB.InternalServerError"
		succeeds, fails := "SUCCEEDED", func(err string) string { return err }
		switch state {
		case abandonState:
			succeeds = "DynamoDB.ConditionalCheckFailedException"
			fails = func(string) string { return succeeds }
		case releaseState:
			fails = func(err string) string {
				if err == "LockLost" { // the work may stand beside another's
					return err
				}
				return succeeds
			}
		}
		with("once", succeeds, fault{err: throttled}, false)
		with("lost-reply", succeeds, fault{err: lostReply, applied: true}, false)
		with("always", fails(stays), fault{err: stays}, true)
		if state != abandonState {
			for _, err := range final {
				with(strings.TrimPrefix(err, "DynamoDB."), fails(err), fault{err: err}, false)
			}
		}
		with("aborted", "ABORTED", fault{aborts: true}, false)
		with("aborted-late", "ABORTED", fault{aborts: true, applied: true}, false)
		if state == "Debit" {
			with("hangs", succeeds, fault{hangs: true, applied: true}, false)
		}
	}

	taken := map[[2]string]bool{}
	for name, got := range l.run(all) {
		t.Run(name, func(t *testing.T) {
			e := all[name]
			if e.frees != nil {
				e.frees()
			}
			for i := range len(got.States) - 1 {
				taken[[2]string{got.States[i], got.States[i+1]}] = true
			}
			if e.want == "SUCCEEDED" || e.want == "ABORTED" {
				assert.Equal(t, e.want, got.Status, "%+v", got)
			} else {
				assert.Equal(t, "FAILED", got.Status)
				assert.Equal(t, e.want, got.Error)
				assert.NotEmpty(t, got.Cause)
			}
			if e.want == "BadInput" {
				assert.Equal(t, []string{"Read", "Check", "BadInput"}, got.States)
				return
			}
			if e.unwoken {
				assert.Equal(t, 2, e.attempts[waitState], "it asks again after the heartbeat, and not when it has been given the lock")
			}
			assert.True(t, e.debited || got.Status != "SUCCEEDED")
			left := opening - e.others
			if e.debited {
				left -= amount
			}
			assert.Equal(t, fmt.Sprint(left), l.accounts.Balance(t, name), "once or not at all")

			if got.Status != "SUCCEEDED" {
				_, failed := l.invoke(event(t, arn(name), got.Status, 0, e.input))
				require.Nil(t, failed)
			}
			status, err := l.locks.Inspect(t.Context(), accounts.Key(name))
			require.NoError(t, err)
			if e.held {
				assert.Equal(t, lockstore.Held, status.State)
				return
			}
			assert.Equal(t, lockstore.Free, status.State, "held by %v", status.Holder)
			_, late := l.invoke(fmt.Appendf(nil, `{"action": "acquire", "key": %q, "execution": %q, "redrive": 0, "ttl": 60}`, accounts.Key(name), arn(name)))
			if assert.NotNil(t, late, "a late acquire") {
				assert.Equal(t, "LockLost", late.Error)
			}
			require.NoError(t, l.withdraw(t.Context(), name, "w-1"), "the next holder of the account's lock finds an account as it wrote one")
		})
	}
	for from, s := range readMachine(t).States {
		for _, to := range s.next() {
			assert.True(t, taken[[2]string{from, to}], "no execution goes from %s to %s", from, to)
		}
	}
}

// local is what the tasks of an execution ask.
type local struct {
	t        *testing.T
	dynamodb string // endpoint
	function *lambdatest.Environment
	locks    *lockstore.Store
	accounts functest.Accounts

	mu     sync.Mutex
	states map[string]*waiting // that wait, by token
}

// waiting is a state that waits for its token.
type waiting struct {
	e     *payout
	woken chan struct{}
}

// heartbeat is HeartbeatSeconds here.
const heartbeat = time.Second

// decode reads JSON whose numbers stay as they are.
func decode(text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return v
}

func openLocal(t *testing.T) *local {
	l := &local{t: t, dynamodb: testservers.DynamoDB(t), states: map[string]*waiting{}}
	stepFunctions := httptest.NewServer(http.HandlerFunc(l.sendTaskSuccess))
	t.Cleanup(stepFunctions.Close)
	lockURL := testservers.Table(t, l.dynamodb, "locks", "key")
	l.locks = functest.OpenStore(t, lockURL)
	l.accounts = functest.OpenAccounts(t, testservers.Table(t, l.dynamodb, "accounts", "account"), func(string) string { return "local" })
	binary := filepath.Join(t.TempDir(), "bootstrap")
	require.NoError(t, lambdatest.Build(t.Context(), "github.com/lambdalock/lambdalock/functions/sfnlock", binary))
	var err error
	l.function, err = lambdatest.Start(t.Context(), lambdatest.Config{
		Binary: binary, Timeout: 10 * time.Second, MaxConcurrency: 8,
		Env: []string{"LOCK_URL=" + lockURL, "LOCK_TTL=60s", "AWS_ENDPOINT_URL_SFN=" + stepFunctions.URL},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.function.Close()) })
	return l
}

// sendTaskSuccess is what Step Functions does.
func (l *local) sendTaskSuccess(w http.ResponseWriter, r *http.Request) {
	assert.Equal(l.t, "AWSStepFunctions.SendTaskSuccess", r.Header.Get("X-Amz-Target"))
	var in struct{ TaskToken, Output string }
	assert.NoError(l.t, json.NewDecoder(r.Body).Decode(&in))
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	l.mu.Lock()
	defer l.mu.Unlock()
	switch s := l.states[in.TaskToken]; {
	case s == nil:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"__type": "TaskTimedOut"}`)
		return
	case s.e.unwoken:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"__type": "ThrottlingException"}`)
		return
	case s.e.deaf > 0:
		s.e.deaf--
	default:
		delete(l.states, in.TaskToken)
		close(s.woken)
	}
	_, _ = io.WriteString(w, `{}`)
}

// blocked gives the lock of an account to another execution, until its result is called.
func (l *local) blocked(account string) func() {
	in := func(action, more string) []byte {
		return fmt.Appendf(nil, `{"action": %q, "key": %q, "execution": %q, "redrive": 0, %s}`, action, accounts.Key(account), arn("before-"+account), more)
	}
	answer, failed := l.invoke(in(acquire, `"ttl": 3600`))
	require.Nil(l.t, failed)
	return sync.OnceFunc(func() {
		_, failed := l.invoke(in(release, fmt.Sprintf(`"fence": %v`, look(answer, "$.fence"))))
		assert.Nil(l.t, failed)
	})
}

// withdraw is what another function does with the account, under its lock.
func (l *local) withdraw(ctx context.Context, account, id string) error {
	g, err := guard.New(l.locks, guard.Options{})
	return errors.Join(err, g.Do(ctx, accounts.Key(account), func(ctx context.Context, lock guard.Lock) error {
		_, err := l.accounts.Withdraw(ctx, lock, accounts.Withdrawal{Account: account, ID: id, Amount: 1})
		return err
	}))
}

// outcome is what the interpreter says of an execution.
type outcome struct {
	Status, Error, Cause string
	States               []string
}

// run runs the executions, eight at once.
func (l *local) run(executions map[string]*payout) (all map[string]outcome) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(l.t, err)
		parts := strings.Split(r.URL.Path, "/") // /NAME/STATE
		assert.NoError(l.t, json.NewEncoder(w).Encode(l.task(r.Context(), executions[parts[1]], parts[2], decode(body).(map[string]any))))
	}))
	defer server.Close()
	definition := decode([]byte(substituted(string(readFile(l.t, "payout.asl.json")))))
	look(definition, "$.States.Debit").(map[string]any)["TimeoutSeconds"] = 2 // one hangs that long
	in := map[string]any{}
	for name, e := range executions {
		in[name] = map[string]any{"input": e.input, "pauses": e.pauses, "context": map[string]any{"Execution": map[string]any{"Id": arn(name), "RedriveCount": 0}, "Task": map[string]any{"Token": theToken}}}
	}
	text, err := json.Marshal(map[string]any{"definition": definition, "url": server.URL, "atOnce": 8, "executions": in})
	require.NoError(l.t, err)
	cmd := testservers.StepFunctions(l.t, filepath.Join("testdata", "run.cjs"))
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(text), &stderr
	out, err := cmd.Output()
	require.NoError(l.t, err, "%s", stderr.Bytes())
	require.NoError(l.t, json.Unmarshal(out, &all), "%s%s", out, stderr.Bytes())
	require.Len(l.t, all, len(executions))
	return all
}

// task does what a state asks for, with the planned fault.
func (l *local) task(ctx context.Context, e *payout, state string, parameters map[string]any) map[string]any {
	e.mu.Lock()
	attempt := e.attempts[state]
	e.attempts[state]++
	e.mu.Unlock()
	if e.before != nil {
		e.before(state, attempt)
	}
	if state == abandonState && e.frees != nil {
		e.frees()
	}
	f := e.faults[state]
	if attempt > 0 && !e.always {
		f = fault{}
	}
	if f == (fault{}) || f.applied {
		result, failed := l.apply(ctx, e, state, parameters)
		switch {
		case f.applied:
		case failed != nil:
			return map[string]any{"error": failed.Error, "cause": failed.Cause}
		default:
			return map[string]any{"result": result}
		}
	}
	if f.hangs {
		<-ctx.Done()
	}
	if f.aborts {
		return map[string]any{"abort": true}
	}
	return map[string]any{"error": f.err, "cause": "planned"}
}

// apply does what a state asks for, and looks at the fence of work.
func (l *local) apply(ctx context.Context, e *payout, state string, parameters map[string]any) (any, *failure) {
	if _, isWrite := parameters["UpdateExpression"]; isWrite {
		e.mu.Lock()
		defer e.mu.Unlock()
		assert.Equal(l.t, fmt.Sprint(e.fence), look(parameters, "$.ExpressionAttributeValues.:lock_fence.N"), "work has the fence of its lock")
		assert.Equal(l.t, e.name, look(parameters, "$.Key.account.S"))
		result, failed := l.update(parameters)
		e.debited = e.debited || state == "Debit" && failed == nil
		return result, failed
	}
	assert.Equal(l.t, "sfnlock", parameters["FunctionName"])
	if state == waitState {
		return l.wait(ctx, e, parameters["Payload"].(map[string]any))
	}
	payload, err := json.Marshal(parameters["Payload"])
	assert.NoError(l.t, err)
	answer, failed := l.invoke(payload)
	if failed == nil && state == acquireState {
		e.mu.Lock()
		e.fence = look(answer, "$.fence")
		e.mu.Unlock()
	}
	return map[string]any{"Payload": answer, "StatusCode": 200}, failed
}

// theToken stands for the token of a state that waits, which is another one each time.
const theToken = "$$.Task.Token"

// wait ends when the token is sent, when the function fails, or without a heartbeat.
func (l *local) wait(ctx context.Context, e *payout, payload map[string]any) (any, *failure) {
	assert.Equal(l.t, theToken, payload["taskToken"])
	token, s := rand.Text(), &waiting{e, make(chan struct{})}
	payload["taskToken"] = token
	l.mu.Lock()
	l.states[token] = s
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.states, token)
	}()
	in, err := json.Marshal(payload)
	assert.NoError(l.t, err)
	if _, failed := l.invoke(in); failed != nil {
		return nil, failed
	}
	if e.frees != nil {
		e.frees()
	}
	select {
	case <-s.woken:
		return map[string]any{}, nil
	case <-time.After(heartbeat):
		return nil, &failure{"States.Timeout", "no heartbeat"}
	case <-ctx.Done():
		return nil, &failure{"States.Timeout", "the interpreter does not wait any more"}
	}
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
