package lockstore_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// refuses wants a call that sends nothing, because of a field.
func refuses(t *testing.T, field, says string, do func(*lockstore.Store) error) {
	t.Helper()
	f := &fake{}
	err := do(lockstore.New("fake", f))
	requireInvalid(t, err, field)
	assert.ErrorContains(t, err, says)
	assert.NotContains(t, strings.ReplaceAll(err.Error(), "it is a secret", ""), "secret")
	assert.Zero(t, f.calls)
}

// Each method checks its arguments before it sends anything. What is wrong with a key, see TestValidateKey.
func TestArguments(t *testing.T) {
	operators := []string{"Inspect", "Revoke", "ResolveEffect", "ResolveNoEffect"}
	for _, c := range calls {
		t.Run("F48 F52 "+c.name, func(t *testing.T) {
			fails := func(field, says string, l lockstore.Lease) {
				t.Helper()
				refuses(t, field, says, func(s *lockstore.Store) error { return c.do(t.Context(), s, l) })
			}
			fails("Key", "control character", lockstore.Lease{Key: "a\nb", Owner: "o", Fence: 7})
			if !slices.Contains(operators, c.name) {
				fails("Owner", "byte at 1", lockstore.Lease{Key: "k", Owner: "a b", Fence: 7})
			}
			for _, fence := range []lockstore.Fence{0, -1, math.MinInt64} {
				switch c.name {
				case "Renew":
					fails("Fence", "want 0 or more", lockstore.Lease{Key: "k", Owner: "o", Fence: min(-1, fence)})
				case "Extend", "Release", "MarkStarted", "Complete", "Revoke", "ResolveEffect", "ResolveNoEffect":
					fails("Fence", "", lockstore.Lease{Key: "k", Owner: "o", Fence: fence})
				}
			}
		})
	}
	const result = "the time of the result"
	for what, c := range map[string]struct {
		field, says string
		most        time.Duration
		do          func(*lockstore.Store, time.Duration) error
	}{
		"F48 M39 Acquire": {"TTL", "want 1s to 24h0m0s", lockstore.MaxTTL, func(s *lockstore.Store, d time.Duration) error {
			return alone(s.Acquire(t.Context(), lockstore.Request{Key: "k", Owner: "o", TTL: d}))
		}},
		"F48 M39 Renew": {"TTL", "want 1s to 24h0m0s", lockstore.MaxTTL, func(s *lockstore.Store, d time.Duration) error { return alone(s.Renew(t.Context(), good, d)) }},
		"F48 Complete": {result, "want 1s to 744h0m0s", lockstore.MaxResultTime, func(s *lockstore.Store, d time.Duration) error {
			return s.Complete(t.Context(), good, nil, d)
		}},
		"F48 ResolveEffect": {result, "want 1s to 744h0m0s", lockstore.MaxResultTime, func(s *lockstore.Store, d time.Duration) error {
			return s.ResolveEffect(t.Context(), "k", 7, nil, d)
		}},
	} {
		t.Run("the time of "+what, func(t *testing.T) {
			for _, d := range []time.Duration{0, -time.Second, lockstore.MinTTL - 1, c.most + 1, math.MaxInt64, math.MinInt64} {
				refuses(t, c.field, c.says, func(s *lockstore.Store) error { return c.do(s, d) })
			}
		})
	}
	t.Run("F48 a result that is too large", func(t *testing.T) {
		large := make([]byte, lockstore.MaxResultBytes+1)
		refuses(t, "Result", "", func(s *lockstore.Store) error { return s.Complete(t.Context(), good, large, time.Minute) })
		refuses(t, "Result", "", func(s *lockstore.Store) error { return s.ResolveEffect(t.Context(), "k", 7, large, time.Minute) })
		s := lockstore.New("fake", &fake{answer: driver.Answer{Outcome: driver.Done}})
		require.NoError(t, s.Complete(t.Context(), good, large[1:], time.Minute))
	})
}

func TestRequest(t *testing.T) {
	good := lockstore.Request{Key: "k", Owner: "o", TTL: time.Minute}
	largest := lockstore.Request{
		Key: "k", Owner: lockstore.Owner(strings.Repeat("~", 64)), TTL: time.Minute, MaxHolders: 32, JoinQueue: true, Parked: lockstore.MaxParkedTurn, Address: lockstore.TaskToken(strings.Repeat("s", 2048)),
		Work: strings.Repeat("~", 64), Event: strings.Repeat("é", 10_000),
	}
	s := lockstore.New("fake", &parker{fake: &fake{answer: driver.Answer{Outcome: driver.Granted, Fence: 7}}})
	_, err := s.Acquire(t.Context(), largest)
	require.NoError(t, err)
	largest.Parked = lockstore.TurnTime
	_, err = s.Acquire(t.Context(), largest)
	require.NoError(t, err)
	parks := func(turn time.Duration, join bool, address lockstore.WakeAddress) lockstore.Request {
		r := good
		r.Parked, r.JoinQueue, r.Address = turn, join, address
		return r
	}
	owner := func(o string) lockstore.Request { r := good; r.Owner = lockstore.Owner(o); return r }
	sharing := func(most int) lockstore.Request { r := good; r.MaxHolders = most; return r }
	coalesces := func(work, event string, join bool) lockstore.Request {
		r := good
		r.Work, r.Event, r.JoinQueue = work, event, join
		return r
	}
	token := func(text string) lockstore.Request {
		return parks(lockstore.MaxParkedTurn, true, lockstore.TaskToken(text))
	}
	for name, c := range map[string]struct {
		field, says string
		request     lockstore.Request
	}{
		"no owner":       {"Owner", "has 0 bytes; want 1 to 64", owner("")},
		"long owner":     {"Owner", "has 65 bytes", owner(strings.Repeat("o", 65))},
		"space in owner": {"Owner", "byte at 1 that is not printable ASCII", owner("a b")},
		"é in owner":     {"Owner", "byte at 0", owner("é")},
		"MaxHolders -1":  {"MaxHolders", "is -1; want 1 to 32", sharing(-1)},
		"MaxHolders 33":  {"MaxHolders", "is 33; want 1 to 32", sharing(33)},

		"a work without an event":   {"Work", `is "index" without Event`, coalesces("index", "", true)},
		"an event without a work":   {"Work", `is ""; want 1 to 64`, coalesces("", "1", true)},
		"a work without JoinQueue":  {"Work", `is "index" without JoinQueue`, coalesces("index", "1", false)},
		"a space in a work":         {"Work", `is "a b"; want 1 to 64 characters of printable ASCII without spaces`, coalesces("a b", "1", true)},
		"a work that is not ASCII":  {"Work", `is "é"; want`, coalesces("é", "1", true)},
		"a work that is too long":   {"Work", "want 1 to 64", coalesces(strings.Repeat("w", 65), "1", true)},
		"a work of control letters": {"Work", "want 1 to 64", coalesces("a\x03b", "1", true)},

		"parked for less than a turn":        {"Parked", "is 1.999999999s; want 2s to 30s", parks(lockstore.TurnTime-1, true, lockstore.TaskToken("t"))},
		"parked for more than MaxParkedTurn": {"Parked", "is 30.000000001s; want", parks(lockstore.MaxParkedTurn+1, true, lockstore.TaskToken("t"))},
		"parked for less than 0":             {"Parked", "is -1ns; want", parks(-1, true, lockstore.TaskToken("t"))},
		"an address, and not parked":         {"Parked", "is 0s; want", parks(0, true, lockstore.TaskToken("t"))},
		"parked without JoinQueue":           {"Parked", "without JoinQueue", parks(lockstore.MaxParkedTurn, false, lockstore.TaskToken("t"))},
		"parked without an address":          {"Address", "of no kind", parks(lockstore.MaxParkedTurn, true, "")},
		"an address of another kind":         {"Address", "of no kind", parks(lockstore.MaxParkedTurn, true, "https://secret")},
		"an address without a token":         {"Address", "0 bytes", token("")},
		"an address that is too long":        {"Address", "2052 bytes", token(strings.Repeat("secret", 342))},
		"a space in an address":              {"Address", "byte at 1 ", token("a secret")},
		"an address that is not ASCII":       {"Address", "byte at 6 ", token("secreté")},
		"a control character in an address":  {"Address", "byte at 6 ", token("secret\n")},
	} {
		t.Run("F48 "+name, func(t *testing.T) {
			refuses(t, c.field, c.says, func(s *lockstore.Store) error { return alone(s.Acquire(t.Context(), c.request)) })
		})
	}
}
