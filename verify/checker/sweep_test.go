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
//	acquire a 5 ok 0 10 100 1/2w the same with seat 1, MaxHolders 2 and a place in the queue
//	complete a 5 ok 20 30 100 x  with the result x
//
// An underscore stands for a space. An owner has its seat also when it writes.
func script(t *testing.T, text string) (ops []Op) {
	seats := map[string]int{}
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
			if n, _ := fmt.Sscanf(fields[7], "%d/%d", &op.Seat, &op.Most); n == 2 {
				op.Waits, seats[op.Owner] = strings.HasSuffix(fields[7], "w"), op.Seat
			} else {
				op.Data = fields[7]
			}
		}
		op.Seat = seats[op.Owner]
		ops = append(ops, op)
	}
	return ops
}

func TestSweep(t *testing.T) {
	limits := Limits{Early: time.Millisecond, Late: 5 * time.Millisecond, Refusals: true}
	for _, c := range []struct {
		name, history string
		want          string // how the only violation begins; "" is none
	}{
		{"in turn", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 6 ok 40 50 100`, ""},
		{"busy while held", `
acquire a 5 ok 0 10 100
acquire b 0 busy 20 30 100`, ""},

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
		{"abandoned before it was told", `
acquire a 0 unknown 0 10 100
acquire a 5 ok 15 60 100
abandon a 0 ok 20 30 0
acquire b 6 ok 61 70 100`, ""},

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
		{"revoked, and its release opens the key", `
acquire a 5 ok 0 10 100
revoke - 5 lost 20 30 0
renew a 5 lost 32 38 100
release a 5 lost 40 50 0
acquire b 6 ok 60 70 100`, ""},
		{"lost after its end", `
acquire a 5 ok 0 10 100
release a 5 unknown 20 30 0
acquire b 6 ok 40 50 100
release a 5 lost 51 52 0`, ""},
		{"renewed by nobody", `
renew b 5 ok 32 35 100`, "a renewal without a lease"},
		{"renewed after another has had the key", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 110 100
release b 6 ok 112 115 0
renew a 5 ok 120 130 100`, "2 trusted the key, and 1 may"},

		{"a lost reply, and the same lease again", `
acquire a 0 unknown 0 10 100
acquire b 0 busy 20 30 100
acquire a 5 ok 40 50 100
renew a 5 ok 60 70 100
acquire b 0 busy 160 165 100`, ""},
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
		{"a release that got no answer", `
acquire a 5 ok 0 10 100
release a 5 unknown 20 30 0
acquire b 0 busy 40 50 100`, ""},

		{"corrupt", `
acquire a 0 invalid 0 10 100`, "an answer that no request may get"},

		{"a write is refused that comes too late", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 115 100
write b 6 ok 120 120 0
write a 5 lost 130 130 0`, ""},
		{"a write is accepted that comes too late", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 115 100
write b 6 ok 120 120 0
write a 5 ok 130 130 0`, "a stale write was accepted"},
		{"the store forgets a lease", `
acquire a 5 ok 0 10 100
forget - 0 ok 15 25 0
acquire b 6 ok 30 40 100
renew a 5 lost 50 60 100`, ""},
		{"the store forgets before both are granted", `
forget - 0 ok 0 2 0
acquire a 5 ok 5 40 100
acquire b 6 ok 20 30 100`, "2 trusted the key, and 1 may"},
		{"the store forgets, but not yet", `
acquire a 5 ok 0 10 100
acquire b 6 ok 30 40 100
forget - 0 ok 45 50 0`, "2 trusted the key, and 1 may"},
		{"a replica does not know what was renewed after it was cut off", `
acquire a 5 ok 0 10 100
cutoff - 0 ok 15 16 0
renew a 5 ok 60 65 100
promote - 0 ok 70 75 0
acquire b 6 ok 105 110 100`, ""},

		{"stored, told, and open again", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 0 completed 40 50 100 x
acquire c 6 ok 125 135 100`, ""},
		{"stored, and open too early", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 6 ok 60 70 100`, "the key was not shut"},
		{"stored, and told after its time", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 0 completed 140 150 100 x`, "a result was told after its time"},
		{"stored late", `
acquire a 5 ok 0 10 100
complete a 5 unknown 20 30 100 x
acquire b 0 completed 140 150 100 x`, ""},
		{"a result that nobody stored", `
acquire b 0 completed 140 150 100 x`, "a result that nobody stored"},
		{"started, in doubt, and resolved with a result", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
acquire b 0 in_doubt 105 108 100
resolve - 5 ok 110 120 100 x
acquire b 0 completed 130 140 100 x
acquire c 6 ok 225 235 100`, ""},
		{"started, and taken over", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
acquire b 6 ok 110 120 100`, "the key was not shut"},
		{"started, and released", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
release a 5 unknown 32 35 0
acquire b 6 ok 40 50 100`, ""},
		{"in doubt, and nobody had started", `
acquire a 5 ok 0 10 100
acquire b 0 in_doubt 105 108 100`, "in doubt, and no work is under way"},
		{"in doubt after the end of the work", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
complete a 5 ok 40 50 0
acquire b 0 in_doubt 105 108 100`, "in doubt, and no work is under way"},
		{"in doubt, and the end got no answer", `
acquire a 5 ok 0 10 100
mark_started a 5 unknown 20 30 0
complete a 5 unknown 40 50 0
acquire b 0 in_doubt 105 108 100`, ""},
		{"resolved while its owner is at work", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
resolve - 5 ok 40 50 0`, "resolved before the end of the trust"},
		{"revoked, and resolved", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
revoke - 5 ok 32 35 0
resolve - 5 ok 40 50 0`, ""},

		{"released after another has had the key", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 115 100
release a 5 ok 120 130 0`, "an end was confirmed after another"},
		{"completed after another has had the key", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 115 100
complete a 5 ok 120 130 0`, "an end was confirmed after another"},
		{"resolved, and released after another has had the key", `
acquire a 5 ok 0 10 100
mark_started a 5 ok 20 30 0
resolve - 5 ok 105 106 0
acquire b 6 ok 110 115 100
release a 5 ok 120 130 0`, ""},
		{"released again", `
acquire a 5 ok 0 10 100
release a 5 unknown 20 30 0
acquire b 6 ok 105 115 100
release a 5 ok 120 130 0`, ""},

		{"two at once, and a seat that comes back", `
acquire a 5 ok 0 2 100 0/2
acquire b 6 ok 10 12 100 1/2
acquire c 0 busy 20 22 100 0/2
release a 5 ok 30 32 0
acquire d 7 ok 40 42 100 0/2`, ""},
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
		{"refused for one that waits", `
acquire a 5 ok 0 2 100 0/2
acquire b 0 busy 10 12 100 0/1w
acquire c 0 busy 20 22 100 0/2`, ""},
		{"two that were handed the key learn of it in the other order", `
acquire w 5 ok 0 2 100 0/1
acquire a 0 busy 10 12 100 0/64w
acquire b 0 busy 13 15 100 1/64w
release w 5 ok 20 22 0
acquire b 7 ok 30 32 100 1/0w
acquire a 6 ok 33 35 100 0/0w`, ""},
		{"a stale write of one seat", `
acquire a 5 ok 0 2 10 0/2
acquire b 6 ok 20 22 100 0/2
write b 6 ok 30 30 0
write a 5 ok 40 40 0`, "a stale write was accepted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			violations := Sweep(script(t, c.history), limits)
			if c.want == "" {
				require.Empty(t, violations)
				return
			}
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
