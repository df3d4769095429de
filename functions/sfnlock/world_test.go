package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
)

const (
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
	late    bool   // what it asks for is done when the execution has ended
}

func (f fault) String() string {
	return fmt.Sprintf("%s hangs %v, stop %v, applied %v, late %v", f.err, f.hangs, f.stop, f.applied, f.late)
}

// services are what the tasks of an execution ask.
type services interface {
	invoke(payload []byte) (any, *failure)            // the function
	update(parameters map[string]any) (any, *failure) // the account, as DynamoDB's UpdateItem does
}

// world is what an execution runs in: the function over a store, and an account.
type world struct {
	services
	t       *testing.T
	account string
	run     *run
	ctx     context.Context // of the execution
	stop    context.CancelCauseFunc

	plan    map[string][]fault // by state and attempt
	always  bool               // the last fault of a plan is that of all later attempts, too
	mayLose bool               // the lock may end under the execution

	mu       sync.Mutex // guards what follows; nobody sleeps with it
	attempts map[string]int
	late     []func()
	fence    int64 // of the execution's lock; 0 before it has one
	mine     bool  // the execution holds the lock, and no release has begun
	over     bool  // the execution has ended
}

func newWorld(t *testing.T, of services, m *machine, name, account string) *world {
	w := &world{services: of, t: t, account: account, attempts: map[string]int{}}
	w.run = &run{machine: m, context: executionContext(name, 0), task: w.task, jitter: fullJitter}
	w.ctx, w.stop = context.WithCancelCause(t.Context())
	return w
}

func executionContext(name string, redrive int) map[string]any {
	return map[string]any{"Execution": map[string]any{"Id": caller{name: name}.arn(), "RedriveCount": json.Number(strconv.Itoa(redrive))}}
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
	if f.stop != nil {
		w.stop(f.stop)
	}
	if f.stop != nil || f.hangs {
		<-ctx.Done()
	}
	return nil, &failure{f.err, "planned"}
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

// apply does what a state asks for, and looks at the fence of work.
func (w *world) apply(parameters map[string]any) (any, *failure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, isWrite := parameters["UpdateExpression"]; isWrite {
		assert.Equal(w.t, fmt.Sprint(w.fence), look(parameters, "$.ExpressionAttributeValues.:lock_fence.N"), "work has the fence of its lock")
		assert.Equal(w.t, w.account, look(parameters, "$.Key.account.S"))
		held := w.mine || w.over
		result, failed := w.update(parameters)
		assert.True(w.t, held || failed != nil, "no work without the lock")
		return result, failed
	}
	assert.Equal(w.t, "sfnlock", parameters["FunctionName"])
	payload, err := json.Marshal(parameters["Payload"])
	assert.NoError(w.t, err)
	answer, failed := w.invoke(payload)
	if failed != nil {
		return nil, failed
	}
	if look(parameters, "$.Payload.action") == acquire {
		w.fence, err = look(answer, "$.fence").(json.Number).Int64()
		assert.NoError(w.t, err)
		w.mine = true
	}
	return map[string]any{"Payload": answer, "StatusCode": json.Number("200")}, nil
}

// memory is services in virtual time: a store in memory, an account, and a rival who
// wants the same lock.
type memory struct {
	*world
	store  *lockstore.Store
	rival  caller
	row    map[string]int64 // of the account
	debits int              // how often the execution's debit was written
	visits int              // of the rival, each with its own debit
}

func newMemory(t *testing.T, m *machine) *memory {
	w := &memory{store: memstore.New(nil), row: map[string]int64{"balance": opening}}
	w.rival.handle = testHandler(t, w.store)
	w.world = newWorld(t, w, m, "one", "7")
	return w
}

// start runs the execution from a state on, until it has ended.
func (w *memory) start(from string, input any) {
	w.run.do(w.ctx, from, input)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mine, w.over = false, true
}

func (w *memory) invoke(payload []byte) (any, *failure) {
	answer, err := w.rival.send(w.t, payload)
	if err != nil {
		return nil, &failure{reflect.TypeOf(err).Elem().Name(), err.Error()}
	}
	text, err := json.Marshal(answer)
	assert.NoError(w.t, err)
	return decode(text), nil
}

// update is an UpdateItem on the account. TestInAnInterpreter tries the expressions on
// a real DynamoDB; here each has its meaning in Go.
func (w *memory) update(parameters map[string]any) (any, *failure) {
	value := func(name string) int64 {
		text, _ := look(parameters, "$.ExpressionAttributeValues."+name+".N").(string)
		n, err := strconv.ParseInt(text, 10, 64)
		assert.NoError(w.t, err, name)
		return n
	}
	fence, refused := value(":lock_fence"), &failure{"DynamoDB.ConditionalCheckFailedException", "The conditional request failed"}
	if w.row["lock_fence"] > fence {
		return nil, refused
	}
	own, _, _ := strings.Cut(parameters["ConditionExpression"].(string), " AND (attribute_not_exists(lock_fence)")
	switch own + " " + parameters["UpdateExpression"].(string) {
	case "(attribute_exists(balance)) SET lock_fence = :lock_fence, opening = balance":
		w.row["opening"] = w.row["balance"]
	case "(opening = :opening) SET lock_fence = :lock_fence, balance = opening - :amount":
		if there, ok := w.row["opening"]; !ok || there != value(":opening") {
			return nil, refused
		}
		w.row["balance"] = w.row["opening"] - value(":amount")
		w.debits++
	case "(attribute_exists(balance)) SET lock_fence = :lock_fence REMOVE opening":
		delete(w.row, "opening")
	default:
		w.t.Errorf("this test does not know the write %v", parameters)
	}
	w.row["lock_fence"] = fence
	item := map[string]any{}
	for name, n := range w.row {
		item[name] = map[string]any{"N": strconv.FormatInt(n, 10)}
	}
	return map[string]any{"Attributes": item}, nil
}

// visit is a try of the rival to acquire the lock, to withdraw and to release. Each
// visit is an execution of its own.
func (w *memory) visit() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rival.name = fmt.Sprint("rival-", w.visits)
	answer, err := w.rival.acquire(w.t)
	if err != nil {
		assert.ErrorIs(w.t, err, lockstore.ErrRefused)
		return false
	}
	assert.True(w.t, w.mayLose || !w.mine, "somebody else came in while the execution has the lock")
	assert.Greater(w.t, int64(answer.Fence), w.fence)
	w.visits++
	w.row["lock_fence"] = int64(answer.Fence)
	w.row["balance"] -= rivals
	assert.NoError(w.t, w.rival.release(w.t, answer.Fence))
	return true
}

// waitAndVisit visits as soon as the lock is free again, after the execution has had
// it.
func (w *memory) waitAndVisit(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		had := w.fence > 0
		w.mu.Unlock()
		if had && w.visit() {
			return
		}
		sleep(ctx, 2*time.Second)
	}
}

// event is what EventBridge sends when an execution has not succeeded.
func (w *memory) event(input any) {
	redrive, err := look(w.run.context, "$.Execution.RedriveCount").(json.Number).Int64()
	require.NoError(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	_, failed := w.invoke(event(w.t, caller{name: "one"}.arn(), w.run.status, int(redrive), input))
	require.Nil(w.t, failed)
}

func (w *memory) mustBeFree(when string) {
	w.t.Helper()
	status, err := w.store.Inspect(w.t.Context(), key)
	require.NoError(w.t, err)
	assert.Equal(w.t, lockstore.Free, status.State, "%s the lock is still that of %v", when, status.Holder)
}

// mustBalance checks that the payout is made once or not at all, and that nothing is
// overwritten.
func (w *memory) mustBalance() {
	w.t.Helper()
	want := int64(opening - w.visits*rivals)
	if w.debits > 0 {
		want -= amount
	}
	assert.Equal(w.t, want, w.row["balance"])
}

func good() any { return input(key, amount) }

func input(key string, amount any) any {
	return decode(fmt.Appendf(nil, `{"key": %q, "amount": %v}`, key, amount))
}

// walk runs one execution while a rival waits for its lock, and checks what must hold
// whatever happens to the execution.
func (w *memory) walk(from string, input any) {
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	go w.waitAndVisit(ctx)
	w.start(from, input)

	// The execution's own states leave the lock free, unless the function refuses all
	// their calls: then the event frees the lock, or its lease ends.
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
		assert.NotContains(w.t, w.row, "opening")
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
	w.mustBalance()
}

// How an execution is stopped from outside.
var (
	errAborted  = errors.New("ABORTED")
	errTimedOut = errors.New("TIMED_OUT")
)
