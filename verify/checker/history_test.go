package checker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lambdalock/lambdalock/lockstore"
)

// script reads lines such as
//
//	acquire a 5 ok 0 10 100    owner a, fence 5, from 0 to 10 ms, TTL and trust 100 ms
//	keep a 5 ok 20 30 100 x    with the answer x
func script(t *testing.T, text string) (ops []Op) {
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var op Op
		var call, ret, ttl int
		_, err := fmt.Sscan(line, &op.Kind, &op.Owner, &op.Fence, &op.Outcome, &call, &ret, &ttl)
		require.NoError(t, err, line)
		if fields := strings.Fields(line); len(fields) > 7 {
			op.Data = fields[7]
		}
		op.Client, op.Key = i, "k"
		op.Call, op.Return = time.Duration(call)*time.Millisecond, time.Duration(ret)*time.Millisecond
		op.TTL = time.Duration(ttl) * time.Millisecond
		if op.Outcome == OK && (op.Kind == Acquire || op.Kind == Renew) {
			op.Trust = op.TTL
		}
		ops = append(ops, op)
	}
	return ops
}

func TestSweep(t *testing.T) {
	limits := Limits{Early: time.Millisecond, Late: 5 * time.Millisecond, Answer: 50 * time.Millisecond}
	for _, c := range []struct {
		name, history string
		want          string // of the only violation; "" is none
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
acquire b 6 ok 20 30 100`, "two trusted the key for 70ms"},
		{"two who looked at the same time", `
acquire a 5 ok 0 10 100
acquire b 6 ok 5 15 100`, "two trusted the key for 85ms"},
		{"trust that reaches past another's grant", `
acquire a 5 ok 0 10 100
renew a 5 ok 90 100 100
acquire b 6 ok 120 130 100`, "two trusted the key for 60ms"},
		{"released by a stranger", `
acquire a 5 ok 0 10 100
release b 5 ok 20 30 0
acquire c 6 ok 40 50 100`, "two trusted the key"},
		{"a smaller fence", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 4 ok 40 50 100`, "the fence did not grow"},
		{"the same fence for two at the same time", `
acquire a 5 ok 0 10 1
acquire b 5 ok 5 15 100`, "two have the same fence"},
		{"its own repeat reads as lost", `
acquire a 5 ok 0 10 100
acquire a 0 lost 20 30 100`, "a holder was told to have no lease 70ms before"},
		{"a lost acquire took it from a live holder", `
acquire a 5 ok 0 10 100
acquire b 0 unknown 20 30 100
renew a 5 lost 40 50 100`, "a holder was told to have no lease 50ms before"},

		{"another fence renews nothing", `
acquire a 5 ok 0 10 100
renew a 4 lost 20 30 100
release a 4 lost 20 30 100
renew a 5 ok 40 50 100`, ""},
		{"another fence renews", `
acquire a 5 ok 0 10 100
renew a 4 ok 20 30 100`, "another fence than that of the lease"},
		{"another fence, of an owner that has released", `
acquire a 5 ok 0 10 100
release a 5 ok 12 13 0
release a 4 ok 20 30 0`, ""},
		{"renewed after its end", `
acquire a 5 ok 0 10 100
renew a 5 ok 120 130 100`, "a renewal without a lease"},
		{"renewed by nobody", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
renew b 5 ok 32 35 100`, "a renewal without a lease"},
		{"renewed after a renewal that got no answer", `
acquire a 5 ok 0 10 100
renew a 5 unknown 90 100 100
renew a 5 ok 150 160 100`, ""},

		{"a lost reply, and the same lease again", `
acquire a 0 unknown 0 10 100
acquire b 0 busy 20 30 100
acquire a 5 ok 40 50 100
renew a 5 ok 60 70 100
acquire b 0 busy 160 165 100`, ""},
		{"a lost reply, and the same lease again, which has ended", `
acquire a 0 unknown 0 10 100
acquire a 5 ok 40 50 100
acquire b 0 busy 160 165 100`, "refused, and only 0 of 1"},
		{"a lost reply, and abandoned", `
acquire a 0 unknown 0 10 100
acquire b 0 busy 20 30 100
abandon a 0 ok 40 50 0
acquire b 0 busy 60 70 100`, "refused, and only 0 of 1"},
		{"a lost renewal", `
acquire a 5 ok 0 10 100
renew a 5 unknown 50 60 100
acquire b 0 busy 120 130 100`, ""},
		{"a lost renewal came too late to count", `
acquire a 5 ok 0 10 100
renew a 5 unknown 120 130 100
acquire b 0 busy 180 190 100`, "refused, and only 0 of 1"},
		{"a failure is told as busy", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 0 busy 40 50 100
acquire c 6 ok 60 70 100`, "refused, and only 0 of 1"},
		{"a release that got no answer", `
acquire a 5 ok 0 10 100
release a 5 unknown 20 30 0
acquire b 0 busy 40 50 100`, ""},

		{"corrupt", `
acquire a 0 invalid 0 10 100`, "an answer that no request may get"},
		{"an answer that took too long", `
acquire a 5 ok 0 60 100`, "an answer took longer"},
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
		{"writes before a late duplicate of the other's acquire", `
acquire a 5 ok 0 10 100
write a 5 ok 11 11 0
acquire b 6 ok 105 115 100
write b 6 ok 120 120 0
release b 6 ok 125 126 0
acquire a 7 ok 130 140 100`, ""},

		{"the store forgets a lease", `
acquire a 5 ok 0 10 100
forget - 0 ok 15 25 0
acquire b 6 ok 30 40 100
renew a 5 lost 50 60 100`, ""},
		{"the store forgets a lease whose grant was told late", `
acquire a 5 ok 0 40 100
forget - 0 ok 10 12 0
acquire b 6 ok 20 30 100`, ""},
		{"the store forgets before both are granted", `
forget - 0 ok 0 2 0
acquire a 5 ok 5 40 100
acquire b 6 ok 20 30 100`, "two trusted the key"},
		{"the store forgets, but not yet", `
acquire a 5 ok 0 10 100
acquire b 6 ok 30 40 100
forget - 0 ok 45 50 0`, "two trusted the key"},
		{"a replica knows what was granted before it was cut off", `
acquire a 5 ok 0 10 100
cutoff - 0 ok 15 16 0
promote - 0 ok 40 45 0
acquire b 6 ok 50 60 100`, "two trusted the key for 40ms"},
		{"a replica does not know what was renewed after it was cut off", `
acquire a 5 ok 0 10 100
cutoff - 0 ok 15 16 0
renew a 5 ok 60 65 100
promote - 0 ok 70 75 0
acquire b 6 ok 105 110 100`, ""},
		{"a replica does not know what was released after it was cut off", `
acquire a 5 ok 0 10 100
cutoff - 0 ok 15 16 0
release a 5 ok 60 65 0
promote - 0 ok 70 75 0
acquire b 0 busy 80 85 100`, ""},

		{"kept, read and open again", `
acquire a 5 ok 0 10 100
effect a 5 ok 12 12 0
complete a 5 ok 20 30 100 x
acquire b 0 completed 40 50 100 x
acquire c 6 ok 125 135 100
effect c 6 ok 136 136 0`, ""},
		{"kept, and open too early", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 6 ok 60 70 100`, "the key was not shut"},
		{"kept, and told after its time", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 0 completed 140 150 100 x`, "a result was told after its time"},
		{"kept is not held", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 0 busy 40 50 100`, "refused, and only 0 of 1"},
		{"a result that nobody stored", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 0 completed 40 50 100 y`, "a result that nobody stored"},
		{"a result that was told to be lost", `
acquire a 5 ok 0 10 10
complete a 5 lost 20 30 100 x
acquire b 0 completed 40 50 100 x`, "a result that nobody stored"},
		{"stored twice, and the first one stays", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
complete a 5 ok 40 50 100 y
release a 5 ok 52 55 0
acquire b 0 completed 60 70 100 x
acquire b 6 ok 125 130 100`, ""},
		{"stored twice, and the second one is told", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
complete a 5 ok 40 50 100 y
acquire b 0 completed 60 70 100 y`, "a result was replaced"},
		{"stored twice, and the first one got no answer", `
acquire a 5 ok 0 10 100
complete a 5 unknown 20 30 100 x
complete a 5 ok 40 50 100 y
acquire b 0 completed 60 70 100 y`, ""},
		{"a replica takes over without the answer, and an operator settles the key with another", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 12 14 0
cutoff - 0 ok 20 21 0
complete a 5 ok 30 35 100 x
acquire b 0 completed 40 45 100 x
promote - 0 ok 50 55 0
resolve-effect a 5 ok 120 125 100 y
acquire b 0 completed 130 140 100 y`, ""},

		{"begun, in doubt, and settled with an answer", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
resolve-effect a 5 busy 40 50 100 w
resolve-effect a 5 ok 110 120 100 x
acquire b 0 completed 130 140 100 x
complete a 5 lost 145 150 100 y
resolve-effect a 5 ok 152 155 100 z
acquire c 6 ok 225 235 100`, ""},
		{"begun, and another has an effect", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
acquire b 0 unknown 110 120 100
effect b 6 ok 125 125 0`, "the key was not shut"},
		{"broken, and its release opens the key", `
acquire a 5 ok 0 10 100
revoke a 5 ok 20 30 0
renew a 5 lost 32 38 100
release a 5 lost 40 50 0
acquire b 6 ok 60 70 100
release a 5 lost 72 75 0
acquire c 0 busy 76 80 100`, ""},
		{"broken after it has begun, and free", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
revoke a 5 ok 40 50 0
acquire b 6 ok 110 120 100`, "the key was not shut"},
	} {
		t.Run(c.name, func(t *testing.T) {
			requireOnly(t, Sweep(script(t, c.history), limits), c.want)
		})
	}
}

// requireOnly: the only violation has these words, or there is none.
func requireOnly(t *testing.T, violations []string, want string) {
	t.Helper()
	if want == "" {
		require.Empty(t, violations)
		return
	}
	require.Len(t, violations, 1)
	require.Contains(t, violations[0], want)
}

// TestDocumentedExceptions: what a store may do that repeats requests, forgets owners or reads what was true before, and
// what no other store may do.
func TestDocumentedExceptions(t *testing.T) {
	const ms = time.Millisecond
	strict := Limits{Early: ms, Late: 5 * ms}
	repeats := Limits{Early: ms, Late: 5 * ms, Repeats: 25 * ms}
	late := Limits{LateDuplicates: 50 * ms}
	lateRepeats := Limits{LateDuplicates: 20 * ms, Repeats: 30 * ms}
	type limits []Limits
	for _, c := range []struct {
		name, history string
		right, wrong  limits
	}{
		{"F29 an acquire is told how the lease of its first try ended", `
acquire a 0 lost 0 45 30
acquire b 0 busy 20 22 30
acquire b 5 ok 46 48 30`,
			limits{repeats}, limits{strict}},
		{"and when it was over", `
acquire a 0 lost 0 45 30
acquire b 0 busy 1000 1002 30`,
			nil, limits{strict, repeats}},
		{"a renewal is told how the lease of its first try ended", `
acquire a 5 ok 0 2 30
renew a 5 lost 10 50 30
acquire b 0 busy 42 44 30`,
			limits{repeats}, limits{strict}},
		{"and when that was over", `
acquire a 5 ok 0 2 30
renew a 5 lost 10 50 30
acquire b 0 busy 1000 1002 30`,
			nil, limits{strict, repeats}},
		{"an acquire was granted, undone and then not sent again", `
acquire a 0 not-applied 0 45 30
acquire b 0 busy 20 22 30`,
			limits{repeats}, limits{strict}},
		{"M18 abandoned, and its acquire arrives afterwards", `
acquire a 5 ok 0 10 100
acquire b 0 unknown 5 15 100
abandon b 0 ok 20 30 0
release a 5 ok 40 50 0
acquire c 0 busy 60 70 100`,
			limits{late}, limits{{}}},
		{"F26 an acquire is told busy, and its duplicate arrives when the key is free", `
acquire a 5 ok 0 2 100
acquire b 0 busy 10 45 100
release a 5 ok 47 48 0
acquire c 0 busy 60 62 100`,
			limits{lateRepeats}, limits{late, repeats}},
		{"a renewal's duplicate arrives after its answer", `
acquire a 5 ok 0 2 30
renew a 5 ok 10 11 30
renew a 5 ok 50 51 30`,
			limits{lateRepeats}, limits{late, repeats}},
		{"a refusal rests on an old read", `
acquire a 5 ok 0 2 100
release a 5 ok 5 7 0
acquire b 0 busy 8 9 100`,
			limits{{OldReads: true}}, limits{strict}},
		{"a shorter renewal makes the lease as long again, then it is broken, and the repeat is lost", `
acquire a 5 ok 0 2 30
renew a 5 ok 10 11 3000
renew a 5 lost 2900 2910 30
revoke a 5 ok 2905 2906 0
acquire b 0 busy 5800 5801 30`,
			limits{repeats}, limits{strict}},
		{"a lease is broken, its owner releases it, and the repeat of the revocation is lost", `
acquire a 5 ok 0 2 100
revoke a 5 lost 10 40 0
release a 5 lost 15 16 0
acquire b 6 ok 20 21 100`,
			limits{repeats}, limits{strict}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ops := script(t, c.history)
			for _, l := range c.right {
				require.Empty(t, Sweep(ops, l), "%+v", l)
			}
			for _, l := range c.wrong {
				require.NotEmpty(t, Sweep(ops, l), "%+v", l)
			}
		})
	}
}

func TestCount(t *testing.T) {
	c := Count(script(t, `
acquire a 5 ok 0 10 100
acquire b 0 busy 20 30 100
acquire a 5 ok 35 36 100
acquire b 6 ok 120 130 100
renew a 5 lost 140 150 100
renew a 4 lost 140 150 100
release a 5 lost 150 151 0
write a 5 lost 152 152 0
acquire c 0 unknown 160 170 100
acquire d 0 not-applied 160 170 100
release b 6 ok 180 190 0
forget - 0 ok 195 196 0
acquire e 7 ok 200 210 100
mark-started e 7 ok 211 212 0
effect e 7 ok 213 213 0
revoke e 7 ok 214 215 0
revoke e 7 lost 301 302 0
renew e 7 lost 303 304 0
acquire f 0 in-doubt 310 311 100
resolve-no-effect e 7 ok 312 313 0
acquire g 8 ok 314 315 100
complete g 8 ok 316 317 100 x
acquire h 0 completed 318 319 100 x`))
	require.Equal(t, Counts{
		Operations: 18, Contended: 1, Takeovers: 1, Unknown: 1, NotApplied: 1, Lost: 2, Stale: 1, Losses: 1,
		Effects: 1, Completions: 1, Results: 1, InDoubt: 1, Resolved: 1, Revocations: 1,
	}, c)
}

func TestOutcomeOf(t *testing.T) {
	for want, err := range map[Outcome]error{
		OK: nil, Busy: &lockstore.Refused{State: lockstore.Held}, Reserved: &lockstore.Refused{State: lockstore.Reserved}, Completed: &lockstore.Refused{State: lockstore.Cooldown}, InDoubt: &lockstore.Refused{State: lockstore.InDoubt}, Lost: lockstore.ErrLost, NotApplied: lockstore.ErrUnavailable,
		Unknown: context.DeadlineExceeded,
	} {
		require.Equal(t, want, OutcomeOf(err))
	}
	require.Equal(t, Invalid, OutcomeOf(fmt.Errorf("x: %w", lockstore.ErrCorrupt)))
	require.Equal(t, Invalid, OutcomeOf(lockstore.ErrInvalid))
}

func TestALateAnswer(t *testing.T) {
	op := Op{Kind: Acquire, Owner: "a", Key: "k", Outcome: NotApplied, Call: 10 * time.Millisecond, Return: 70 * time.Millisecond}
	limits := Limits{Answer: 50 * time.Millisecond}
	require.Len(t, Sweep([]Op{op}, limits), 1)
	op.Stood = 10 * time.Millisecond
	require.Empty(t, Sweep([]Op{op}, limits), "the machine stood still meanwhile")
}
