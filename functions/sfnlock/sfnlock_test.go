package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/aws/aws-sdk-go-v2/service/sfn"
	"github.com/aws/aws-sdk-go-v2/service/sfn/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sfnwake"
	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/memstore"
	"github.com/lambdalock/lambdalock/lockstore/storetest"
)

const key = "account/7"

// caller calls a handler as an execution's states do.
type caller struct {
	handle  func(context.Context, json.RawMessage) (Answer, error)
	name    string
	redrive int
}

func (c caller) arn() string {
	return "arn:aws:states:eu-central-1:123456789012:execution:payout:" + c.name
}

// do calls the function, each time as an invocation with another request id.
func (c caller) do(t *testing.T, action string, more string) (Answer, error) {
	t.Helper()
	return c.send(t, c.input(action, more))
}

func (c caller) input(action, more string) json.RawMessage {
	return fmt.Appendf(nil, `{"action": %q, "key": %q, "execution": %q, "redrive": %d%s}`, action, key, c.arn(), c.redrive, more)
}

func (c caller) send(t *testing.T, in []byte) (Answer, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // the function's
	defer cancel()
	return c.handle(lambdacontext.NewContext(ctx, &lambdacontext.LambdaContext{AwsRequestID: string(lockstore.NewOwner())}), in)
}

func (c caller) acquire(t *testing.T) (Answer, error) { return c.do(t, "acquire", `, "ttl": 60.0`) }

func (c caller) renew(t *testing.T, fence lockstore.Fence) (Answer, error) {
	return c.do(t, "renew", fmt.Sprintf(`, "fence": %d.0, "ttl": 6E1`, fence)) // as a language without whole numbers writes them
}

func (c caller) release(t *testing.T, fence lockstore.Fence) error {
	_, err := c.do(t, "release", fmt.Sprintf(`, "fence": %d`, fence))
	return err
}

func (c caller) abandon(t *testing.T) error {
	_, err := c.do(t, "abandon", "")
	return err
}

// ended is the event of EventBridge about the execution.
func (c caller) ended(t *testing.T, status string) error {
	_, err := c.send(t, event(t, c.arn(), status, c.redrive, map[string]any{"key": key, "amount": 500}))
	return err
}

func event(t *testing.T, arn, status string, redrive int, input any) json.RawMessage {
	t.Helper()
	text, err := json.Marshal(input)
	require.NoError(t, err)
	in, err := json.Marshal(map[string]any{
		"source": "aws.states", "detail-type": "Step Functions Execution Status Change",
		"detail": map[string]any{"executionArn": arn, "status": status, "redriveCount": redrive, "input": string(text)},
	})
	require.NoError(t, err)
	return in
}

func testHandler(t *testing.T, store *lockstore.Store) func(context.Context, json.RawMessage) (Answer, error) {
	t.Helper()
	g, err := guard.New(store, guard.Options{})
	require.NoError(t, err)
	return handler(g, nil)
}

// pass lets time pass; in a bubble that takes none.
func pass(d time.Duration) { <-time.After(d) }

// bubble is a subtest in virtual time.
func bubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// TestEvents runs every event file against its expected answer.
func TestEvents(t *testing.T) {
	free := func(t *testing.T, w functest.World) { w.Free(t, key) }
	held := func(t *testing.T, w functest.World) { w.Held(t, key) }
	functest.Events(t, "sfnlock", func(w functest.World) any {
		return handler(w.Guard, nil)
	}, map[string]func(*testing.T, functest.World){
		"sfnlock":            held,
		"sfnlock-aborted":    free,
		"sfnlock-bad-input":  free,
		"sfnlock-busy":       held,
		"sfnlock-renew-lost": free,
		"sfnlock-running":    free,
		"sfnlock-waits": func(t *testing.T, w functest.World) {
			held(t, w)
			status, err := w.Store.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, 1, status.Parked)
		},
	})
}

// An owner that is made in init would be one for all executions of a process;
// one made of the request id would be another for each repeat. That its parts are kept apart is in a test of lockhttp.
func TestTheOwnerIsTheExecutions(t *testing.T) {
	bubble(t, "M28 in two environments", func(t *testing.T) {
		store := memstore.New(nil)
		h := testHandler(t, store)
		first := caller{handle: h, name: "first"}
		got, err := first.acquire(t)
		require.NoError(t, err)
		assert.WithinRange(t, got.ExpiresAt, time.Now().Add(59*time.Second), time.Now().Add(60*time.Second))
		status, err := store.Inspect(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, []string{"payout", "first"}, []string{status.Holder.Name, status.Holder.ID})

		again := caller{handle: testHandler(t, store), name: "first"} // in another environment
		for _, c := range []caller{first, again} {
			pass(time.Second)
			repeat, err := c.acquire(t)
			require.NoError(t, err)
			assert.Equal(t, got.Fence, repeat.Fence)
			assert.LessOrEqual(t, repeat.ExpiresAt, got.ExpiresAt, "a repeat has the time that is left")
		}
		for _, other := range []caller{{h, "second", 0}, {h, "first", 1}, {h, "firs", 0}} {
			_, err := other.acquire(t)
			require.IsType(t, &guard.LockBusy{}, err, "%v", other)
			require.IsType(t, &guard.LockLost{}, other.release(t, got.Fence), "%v", other)
			_, err = other.renew(t, got.Fence)
			require.IsType(t, &guard.LockLost{}, err, "%v", other)
			require.NoError(t, other.abandon(t), "%v", other)
			require.NoError(t, other.ended(t, "ABORTED"), "%v", other)
		}
		longer, err := first.renew(t, got.Fence)
		require.NoError(t, err, "nobody else could end it")
		assert.Equal(t, got.Fence, longer.Fence)
		assert.Equal(t, 2*time.Second, longer.ExpiresAt.Sub(got.ExpiresAt), "a renewal begins now")
	})
}

// After its end an execution gets no lock, however it ended and whenever its
// request arrives.
func TestNoLockAfterTheEnd(t *testing.T) {
	for _, name := range []string{"release", "abandon", "FAILED", "TIMED_OUT", "ABORTED"} {
		for _, acquired := range []bool{true, false} {
			if !acquired && name == "release" {
				continue // there is no fence to release with
			}
			bubble(t, fmt.Sprint("M18 ", name, ", acquired ", acquired), func(t *testing.T) {
				c := caller{handle: testHandler(t, memstore.New(nil)), name: "one"}
				var got Answer
				if acquired {
					var err error
					got, err = c.acquire(t)
					require.NoError(t, err)
				}
				for range 2 {
					switch name {
					case "release":
						require.NoError(t, c.release(t, got.Fence))
					case "abandon":
						require.NoError(t, c.abandon(t))
					default:
						require.NoError(t, c.ended(t, name))
					}
				}
				_, err := c.acquire(t)
				require.IsType(t, &guard.LockLost{}, err, "a late acquire")
				_, err = caller{c.handle, c.name, 1}.acquire(t)
				require.NoError(t, err, "the redriven execution has an owner of its own")
			})
		}
	}
}

// The errors are what Retry and Catch match: named types, never wrapped.
func TestErrors(t *testing.T) {
	for sentinel, want := range map[error]error{
		lockstore.ErrUnavailable:   &guard.LockStoreUnavailable{},
		lockstore.ErrCorrupt:       &guard.LockCorrupt{},
		errors.New("a lost reply"): &guard.LockStoreUnavailable{},
	} {
		synctest.Test(t, func(t *testing.T) {
			refusing := storetest.NewFaulty(memstore.New(nil), func(storetest.Call) storetest.Fault { return storetest.Fault{Drop: sentinel} })
			c := caller{handle: testHandler(t, refusing.Store), name: "one"}
			_, err := c.acquire(t)
			require.IsType(t, want, err)
			_, err = c.renew(t, 1)
			require.IsType(t, want, err)
			require.IsType(t, want, c.release(t, 1))
			require.IsType(t, want, c.abandon(t))
			require.IsType(t, want, c.ended(t, "ABORTED"))
		})
	}
}

// A wake-up that does no good is told in the report of who sends it; package sfnwake has its texts.
func TestWakeUpsThatFail(t *testing.T) {
	var report guard.Report
	wake := sfnwake.New(failing{&types.TaskTimedOut{}})
	g, err := guard.New(memstore.New(nil), guard.Options{Wake: wake, Observe: func(_ context.Context, r guard.Report) { report = r }})
	require.NoError(t, err)
	h := handler(g, wake)
	holder, parked := caller{handle: h, name: "holder"}, caller{handle: h, name: "parked"}
	held, err := holder.acquire(t)
	require.NoError(t, err)
	got, err := parked.do(t, acquire, `, "ttl": 60, "taskToken": "token-of-parked"`)
	require.NoError(t, err)
	require.Equal(t, Answer{Key: key}, got, "it has a place, and no fence")
	require.NoError(t, holder.release(t, held.Fence))
	require.ErrorContains(t, report.WakeErr, "no execution waits with this task token any more")
	require.NotContains(t, report.WakeErr.Error(), "token-of-parked")

	_, err = parked.do(t, acquire, `, "ttl": 60, "taskToken": "token-2"`)
	require.IsType(t, &NotWoken{}, err, "it has the lock, and the state would wait in vain")
	got, err = parked.acquire(t)
	require.NoError(t, err)
	require.Positive(t, got.Fence)
}

// The filter LockQueue of template.yaml looks for the line of an execution that was woken and has no place any more, and
// there is no such line for any other.
func TestWokenTooLate(t *testing.T) {
	template, err := os.ReadFile("../../template.yaml")
	require.NoError(t, err)
	require.Contains(t, string(template), `|| $.message = "woken too late" }`)
	bubble(t, "lines", func(t *testing.T) {
		var log bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewJSONHandler(&log, nil)))
		defer slog.SetDefault(before)
		h := testHandler(t, memstore.New(nil))
		holder, parked, next := caller{handle: h, name: "holder"}, caller{handle: h, name: "parked"}, caller{handle: h, name: "next"}
		held, err := holder.acquire(t)
		require.NoError(t, err)
		_, err = parked.do(t, acquire, `, "ttl": 60, "taskToken": "t"`)
		require.NoError(t, err)
		_, err = parked.do(t, acquire, `, "ttl": 60, "woken": true`)
		require.IsType(t, &guard.LockBusy{}, err, "for nothing, and it has its place")
		_, err = next.acquire(t)
		require.IsType(t, &guard.LockBusy{}, err, "nobody has woken it")
		require.Empty(t, log.String())

		require.NoError(t, holder.release(t, held.Fence))
		pass(lockstore.MaxParkedTurn + time.Second)
		_, err = next.acquire(t)
		require.NoError(t, err)
		_, err = parked.do(t, acquire, `, "ttl": 60, "woken": true`)
		require.IsType(t, &guard.LockBusy{}, err)
		var line map[string]any
		require.NoError(t, json.Unmarshal(log.Bytes(), &line), log.String())
		require.Equal(t, []any{"woken too late", "WARN", key}, []any{line["msg"], line["level"], line["key"]})
	})
}

// failing is a Step Functions that refuses.
type failing struct{ err error }

func (f failing) SendTaskSuccess(context.Context, *sfn.SendTaskSuccessInput, ...func(*sfn.Options)) (*sfn.SendTaskSuccessOutput, error) {
	return nil, f.err
}

// A store without parked places, or whose places are taken, answers LockBusy. It fails the state: its Retry asks again.
func TestWaitsWithoutAPlace(t *testing.T) {
	bubble(t, "no place left", func(t *testing.T) {
		h := testHandler(t, memstore.New(nil))
		_, err := caller{handle: h, name: "holder"}.acquire(t)
		require.NoError(t, err)
		for i := range 64 {
			_, err = caller{handle: h, name: fmt.Sprint(i)}.do(t, acquire, `, "ttl": 60, "taskToken": "t"`)
			require.NoError(t, err, "place %d", i)
		}
		_, err = caller{handle: h, name: "late"}.do(t, acquire, `, "ttl": 60, "taskToken": "t"`)
		require.IsType(t, &guard.LockBusy{}, err)
	})
	bubble(t, "no parked places", func(t *testing.T) {
		store := memstore.New(nil).WrapDriver(func(d driver.Driver) driver.Driver { return struct{ driver.Driver }{d} })
		h := testHandler(t, store)
		_, err := caller{handle: h, name: "one"}.acquire(t)
		require.NoError(t, err)
		_, err = caller{handle: h, name: "two"}.do(t, acquire, `, "ttl": 60, "taskToken": "t"`)
		require.IsType(t, &guard.LockBusy{}, err)
	})
}

// What else is no JSON or no key is in the tests of strictjson and lockstore.
func TestBadInput(t *testing.T) {
	const (
		arn      = `"execution": "arn:aws:states:eu-central-1:123456789012:execution:payout:one"`
		acquires = `{"action": "acquire", "key": "a", ` + arn
		asks     = acquires + `, "redrive": 0, "ttl": 1`
		releases = `{"action": "release", "key": "a", ` + arn + `, "redrive": 0`
	)
	long := strings.Repeat("k", lockstore.MaxKeyBytes+1)
	for in, want := range map[string]string{
		`null`:               "input: want a JSON object",
		`{}`:                 "action: is missing",
		`{"action": "lock"}`: `action: is "lock"; want acquire, renew, release or abandon`,
		`{"Records": [{"messageId": "m", "eventSource": "aws:sqs"}]}`: `"Records": is unknown; want action`,
		`{"action": "acquire"}`:                                 "key: is missing",
		`{"action": "acquire", "key": "a"}`:                     "execution: is missing",
		`{"action": "acquire", "key": "a", "execution": "one"}`: `execution: is "one"; want the ARN of a standard workflow's execution`,
		`{"action": "acquire", "key": "a", "execution": "arn:aws:states:eu-central-1:1:express:p:n:u"}`: "want the ARN of a standard workflow's execution",
		acquires + `}`:                           "redrive: is missing",
		acquires + `, "redrive": -1}`:            `redrive: is "-1"; want a whole number, 0 to`,
		acquires + `, "redrive": 0, "ttl": 1.5}`: `ttl: is "1.5"; want a whole number, 1 to 86400`,
		asks + `, "fence": 1}`:                   "fence: does not belong to the action acquire",
		`{"action": "renew", "key": "a", ` + arn + `, "redrive": 0, "ttl": 1}`: "fence: is missing",
		releases + `, "fence": 0}`:  `fence: is "0"; want a whole number, 1 to`,
		asks + `, "taskToken": 7}`:  "taskToken: want a string",
		asks + `, "taskToken": ""}`: "taskToken: has 0 bytes; want 1 to 2048",
		asks + `, "taskToken": "` + strings.Repeat("t", lockstore.MaxTaskTokenBytes+1) + `"}`: "taskToken: has 2049 bytes; want 1 to 2048",
		asks + `, "taskToken": "hidden words"}`:                                               "task token with a byte at",
		asks + `, "woken": "yes"}`:                                                            "woken: want true or false",
		releases + `, "fence": 1, "taskToken": "t"}`:                                          "taskToken: does not belong to the action release",
		`{"action": "abandon", "key": "", ` + arn + `, "redrive": 0}`:                         "Key is empty",
		`{"action": "abandon", "key": "` + long + `", ` + arn + `, "redrive": 0}`:             "Key has 1025 bytes",
		`{"action": "acquire", "key": "` + long + `"}`:                                        "execution: is missing",
		`{"action": "acquire", "key": "` + strings.Repeat("k", 8192) + `"}`:                   "bytes; want at most 8192",
	} {
		refused(t, in, want)
	}
}

func TestCoalescing(t *testing.T) {
	g, err := guard.New(memstore.New(nil), guard.Options{Coalesce: "sfnlock", Wait: time.Minute})
	require.NoError(t, err)
	_, err = caller{handle: handler(g, nil), name: "one"}.acquire(t)
	require.ErrorContains(t, err, "sfnlock: LOCK_COALESCE is true; want false")
}

func TestBadEvents(t *testing.T) {
	const good = `{"source": "aws.states", "detail-type": "Step Functions Execution Status Change", "detail": {
		"executionArn": "arn:aws:states:eu-central-1:123456789012:execution:payout:one", "status": "ABORTED", "redriveCount": 0, "input": "{\"key\": \"account/7\"}"}}`
	_, err := testHandler(t, memstore.New(nil))(t.Context(), json.RawMessage(good))
	require.NoError(t, err)
	const input = `"{\"key\": \"account/7\"}"`
	for _, c := range []struct{ of, is, want string }{
		{"aws.states", "aws.s3", `source: is "aws.s3"; want "aws.states"`},
		{"Step Functions Execution Status Change", "Object Created", `detail-type: is "Object Created"`},
		{"ABORTED", "RUNNING", `detail.status: is "RUNNING"`}, // it keeps its lock
		{"ABORTED", "SUCCEEDED", `detail.status: is "SUCCEEDED"`},
		{"arn:aws:states:eu-central-1:123456789012:execution:payout:one", "one", `detail.executionArn: is "one"`},
		{`"redriveCount": 0`, `"redriveCount": null`, "detail.redriveCount: want a whole number"},
		{`"redriveCount": 0`, `"redriveCount": -1`, "detail.redriveCount: want a whole number"},
		{input, `null`, "detail.input: is missing"},
		{input, `{"key": "a"}`, "event: json: cannot unmarshal object"},
	} {
		require.Contains(t, good, c.of)
		refused(t, strings.Replace(good, c.of, c.is, 1), c.want)
	}
}

// An execution that was started with a wrong input has had no lock. Its end is a line of the log: an error would be sent
// again until it lies in EndedFailures, whose alarm would hide the next one that does matter.
func TestEndOfAnExecutionWithoutAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewJSONHandler(&log, nil)))
		defer slog.SetDefault(before)
		c := caller{handle: testHandler(t, memstore.New(nil)), name: "one"}
		for _, it := range []struct {
			input any
			want  string
		}{
			{[]any{}, "want a JSON object"}, {map[string]any{}, "has no string key"}, {map[string]any{"key": 7}, "has no string key"},
			{map[string]any{"key": ""}, "Key is empty"}, {map[string]any{"key": strings.Repeat("k", lockstore.MaxKeyBytes+1)}, "Key has 1025 bytes"},
		} {
			log.Reset()
			_, err := c.send(t, event(t, c.arn(), "FAILED", 0, it.input))
			require.NoError(t, err, it.want)
			var line map[string]any
			require.NoError(t, json.Unmarshal(log.Bytes(), &line), log.String())
			require.Equal(t, []any{"nothing to abandon", "WARN", c.arn()}, []any{line["msg"], line["level"], line["execution"]})
			require.Contains(t, line["error"], it.want)
		}
	})
}

// refused checks that the input is a *guard.LockBadRequest that says what is wrong.
func refused(t *testing.T, in, want string) {
	t.Helper()
	_, err := testHandler(t, memstore.New(nil))(t.Context(), json.RawMessage(in))
	require.ErrorContains(t, err, want, "%.200s", in)
	require.NotContains(t, err.Error(), "hidden words")
	require.IsType(t, &guard.LockBadRequest{}, err, "%.200s", in)
	require.ErrorIs(t, err, lockstore.ErrInvalid)
	require.Less(t, len(err.Error()), 3*lockstore.MaxKeyBytes)
}
