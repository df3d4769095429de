package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/functions/internal/functest"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/guard/schedule"
	"github.com/lambdalock/lambdalock/lambdatest"
)

// The test binary is also the function that the tests run as a process.
func TestMain(m *testing.M) {
	functest.Main(m, os.Getenv(functest.GateVariable), func(g *guard.Guard, ledger *accounts.Ledger) {
		work := handle(g, ledger)
		boot.Start(g, schedule.Wrap(g, key, func(ctx context.Context, lock guard.Lock, e feeEvent) error {
			fmt.Println("granted", lock.Key, int64(lock.Fence))
			return work(ctx, lock, e)
		}))
	})
}

func TestProcesses(t *testing.T) {
	functest.OnRedis(t, map[string]func(*testing.T, *functest.Target){
		"F63 F03 killed while holding, tried again":         killedAndTriedAgain,
		"F64 a second trigger while the first run is at it": secondTrigger,
	})
}

// event charges 150 cents to the accounts a and wait-1, whose payment waits.
func event() feeEvent {
	e := feeEvent{Time: time.Date(2026, 11, 21, 22, 0, 0, 0, time.UTC)}
	e.Detail.Accounts, e.Detail.Fee = []string{"a", "wait-1"}, 150
	return e
}

// skipped is the answer of a run that found another at work, with that one's id.
func skipped(t *testing.T, r lambdatest.Result) string {
	t.Helper()
	require.Empty(t, r.ErrorType, r.ErrorMessage)
	var result struct {
		Skipped bool
		Holder  struct{ ID string }
	}
	require.NoError(t, json.Unmarshal(r.Payload, &result))
	require.True(t, result.Skipped)
	return result.Holder.ID
}

func killedAndTriedAgain(t *testing.T, s *functest.Target) {
	s.Open("a", "wait-1")
	e, other := s.Start(lambdatest.Config{Name: "nightly"}), s.Start(lambdatest.Config{Name: "nightly"})
	first := s.Sending(e, event(), "run-1")
	s.At(e, "paying wait-1")
	require.NoError(t, e.Kill())
	died := time.Now()
	require.Equal(t, lambdatest.ErrorExit, first().ErrorType)
	require.EqualValues(t, 150, s.Withdrawn("a"), "the run died in the middle")

	// Lambda tries again, with the same request id, in a new process.
	r := s.Send(e, event(), "run-1")
	require.Equal(t, "LockBusy", r.ErrorType, "a run does not skip on its own dead try: %s", r.Payload)
	require.Equal(t, "run-1", skipped(t, s.Send(other, event(), "run-2")), "to another run the dead one looks alive")
	s.OpenGate()
	require.Eventually(t, func() bool {
		r = s.Send(e, event(), "run-1")
		// The dead try also left the lock of the account it was at.
		return r.ErrorType != "LockBusy" && r.ErrorType != "NotCharged"
	}, s.TTL+functest.Slack, 50*time.Millisecond)
	require.JSONEq(t, `{"skipped": false}`, string(r.Payload))
	t.Logf("taken over %v after the end, TTL %v", time.Since(died).Round(time.Millisecond), s.TTL)

	assert.EqualValues(t, 150, s.Withdrawn("a"), "withdrawn once")
	assert.EqualValues(t, 150, s.Withdrawn("wait-1"))
	fences := s.Fences(e, key)
	require.GreaterOrEqual(t, len(fences), 2)
	for i := 1; i < len(fences); i++ {
		assert.Greater(t, fences[i], fences[i-1])
	}
	assert.Empty(t, s.Fences(other, key))
}

func secondTrigger(t *testing.T, s *functest.Target) {
	s.Open("a", "wait-1")
	e := s.Start(lambdatest.Config{Name: "nightly"})
	first := s.Sending(e, event(), "run-1")
	s.At(e, "paying wait-1")
	other := s.Start(lambdatest.Config{Name: "nightly"})
	require.Equal(t, "run-1", skipped(t, s.Send(other, event(), "run-2")))
	r := s.Send(other, event(), "run-1")
	require.Equal(t, "LockBusy", r.ErrorType, "the same event again: nobody knows that its first try lives")
	require.Empty(t, s.Fences(other, key), "no ownership is shared")

	s.OpenGate()
	require.JSONEq(t, `{"skipped": false}`, string(first().Payload))
	for _, id := range []string{"run-1", "run-2"} {
		require.JSONEq(t, `{"skipped": false}`, string(s.Send(other, event(), id).Payload), "the lock is free at once")
	}
	assert.EqualValues(t, 150, s.Withdrawn("a"), "withdrawn once")
	assert.EqualValues(t, 150, s.Withdrawn("wait-1"), "withdrawn once")
}
