package functest

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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/boot"
	"github.com/lambdalock/lambdalock/functions/internal/accounts"
	"github.com/lambdalock/lambdalock/guard"
	"github.com/lambdalock/lambdalock/lambdatest"
	"github.com/lambdalock/lambdalock/lockstore/dynamostore"
	"github.com/lambdalock/lambdalock/lockstore/redisstore"
)

// GateVariable makes a test binary the function, with the payment of pay.
const GateVariable = "FUNCTION_TEST_GATE"

const (
	// Slack is for a machine that is busy with something else: a poll of a waiter
	// (up to 1 s) and the processes themselves.
	Slack = 3 * time.Second
	// Patient waits for a lock longer than any test lets another have it.
	Patient = "LOCK_WAIT=15s"
)

// Main is TestMain of a function. gate is the value of GateVariable: where it is
// set, the process is the function on its real stores, with the payment of pay.
func Main(m *testing.M, gate string, function func(*guard.Guard, *accounts.Ledger)) {
	if gate == "" {
		os.Exit(m.Run())
	}
	g := boot.MustGuardFromEnv(dynamostore.Opener, redisstore.Opener)
	ledger := boot.Must(accounts.Open(boot.MustURLFromEnv("ACCOUNTS_URL"), boot.Getenv))
	ledger.Pay = pay(gate)
	function(g, ledger)
}

// pay is a payment that says where it is and does what the account or the id begins
// with: wait waits for the gate or the end of its context. By the id alone, panic
// panics, hang never returns, and exit ends the process.
func pay(gate string) func(context.Context, accounts.Withdrawal) error {
	return func(ctx context.Context, w accounts.Withdrawal) error {
		fmt.Println("paying", w.Account, w.ID)
		switch {
		case strings.HasPrefix(w.Account, "wait"), strings.HasPrefix(w.ID, "wait"):
			for _, err := os.Stat(gate); err != nil; _, err = os.Stat(gate) {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(5 * time.Millisecond):
				}
			}
		case strings.HasPrefix(w.ID, "panic"):
			panic("no such card")
		case strings.HasPrefix(w.ID, "hang"):
			select {}
		case strings.HasPrefix(w.ID, "exit"):
			os.Exit(3)
		}
		return nil
	}
}

// Target is a store without locks and accounts, and what processes that use it have
// in their environment.
type Target struct {
	Ledger *accounts.Ledger
	TTL    time.Duration // how long a dead process keeps its locks

	t      *testing.T
	ctx    context.Context
	env    []string
	gate   string
	refuse func(bool)
}

// ttl is each lease's. A lease is trusted for less than that, and a process on a busy machine
// needs what is left.
const ttl = 5 * time.Second

// OnRedis runs each case on a Redis of its own.
func OnRedis(t *testing.T, cases map[string]func(*testing.T, *Target)) {
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			t.Cleanup(cancel)
			m := miniredis.RunT(t)
			at, gate := "redis://"+m.Addr(), filepath.Join(t.TempDir(), "gate")
			refuse := func(on bool) { m.RequireAuth(map[bool]string{true: "another token"}[on]) }
			run(t, &Target{Ledger: openLedger(t, at), TTL: ttl, t: t, ctx: ctx, gate: gate, refuse: refuse, env: []string{
				"LOCK_URL=" + at, "ACCOUNTS_URL=" + at, "LOCK_TTL=" + ttl.String(), GateVariable + "=" + gate,
			}})
		})
	}
}

func openLedger(t *testing.T, rawURL string) *accounts.Ledger {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	ledger, err := accounts.Open(u, func(string) string { return "local" })
	require.NoError(t, err)
	return ledger
}

// Context bounds the case to a minute.
func (s *Target) Context() context.Context { return s.ctx }

// Open makes accounts with the balance Opening.
func (s *Target) Open(names ...string) {
	s.t.Helper()
	for _, account := range names {
		require.NoError(s.t, s.Ledger.Create(s.ctx, account, Opening))
	}
}

// Withdrawn is how much was withdrawn from an account.
func (s *Target) Withdrawn(account string) int64 {
	s.t.Helper()
	balance, err := s.Ledger.Balance(s.ctx, account)
	require.NoError(s.t, err)
	return Opening - balance
}

// OpenGate lets waiting payments go on.
func (s *Target) OpenGate() {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.gate, nil, 0o600))
}

// Refuse makes the Redis refuse all credentials from now on, or no more.
func (s *Target) Refuse(on bool) { s.refuse(on) }

// Start starts an environment of the function: of this test binary.
func (s *Target) Start(config lambdatest.Config, env ...string) *lambdatest.Environment {
	s.t.Helper()
	binary, err := os.Executable()
	require.NoError(s.t, err)
	config.Binary = binary
	config.Env = append(append([]string{}, s.env...), env...)
	if config.Timeout == 0 {
		config.Timeout = 30 * time.Second
	}
	e, err := lambdatest.Start(s.ctx, config)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { assert.NoError(s.t, e.Close()) })
	return e
}

// Send runs one invocation, with a new request id if the given one is "".
func (s *Target) Send(e *lambdatest.Environment, event any, id string) lambdatest.Result {
	s.t.Helper()
	payload, err := json.Marshal(event)
	require.NoError(s.t, err)
	r, err := e.Send(s.ctx, lambdatest.Event{Payload: payload, ID: id})
	assert.NoError(s.t, err)
	return r
}

// Sending is Send in the background; the func it returns waits for the answer.
func (s *Target) Sending(e *lambdatest.Environment, event any, id string) func() lambdatest.Result {
	var r lambdatest.Result
	var done sync.WaitGroup
	done.Go(func() { r = s.Send(e, event, id) })
	return func() lambdatest.Result { done.Wait(); return r }
}

// At waits until the process writes a line that begins so.
func (s *Target) At(e *lambdatest.Environment, begin string) {
	s.t.Helper()
	_, err := e.WaitLog(s.ctx, func(line string) bool { return strings.HasPrefix(line, begin) })
	require.NoError(s.t, err, "waiting for %q in %q", begin, e.Logs())
}

// Fences are those of all lines "granted KEY FENCE" of a key, oldest first.
func (s *Target) Fences(e *lambdatest.Environment, key string) []int64 {
	s.t.Helper()
	var all []int64
	for _, line := range e.Logs() {
		if rest, ok := strings.CutPrefix(line, "granted "+key+" "); ok {
			n, err := strconv.ParseInt(rest, 10, 64)
			require.NoError(s.t, err)
			all = append(all, n)
		}
	}
	return all
}
