package main

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

const (
	lockKey = "account/7"
	opening = 1000
	amount  = 300
	rivals  = 1 // what the rival takes
)

// fault is what happens to one attempt of a task.
type fault struct {
	err     string // the task fails with this error; "" if it does not
	hangs   bool   // it does not answer until its time is over
	stop    error  // the execution is stopped when the call has arrived
	applied bool   // what it asks for is done all the same
	late    bool   // … and only when the execution has ended
}

func (f fault) String() string {
	text := f.err
	if f.hangs {
		text = "hangs"
	}
	if f.stop != nil {
		text = f.stop.Error()
	}
	if f.applied {
		text += ", applied"
	}
	if f.late {
		text += ", late"
	}
	return text
}

// world is what an execution runs in: the function over a store, an account,
// and a rival who wants the same lock.
type world struct {
	t      *testing.T
	store  *memstore.Store
	handle func(context.Context, json.RawMessage) (Answer, error)
	run    *run
	ctx    context.Context // of the execution
	stop   context.CancelCauseFunc

	plan    map[string][]fault // by state and attempt
	always  bool               // the last fault of a plan is that of all later attempts, too
	mayLose bool               // the lock may end under the execution

	mu       sync.Mutex // guards what follows; nobody sleeps with it
	attempts map[string]int
	late     []func()
	fence    lockstore.Fence  // of the execution's lock; 0 before it has one
	mine     bool             // the execution has the lock, and has not begun to give it back
	over     bool             // the execution has ended
	account  map[string]int64 // as a row of the table
	debits   int              // how often the execution's debit was written
	visits   int              // of the rival, each with its own debit
}

func newWorld(t *testing.T, m *machine) *world {
	w := &world{t: t, store: memstore.New(nil), attempts: map[string]int{}, account: map[string]int64{"balance": opening}}
	g, err := guard.New(w.store, guard.Options{})
	require.NoError(t, err)
	w.handle = handler(g)
	w.run = &run{machine: m, context: executionContext("one", 0), task: w.task, jitter: fullJitter}
	w.ctx, w.stop = context.WithCancelCause(t.Context())
	return w
}

func executionContext(name string, redrive int) map[string]any {
	return map[string]any{"Execution": map[string]any{
		"Id":           "arn:aws:states:eu-central-1:123456789012:execution:payout:" + name,
		"RedriveCount": json.Number(strconv.Itoa(redrive)),
	}}
}

// start runs the execution from a state on, until it has ended.
func (w *world) start(from string, input any) {
	w.run.do(w.ctx, from, input)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mine, w.over = false, true
}

// task does what a state asks for, with the planned fault.
func (w *world) task(ctx context.Context, at string, parameters map[string]any) (any, *failure) {
	f := w.fault(at, parameters)
	if f == (fault{}) {
		return w.apply(parameters)
	}
	if f.applied {
		_, _ = w.apply(parameters)
	}
	return nil, w.fail(ctx, f)
}

// fault is that of an attempt which begins.
func (w *world) fault(at string, parameters map[string]any) (f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mine = w.mine && at != releaseState && at != abandonState
	plan, n := w.plan[at], w.attempts[at]
	w.attempts[at]++
	switch {
	case n < len(plan):
		f = plan[n]
	case w.always && len(plan) > 0:
		f = plan[len(plan)-1]
	}
	if f.late {
		w.late = append(w.late, func() { _, _ = w.apply(parameters) })
	}
	return f
}

func (w *world) fail(ctx context.Context, f fault) *failure {
	if f.stop != nil {
		w.stop(f.stop)
	}
	if f.stop != nil || f.hangs {
		<-ctx.Done()
	}
	return &failure{f.err, "planned"}
}

func (w *world) apply(parameters map[string]any) (any, *failure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, isWrite := parameters["UpdateExpression"]; isWrite {
		return w.write(parameters)
	}
	assert.Equal(w.t, "step", parameters["FunctionName"])
	payload := parameters["Payload"].(map[string]any)
	in, err := json.Marshal(payload)
	assert.NoError(w.t, err)
	answer, failed := w.invoke(in)
	if failed != nil {
		return nil, failed
	}
	if payload["action"] == "acquire" {
		w.fence, w.mine = answer.Fence, true
	}
	text, err := json.Marshal(answer)
	assert.NoError(w.t, err)
	return map[string]any{"Payload": decode(text), "StatusCode": json.Number("200")}, nil
}

// invoke calls the function as Lambda does, each time with another request id.
func (w *world) invoke(in []byte) (Answer, *failure) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	answer, err := w.handle(lambdacontext.NewContext(ctx, &lambdacontext.LambdaContext{AwsRequestID: string(lockstore.NewOwner())}), in)
	if err != nil {
		return answer, &failure{reflect.TypeOf(err).Elem().Name(), err.Error()}
	}
	return answer, nil
}

// write is an UpdateItem on the account. Other tests try the expressions on a
// real DynamoDB; here each has its meaning in Go.
func (w *world) write(parameters map[string]any) (any, *failure) {
	value := func(name string) int64 {
		text, _ := look(parameters, "$.ExpressionAttributeValues."+name+".N").(string)
		n, err := strconv.ParseInt(text, 10, 64)
		assert.NoError(w.t, err, name)
		return n
	}
	a, fence := w.account, value(":lock_fence")
	assert.Equal(w.t, int64(w.fence), fence, "work has the fence of its lock")
	assert.Equal(w.t, "7", look(parameters, "$.Key.account.S"))
	refused := &failure{"DynamoDB.ConditionalCheckFailedException", "The conditional request failed"}
	if a["lock_fence"] > fence {
		return nil, refused
	}
	assert.True(w.t, w.mine || w.over, "no work without the lock")
	own, _, _ := strings.Cut(parameters["ConditionExpression"].(string), " AND (attribute_not_exists(lock_fence)")
	switch own + " " + parameters["UpdateExpression"].(string) {
	case "(attribute_exists(balance)) SET lock_fence = :lock_fence, opening = balance":
		a["opening"] = a["balance"]
	case "(opening = :opening) SET lock_fence = :lock_fence, balance = opening - :amount":
		if there, ok := a["opening"]; !ok || there != value(":opening") {
			return nil, refused
		}
		a["balance"] = a["opening"] - value(":amount")
		w.debits++
	case "(attribute_exists(balance)) SET lock_fence = :lock_fence REMOVE opening":
		delete(a, "opening")
	default:
		w.t.Errorf("this test does not know the write %v", parameters)
	}
	a["lock_fence"] = fence
	item := map[string]any{}
	for name, n := range a {
		item[name] = map[string]any{"N": strconv.FormatInt(n, 10)}
	}
	return map[string]any{"Attributes": item}, nil
}

// visit is a try of the rival, an execution that takes its money and goes. Each
// visit is an execution of its own.
func (w *world) visit() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := look(executionContext(fmt.Sprint("rival-", w.visits), 0), "$.Execution.Id")
	call := func(more string) (Answer, *failure) {
		return w.invoke(fmt.Appendf(nil, `{"key": %q, "execution": %q, "redrive": 0, %s}`, lockKey, id, more))
	}
	answer, failed := call(`"action": "acquire", "ttl": 60`)
	if failed != nil {
		assert.Equal(w.t, "LockBusy", failed.Error)
		return false
	}
	assert.True(w.t, w.mayLose || !w.mine, "somebody else came in while the execution has the lock")
	assert.Greater(w.t, answer.Fence, w.fence)
	w.visits++
	w.account["lock_fence"] = int64(answer.Fence)
	w.account["balance"] -= rivals
	_, failed = call(fmt.Sprintf(`"action": "release", "fence": %d`, answer.Fence))
	assert.Nil(w.t, failed)
	return true
}

// besiege visits as soon as the lock is free again, after the execution has had
// it.
func (w *world) besiege(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		had := w.fence > 0
		w.mu.Unlock()
		if had && w.visit() {
			return
		}
		sleep(ctx, 500*time.Millisecond)
	}
}

// event is what EventBridge sends when an execution has not succeeded.
func (w *world) event(input any) {
	text, err := json.Marshal(input)
	require.NoError(w.t, err)
	execution := w.run.context["Execution"].(map[string]any)
	event, err := json.Marshal(map[string]any{
		"source": "aws.states", "detail-type": "Step Functions Execution Status Change",
		"detail": map[string]any{"executionArn": execution["Id"], "status": w.run.status, "redriveCount": execution["RedriveCount"], "input": string(text)},
	})
	require.NoError(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, failed := w.invoke(event)
	require.Nil(w.t, failed)
}

func (w *world) mustBeFree(when string) {
	w.t.Helper()
	status, err := w.store.Inspect(w.t.Context(), lockKey)
	require.NoError(w.t, err)
	assert.False(w.t, status.Held, "%s the lock is still held by %v", when, status.Holder)
}

func good() any { return decode(fmt.Appendf(nil, `{"key": %q, "amount": %d}`, lockKey, amount)) }

// walk runs one execution with a rival at its heels, and checks what must hold
// whatever happens to it.
func (w *world) walk(from string, input any) {
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	go w.besiege(ctx)
	w.start(from, input)

	// The execution's own states leave the lock free, unless the function refuses
	// all their calls: then the event does, or the ttl.
	told := func(state string) bool {
		plan := w.plan[state]
		return len(plan) == 0 || !w.always && !slices.Contains(final[invokeFunction], plan[0].err)
	}
	if (w.run.status == "SUCCEEDED" || w.run.status == "FAILED") && told(releaseState) && told(abandonState) {
		w.mustBeFree("at the end of the execution")
	}
	if w.run.status == "SUCCEEDED" {
		w.mu.Lock()
		assert.Positive(w.t, w.debits)
		assert.NotContains(w.t, w.account, "opening")
		w.mu.Unlock()
	} else {
		w.event(input)
		w.mustBeFree("after the event")
	}
	sleep(ctx, 181*time.Second)
	synctest.Wait()
	assert.Equal(w.t, w.fence > 0, w.visits > 0, "the rival comes in when the lock is free")
	for _, deliver := range w.late {
		deliver()
	}
	w.mustBeFree("in the end")

	want := int64(opening - w.visits*rivals)
	if w.debits > 0 {
		want -= amount
	}
	assert.Equal(w.t, want, w.account["balance"], "the payout is made once or not at all, and nothing is overwritten")
}

// TestEveryPath makes each task fail in each way, once and for good, stops the
// execution in each, and takes each transition that the machine has.
func TestEveryPath(t *testing.T) {
	m := readMachine(t)
	taken, count := map[edge]bool{}, 0
	scenario := func(name string, input any, plan map[string][]fault, always bool, check func(*testing.T, *run)) {
		count++
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, m)
				w.plan, w.always = plan, always
				w.walk(m.StartAt, input)
				for _, e := range w.run.trail {
					taken[e] = true
				}
				check(t, w.run)
			})
		})
	}
	succeeds := func(t *testing.T, r *run) { assert.Equal(t, "SUCCEEDED", r.status, "%+v", r.failure) }
	ends := func(status string) func(*testing.T, *run) {
		return func(t *testing.T, r *run) { assert.Equal(t, status, r.status) }
	}
	fails := func(err string) func(*testing.T, *run) {
		return func(t *testing.T, r *run) {
			require.Equal(t, "FAILED", r.status)
			assert.Equal(t, err, r.failure.Error)
			assert.NotEmpty(t, r.failure.Cause)
		}
	}
	one := func(state string, f fault) map[string][]fault { return map[string][]fault{state: {f}} }

	scenario("good", good(), nil, false, succeeds)
	scenario("the balance is too low", decode([]byte(`{"key": "account/7", "amount": 1001}`)), nil, false, fails("Insufficient"))
	for _, input := range []string{
		`{"key": "account/7", "amount": 0}`, `{"key": "account/7", "amount": -1}`, `{"key": "account/7", "amount": 1.5}`,
		`{"key": "account/7", "amount": 1E+2}`, `{"key": "account/7", "amount": "300"}`,
		`{"key": "account/7/8", "amount": 300}`, `{"key": "accounts/7", "amount": 300}`, `{"key": "7/account/7", "amount": 300}`,
	} {
		scenario("bad input "+input, decode([]byte(input)), nil, false, fails("BadInput"))
	}
	for state, s := range m.States {
		if s.Type != "Task" {
			continue
		}
		transient := []string{"LockStoreUnavailable", "LockDeadline", "Lambda.TooManyRequestsException", "Lambda.Unknown", "Sandbox.Timedout"}
		if s.Resource == updateItem {
			transient = []string{"DynamoDB.ProvisionedThroughputExceededException", "DynamoDB.InternalServerError"}
		}
		if state == acquireState {
			transient = append(transient, "LockBusy")
		}
		faults := map[fault]string{{hangs: true}: "States.Timeout", {hangs: true, applied: true}: "States.Timeout", {hangs: true, late: true}: "States.Timeout"}
		for _, err := range transient {
			faults[fault{err: err}] = err
			if err != "LockBusy" {
				faults[fault{err: err, applied: true}] = err // the reply is lost
			}
		}
		name := func(what string, f fault) string { return fmt.Sprintf("%s %s: %v", state, what, f) }
		if state == abandonState {
			// It runs after another failure, which is the one to be seen.
			plan := func(f fault) map[string][]fault {
				return map[string][]fault{"Claim": {{err: "DynamoDB.ConditionalCheckFailedException"}}, state: {f}}
			}
			for f := range faults {
				scenario(name("once", f), good(), plan(f), false, fails("DynamoDB.ConditionalCheckFailedException"))
				scenario(name("always", f), good(), plan(f), true, fails("DynamoDB.ConditionalCheckFailedException"))
			}
			for _, f := range stops() {
				scenario(name("stopped", f), good(), plan(f), false, ends(f.stop.Error()))
			}
			continue
		}
		for f, err := range faults {
			scenario(name("once", f), good(), one(state, f), false, succeeds)
			after := fails(err)
			if state == releaseState {
				after = succeeds
			}
			scenario(name("always", f), good(), one(state, f), true, after)
			both := one(state, f)
			both[abandonState] = []fault{f}
			scenario(name("always, and Abandon", f), good(), both, true, after)
		}
		for _, err := range final[s.Resource] {
			after := fails(err)
			if state == releaseState && err != "LockLost" {
				after = succeeds
			}
			scenario(name("once", fault{err: err}), good(), one(state, fault{err: err}), false, after)
		}
		for _, f := range stops() {
			scenario(name("stopped", f), good(), one(state, f), false, ends(f.stop.Error()))
		}
	}
	for _, e := range m.allEdges() {
		assert.True(t, taken[e], "no scenario takes %v", e)
	}
	t.Logf("%d scenarios take all %d transitions", count, len(m.allEdges()))
}

// stops are the ways to stop an execution while a task is under way.
func stops() (all []fault) {
	for _, stop := range []error{errAborted, errTimedOut} {
		all = append(all, fault{stop: stop}, fault{stop: stop, applied: true}, fault{stop: stop, late: true})
	}
	return all
}

// TestBusy: a lock that another has is asked for again and again, for a while.
func TestBusy(t *testing.T) {
	m := readMachine(t)
	for held, status := range map[time.Duration]string{time.Second: "SUCCEEDED", 25 * time.Second: "SUCCEEDED", 24 * time.Hour: "FAILED"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, m)
			w.run.jitter = func(d time.Duration) time.Duration { return d }
			_, err := w.store.Acquire(t.Context(), lockstore.Request{Key: lockKey, Owner: "another", TTL: held})
			require.NoError(t, err)
			begin := time.Now()
			w.start(m.StartAt, good())
			require.Equal(t, status, w.run.status)
			if status == "SUCCEEDED" {
				assert.GreaterOrEqual(t, time.Since(begin), held)
				assert.Equal(t, int64(opening-amount), w.account["balance"])
				w.mustBeFree("in the end")
				return
			}
			assert.Equal(t, "LockBusy", w.run.failure.Error)
			assert.Equal(t, 13, w.attempts[acquireState])
			assert.Equal(t, map[string]int64{"balance": opening}, w.account, "no work without the lock")
			w.event(good())
			held, err := w.store.Inspect(t.Context(), lockKey)
			require.NoError(t, err)
			assert.True(t, held.Held, "the event takes nobody else's lock away")
		})
	}
}

// TestALostLock: what goes on after the lock was lost is refused, by the fence
// where it writes, and ends as a failure that says so. The lock gets lost because
// these machines ask for less time than they take.
func TestALostLock(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*machine)
		plan   map[string][]fault
		err    string
		debits int
	}{
		"in Pay":     {func(m *machine) { m.States["Pay"].Seconds = 200 }, nil, "LockLost", 0},
		"in Claim":   {short, map[string][]fault{"Claim": {{hangs: true}}}, "DynamoDB.ConditionalCheckFailedException", 0},
		"in Debit":   {short, map[string][]fault{"Debit": {{hangs: true}}}, "DynamoDB.ConditionalCheckFailedException", 0},
		"in Settle":  {short, map[string][]fault{"Settle": {{hangs: true}}}, "DynamoDB.ConditionalCheckFailedException", 1},
		"in Release": {short, map[string][]fault{"Release": {{hangs: true}}}, "LockLost", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := readMachine(t)
				c.change(m)
				w := newWorld(t, m)
				w.plan, w.mayLose = c.plan, true
				w.walk(m.StartAt, good())
				require.Equal(t, "FAILED", w.run.status)
				assert.Equal(t, c.err, w.run.failure.Error)
				assert.Equal(t, c.debits, w.debits)
			})
		})
	}
}

// short makes the lock last for a second at a time, and Pay take none.
func short(m *machine) {
	m.States["Pay"].Seconds = 0
	for _, state := range []string{acquireState, renewState} {
		m.States[state].Parameters["Payload"].(map[string]any)["ttl"] = 1
	}
}

// TestStoppedWhileItWaits: the machine's own TimeoutSeconds, and a person.
func TestStoppedWhileItWaits(t *testing.T) {
	for status, stop := range map[string]func(*world){
		"TIMED_OUT": func(w *world) { w.run.TimeoutSeconds = 10 },
		"ABORTED": func(w *world) {
			go func() { sleep(w.t.Context(), 10*time.Second); w.stop(errAborted) }()
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := readMachine(t)
			w := newWorld(t, m)
			stop(w)
			w.walk(m.StartAt, good())
			require.Equal(t, status, w.run.status)
			assert.Equal(t, "Pay", w.run.at)
			assert.Zero(t, w.debits)
		})
	}
}

// TestRedrive: an execution that was stopped in a state goes on there, with
// another count of redrives. Its lock is gone by then, and others have been at
// the account; so it gets a new one, or nowhere.
func TestRedrive(t *testing.T) {
	m := readMachine(t)
	for state, s := range m.States {
		if s.Type != "Task" || state == abandonState {
			continue
		}
		for _, rival := range []bool{true, false} {
			for _, applied := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, rival %v, applied %v", state, rival, applied), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(t, m)
						w.plan = map[string][]fault{state: {{stop: errAborted, applied: applied}}}
						w.start(m.StartAt, good())
						require.Equal(t, "ABORTED", w.run.status)
						w.event(good())
						w.mustBeFree("after the event")
						if rival {
							require.True(t, w.visit())
						}
						at, input := w.run.at, w.run.input
						w.run.context = executionContext("one", 1)
						w.ctx = t.Context()
						w.start(at, input)
						want := int64(opening - w.visits*rivals)
						if w.debits > 0 {
							want -= amount
						}
						assert.Equal(t, want, w.account["balance"], "nothing is overwritten")
						switch {
						case state == acquireState:
							assert.Equal(t, "SUCCEEDED", w.run.status)
						case w.run.status == "FAILED":
							assert.Contains(t, []string{"LockLost", "DynamoDB.ConditionalCheckFailedException"}, w.run.failure.Error)
						default:
							t.Errorf("it is %s", w.run.status)
						}
						if w.run.status != "SUCCEEDED" {
							w.event(good())
						}
						w.mustBeFree("in the end")
					})
				})
			}
		}
	}
}

func (m *machine) allEdges() (all []edge) {
	for name := range m.States {
		all = append(all, m.edges(name)...)
	}
	return all
}
