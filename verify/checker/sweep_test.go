package checker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script reads lines such as
//
//	acquire a 5 ok 0 10 100      owner a, fence 5, from 0 to 10 ms, TTL and trust 100 ms
//	acquire a 5 ok 0 10 100 1/2  the same with seat 1 and MaxHolders 2
//	complete a 5 ok 20 30 100 x  with the result x
//
// An underscore stands for a space.
func script(t *testing.T, text string) (ops []Op) {
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		op := Op{Client: i, Key: "k"}
		var call, ret, ttl int
		var kind, outcome string
		_, err := fmt.Sscan(line, &kind, &op.Owner, &op.Fence, &outcome, &call, &ret, &ttl)
		require.NoError(t, err, line)
		op.Kind, op.Outcome = Kind(strings.ReplaceAll(kind, "_", " ")), Outcome(strings.ReplaceAll(outcome, "_", " "))
		op.Call, op.Return, op.TTL = time.Duration(call)*time.Millisecond, time.Duration(ret)*time.Millisecond, time.Duration(ttl)*time.Millisecond
		if op.Outcome == OK && (op.Kind == Acquire || op.Kind == Renew) {
			op.Trust = op.TTL
		}
		if fields := strings.Fields(line); len(fields) > 7 {
			if n, _ := fmt.Sscanf(fields[7], "%d/%d", &op.Seat, &op.Most); n < 2 {
				op.Data = fields[7]
			}
		}
		ops = append(ops, op)
	}
	return ops
}

// A Resolve that comes after a Release has nothing to do, also if it was sent before.
func TestResolveBesideARelease(t *testing.T) {
	require.Empty(t, Sweep(script(t, `
acquire a 5 ok 0 10 100
resolve - 5 ok 40 70 0
release a 5 ok 50 60 0`), Limits{Early: time.Millisecond, Late: 5 * time.Millisecond, Refusals: true}))
}

// The sweep finds nothing in the right histories of TestControls.
func TestSweep(t *testing.T) {
	limits := Limits{Early: time.Millisecond, Late: 5 * time.Millisecond, Refusals: true}
	for _, c := range []struct {
		name, history string
		want          string // how the only violation begins
	}{
		{"taken from a live holder", `
acquire a 5 ok 0 10 100
acquire b 6 ok 20 30 100`, "2 trusted the key, and 1 may"},
		{"trust that reaches past another's grant", `
acquire a 5 ok 0 10 100
renew a 5 ok 90 100 100
acquire b 6 ok 120 130 100`, "2 trusted the key, and 1 may"},
		{"released by a stranger", `
acquire a 5 ok 0 10 100
release b 5 ok 20 30 0
acquire c 6 ok 40 50 100`, "2 trusted the key, and 1 may"},
		{"a smaller fence", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 4 ok 40 50 100`, "the fence did not grow"},
		{"the same fence for two", `
acquire a 5 ok 0 10 1
acquire b 5 ok 5 15 100`, "two have the same fence"},
		{"a holder loses its lease", `
acquire a 5 ok 0 10 100
mark_started a 5 lost 20 30 0`, "a holder was told to have no lease 70ms before"},
		{"a lost acquire took it from a live holder", `
acquire a 5 ok 0 10 100
acquire b 0 unknown 20 30 100
renew a 5 lost 40 50 100`, "a holder was told to have no lease 50ms before"},
		{"renewed by nobody", `
renew b 5 ok 32 35 100`, "a renewal without a lease"},
		{"renewed after another has had the key", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 110 100
release b 6 ok 112 115 0
renew a 5 ok 120 130 100`, "2 trusted the key, and 1 may"},
		{"a lost reply, and abandoned", `
acquire a 0 unknown 0 10 100
acquire b 0 busy 20 30 100
abandon a 0 ok 40 50 0
acquire b 0 busy 60 70 100`, "refused, and only 0 of 1"},
		{"its own repeat reads as busy", `
acquire a 0 unknown 0 10 100
acquire a 0 busy 20 30 100`, "refused, and only 0 of 1"},
		{"busy after the end of a lease", `
acquire a 5 ok 0 10 100
acquire b 0 busy 120 130 100`, "refused, and only 0 of 1"},
		{"a failure is told as busy", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 0 busy 40 50 100`, "refused, and only 0 of 1"},
		{"corrupt", `
acquire a 0 invalid 0 10 100`, "an answer that no request may get"},
		{"the store forgets before both are granted", `
forget - 0 ok 0 2 0
acquire a 5 ok 5 40 100
acquire b 6 ok 20 30 100`, "2 trusted the key, and 1 may"},
		{"the store forgets, but not yet", `
acquire a 5 ok 0 10 100
acquire b 6 ok 30 40 100
forget - 0 ok 45 50 0`, "2 trusted the key, and 1 may"},
		{"stored, and open too early", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 6 ok 60 70 100`, "the key was not shut"},
		{"stored, and told after its time", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 0 completed 140 150 100 x`, "a result was told after its time"},
		{"a result that nobody stored", `
acquire b 0 completed 140 150 100 x`, "a result that nobody stored"},
		{"started, and taken over", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
acquire b 6 ok 110 120 100`, "the key was not shut"},
		{"in doubt, and nobody had started", `
acquire a 5 ok 0 10 100
acquire b 0 in_doubt 105 108 100`, "in doubt, and no work is under way"},
		{"in doubt after the end of the work", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
complete a 5 ok 40 50 0
acquire b 0 in_doubt 105 108 100`, "in doubt, and no work is under way"},
		{"resolved while its owner is at work", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
resolve - 5 ok 40 50 0`, "resolved before the end of the trust"},
		{"resolved before its owner ends its lease", `
acquire a 5 ok 0 10 100
resolve - 5 ok 40 50 0
release a 5 ok 60 70 0`, "resolved before the end of the trust"},
		{"released after another has had the key", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 115 100
release a 5 ok 120 130 0`, "an end was confirmed after another"},
		{"completed after another has had the key", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 115 100
complete a 5 ok 120 130 0`, "an end was confirmed after another"},
		{"one too many", `
acquire a 5 ok 0 2 100 0/2
acquire b 6 ok 10 12 100 1/2
acquire c 7 ok 20 22 100 2/2`, "3 trusted the key, and 2 may"},
		{"a reader beside a writer", `
acquire w 5 ok 0 2 100 0/1
acquire a 6 ok 10 12 100 1/64`, "2 trusted the key, and 1 may"},
		{"one seat for two", `
acquire a 5 ok 0 2 100 0/2
acquire b 6 ok 10 12 100 0/2`, "two have the same seat"},
		{"refused after a release", `
acquire a 5 ok 0 2 100 0/2
acquire b 6 ok 10 12 100 1/2
release a 5 ok 20 22 0
acquire c 0 busy 23 25 100 0/2`, "refused, and only 1 of 2"},
		{"stored, and handed over", `
acquire a 5 ok 0 10 100
acquire b 0 busy 20 25 100
complete a 5 ok 30 40 100 x
acquire b 6 ok 26 60 100`, "the key was not shut"},
		{"started, and handed over", `
acquire a 5 ok 0 10 100
acquire b 0 busy 11 11 100
mark_started a 5 ok 12 13 0
acquire b 6 ok 12 115 200`, "the key was not shut"},
		{"a smaller fence of one that waited", `
acquire a 5 ok 0 10 100
acquire b 0 busy 12 13 100
acquire c 0 busy 14 15 100
release a 5 ok 20 25 0
acquire b 9 ok 16 30 100
release b 9 ok 40 45 0
acquire c 6 ok 27 60 100`, "the fence did not grow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			violations := Sweep(script(t, c.history), limits)
			require.Len(t, violations, 1)
			require.True(t, strings.HasPrefix(violations[0], c.want), violations[0])
		})
	}
}

// A refusal proves nothing where a client repeats requests, or where they come late.
func TestRefusals(t *testing.T) {
	refusal := script(t, "acquire a 0 busy 0 10 100")
	require.Len(t, Sweep(refusal, Limits{Refusals: true}), 1)
	require.Empty(t, Sweep(refusal, Limits{}))
}
