package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/sqsbatch"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// The test binary is also the function that the tests run as a process.
func TestMain(m *testing.M) {
	functest.Main(m, os.Getenv(functest.GateVariable), func(g *guard.Guard, ledger *accounts.Ledger) {
		work := handle(ledger)
		boot.Start(g, sqsbatch.Wrap(g, key, func(ctx context.Context, lock guard.Lock, m events.SQSMessage) error {
			fmt.Println("granted", lock.Key, int64(lock.Fence))
			return work(ctx, lock, m)
		}))
	})
}

func TestProcesses(t *testing.T) {
	functest.OnRedis(t, map[string]func(*testing.T, *functest.Target){
		"F72 several keys, partial failure":             partialFailure,
		"F72 one message outlives the time":             outlivesTheTime,
		"F01 F03 killed in the middle, delivered again": killedInTheMiddle,
		"F64 the same batch again while the first runs": sameBatchAgain,
	})
}

// batch has a message of 500 cents for each pair of account and id; the message
// is called after its id.
func batch(pairs ...string) events.SQSEvent {
	var e events.SQSEvent
	for i := 0; i < len(pairs); i += 2 {
		e.Records = append(e.Records, events.SQSMessage{
			MessageId:      "m-" + pairs[i+1],
			Body:           fmt.Sprintf(`{"account": %q, "id": %q, "amount": 500}`, pairs[i], pairs[i+1]),
			EventSource:    "aws:sqs",
			EventSourceARN: "arn:aws:sqs:eu-central-1:123456789012:settlements",
		})
	}
	return e
}

// failed are the messages that the function's answer names.
func failed(t *testing.T, r lambdatest.Result) []string {
	t.Helper()
	require.Empty(t, r.ErrorType, r.ErrorMessage)
	var response events.SQSEventResponse
	require.NoError(t, json.Unmarshal(r.Payload, &response))
	require.NotNil(t, response.BatchItemFailures, "%s", r.Payload)
	ids := []string{}
	for _, f := range response.BatchItemFailures {
		ids = append(ids, f.ItemIdentifier)
	}
	return ids
}

// free checks that another environment gets the locks of the accounts at once,
// with larger fences than the environments before.
func free(t *testing.T, s *functest.Target, before *lambdatest.Environment, names ...string) {
	t.Helper()
	var pairs []string
	for _, account := range names {
		pairs = append(pairs, account, "free-"+account)
	}
	e := s.Start(lambdatest.Config{Name: "settle"})
	require.Empty(t, failed(t, s.Send(e, batch(pairs...), "")))
	for _, account := range names {
		k := accounts.Key(account)
		after := s.Fences(e, k)
		require.Len(t, after, 1)
		for _, fence := range s.Fences(before, k) {
			assert.Greater(t, after[0], fence)
		}
	}
}

func partialFailure(t *testing.T, s *functest.Target) {
	s.Open("a", "b", "c")
	e := s.Start(lambdatest.Config{Name: "settle"})
	r := s.Send(e, batch("a", "s-1", "b", "panic-1", "absent", "s-2", "c", "s-3", "a/b", "s-4", "b", "s-5", "a", "s-6"), "")
	require.Equal(t, []string{"m-panic-1", "m-s-2", "m-s-4"}, failed(t, r), "only what failed, in the batch's order")
	assert.EqualValues(t, 1000, s.Withdrawn("a"))
	assert.EqualValues(t, 500, s.Withdrawn("b"), "a panic in one message does not stop the next")
	assert.EqualValues(t, 500, s.Withdrawn("c"))
	fences := s.Fences(e, accounts.Key("a"))
	require.Len(t, fences, 2)
	assert.Equal(t, fences[0], fences[1], "one lock for both messages of an account")
	assert.Equal(t, 1, e.Started())
	free(t, s, e, "a", "b", "c")
}

func outlivesTheTime(t *testing.T, s *functest.Target) {
	s.Open("a", "wait-b")
	e := s.Start(lambdatest.Config{Name: "settle", Timeout: 3 * time.Second}, "LOCK_DEADLINE_MARGIN=1s")
	r := s.Send(e, batch("a", "s-1", "wait-b", "s-2", "wait-b", "s-3"), "")
	require.Equal(t, []string{"m-s-2", "m-s-3"}, failed(t, r), "the answer comes before the timeout")
	assert.EqualValues(t, 500, s.Withdrawn("a"))
	assert.Zero(t, s.Withdrawn("wait-b"))
	s.OpenGate()
	free(t, s, e, "a", "wait-b")
}

func killedInTheMiddle(t *testing.T, s *functest.Target) {
	s.Open("a")
	messages := batch("a", "s-1", "a", "wait-2", "a", "s-3")
	e := s.Start(lambdatest.Config{Name: "settle"})
	again := s.Start(lambdatest.Config{Name: "settle"})
	patient := s.Start(lambdatest.Config{Name: "settle"}, functest.Patient)
	first := s.Sending(e, messages, "")
	s.At(e, "paying a wait-2")
	require.NoError(t, e.Kill())
	died := time.Now()
	require.Equal(t, lambdatest.ErrorExit, first().ErrorType)
	require.EqualValues(t, 500, s.Withdrawn("a"))

	s.OpenGate()
	require.Equal(t, []string{"m-s-1", "m-wait-2", "m-s-3"}, failed(t, s.Send(again, messages, "")), "until its lease ends, others see it held")
	require.Empty(t, failed(t, s.Send(patient, messages, "")))
	assert.Less(t, time.Since(died), s.TTL+functest.Slack)
	assert.EqualValues(t, 1500, s.Withdrawn("a"), "each withdrawn once")
	assert.Greater(t, s.Fences(patient, accounts.Key("a"))[0], s.Fences(e, accounts.Key("a"))[0])
	assert.Empty(t, s.Fences(again, accounts.Key("a")))
	t.Logf("taken over %v after the end, TTL %v", time.Since(died).Round(time.Millisecond), s.TTL)
}

func sameBatchAgain(t *testing.T, s *functest.Target) {
	s.Open("a", "b")
	messages := batch("a", "s-1", "a", "wait-2", "b", "s-3")
	e := s.Start(lambdatest.Config{Name: "settle"})
	first := s.Sending(e, messages, "the-same")
	s.At(e, "paying a wait-2")
	other := s.Start(lambdatest.Config{Name: "settle"}, "LOCK_WAIT=1s")
	require.Equal(t, []string{"m-s-1", "m-wait-2"}, failed(t, s.Send(other, messages, "the-same")), "the same request id is no reason to share")
	s.OpenGate()
	require.Empty(t, failed(t, first()))
	require.Empty(t, failed(t, s.Send(other, messages, "the-same")))
	assert.EqualValues(t, 1000, s.Withdrawn("a"), "each withdrawn once")
	assert.EqualValues(t, 500, s.Withdrawn("b"), "withdrawn once")
}
