package main

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// TestEveryPath makes each task fail in each way, once and for good, stops the
// execution in each, and takes each transition that the machine has.
func TestEveryPath(t *testing.T) {
	m := readMachine(t)
	taken, count := map[edge]bool{}, 0
	scenario := func(name string, input any, plan map[string][]fault, always bool, check func(*testing.T, *run)) {
		count++
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMemory(t, m)
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

	scenario("good", good(), nil, false, succeeds)
	scenario("the balance is too low", input(key, opening+1), nil, false, fails("Insufficient"))
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
		faults := map[fault]string{{hangs: true}: "States.Timeout", {hangs: true, applied: true}: "States.Timeout", {hangs: true, late: true}: "States.Timeout"}
		for _, err := range transient {
			faults[fault{err: err}] = err
			faults[fault{err: err, applied: true}] = err // the reply is lost
		}
		if state == acquireState {
			faults[fault{err: "LockBusy"}] = "LockBusy"
		}
		plan := func(f fault) map[string][]fault { return map[string][]fault{state: {f}} }
		once, always := succeeds, fails
		switch state {
		case abandonState: // it runs after another failure, which is the one to be seen
			const first = "DynamoDB.ConditionalCheckFailedException"
			plan = func(f fault) map[string][]fault { return map[string][]fault{"Claim": {{err: first}}, state: {f}} }
			once, always = fails(first), func(string) func(*testing.T, *run) { return fails(first) }
		case releaseState:
			always = func(string) func(*testing.T, *run) { return succeeds }
		}
		name := func(what string, f fault) string { return fmt.Sprintf("%s %s: %v", state, what, f) }
		for f, err := range faults {
			scenario(name("once", f), good(), plan(f), false, once)
			scenario(name("always", f), good(), plan(f), true, always(err))
			if state != abandonState {
				both := plan(f)
				both[abandonState] = []fault{f}
				scenario(name("always, and Abandon", f), good(), both, true, always(err))
			}
		}
		for _, err := range final[s.Resource] {
			after := always(err)
			if err == "LockLost" {
				after = fails(err) // also of Release: the work may stand beside another's
			}
			if state != abandonState {
				scenario(name("once", fault{err: err}), good(), plan(fault{err: err}), false, after)
			}
		}
		for _, stop := range []error{errAborted, errTimedOut} {
			for _, f := range []fault{{stop: stop}, {stop: stop, applied: true}, {stop: stop, late: true}} {
				scenario(name("stopped", f), good(), plan(f), false, ends(stop.Error()))
			}
		}
	}
	for _, e := range m.allEdges() {
		assert.True(t, taken[e], "no scenario takes %v", e)
	}
	t.Logf("%d scenarios take all %d transitions", count, len(m.allEdges()))
}

// TestBusy: a lock that another has is asked for again and again, for a while.
func TestBusy(t *testing.T) {
	m := readMachine(t)
	for held, status := range map[time.Duration]string{time.Second: "SUCCEEDED", 25 * time.Second: "SUCCEEDED", 24 * time.Hour: "FAILED"} {
		synctest.Test(t, func(t *testing.T) {
			w := newMemory(t, m)
			w.run.jitter = func(d time.Duration) time.Duration { return d }
			_, err := w.store.Acquire(t.Context(), lockstore.Request{Key: key, Owner: "another", TTL: held})
			require.NoError(t, err)
			begin := time.Now()
			w.start(m.StartAt, good())
			require.Equal(t, status, w.run.status)
			if status == "SUCCEEDED" {
				assert.GreaterOrEqual(t, time.Since(begin), held)
				assert.Equal(t, int64(opening-amount), w.row["balance"])
				w.mustBeFree("in the end")
				return
			}
			assert.Equal(t, "LockBusy", w.run.failure.Error)
			assert.Equal(t, 13, w.attempts[acquireState])
			assert.Equal(t, map[string]int64{"balance": opening}, w.row, "no work without the lock")
			w.event(good())
			held, err := w.store.Inspect(t.Context(), key)
			require.NoError(t, err)
			assert.Equal(t, lockstore.Held, held.State, "the event takes nobody else's lock away")
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
				w := newMemory(t, m)
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
	for status, stop := range map[string]func(*memory){
		"TIMED_OUT": func(w *memory) { w.run.TimeoutSeconds = 10 },
		"ABORTED": func(w *memory) {
			go func() { sleep(w.t.Context(), 10*time.Second); w.stop(errAborted) }()
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := readMachine(t)
			w := newMemory(t, m)
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
						w := newMemory(t, m)
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
						w.mustBalance()
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
