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

func TestCheckers(t *testing.T) {
	limits := Limits{Early: time.Millisecond, Late: 5 * time.Millisecond, Answer: 50 * time.Millisecond}
	for _, c := range []struct {
		name         string
		history      string
		check, sweep bool // what is right for either
	}{
		{"in turn", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 6 ok 40 50 100`, true, true},
		{"busy while held", `
acquire a 5 ok 0 10 100
acquire b 0 busy 20 30 100`, true, true},
		{"kept for others while nobody has it", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 0 reserved 40 50 100
acquire c 6 ok 60 70 100`, true, true},
		{"kept for others while it is held", `
acquire a 5 ok 0 10 100
acquire b 0 reserved 20 30 100`, false, true},
		{"kept for others, and its own", `
acquire a 5 ok 0 10 100
acquire a 0 reserved 20 30 100`, false, false},
		{"M01 taken from a live holder", `
acquire a 5 ok 0 10 100
acquire b 6 ok 20 30 100`, false, false},
		{"M10 the same fence", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 5 ok 40 50 100`, false, false},
		{"M11 a smaller fence", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 4 ok 40 50 100`, false, false},
		{"M04 released by a stranger", `
acquire a 5 ok 0 10 100
release b 5 ok 20 30 0
acquire c 6 ok 40 50 100`, false, false},
		{"M08 renewed after its end", `
acquire a 5 ok 0 10 100
renew a 5 ok 120 130 100`, false, true},
		{"M15 its own retry reads as busy", `
acquire a 5 ok 0 10 100
acquire a 0 busy 20 30 100`, false, false},
		{"F23 a lost reply, and the same lease again", `
acquire a 0 unknown 0 10 100
acquire b 0 busy 20 30 100
acquire a 5 ok 40 50 100
renew a 5 ok 60 70 100`, true, true},
		{"a lost reply that was never applied", `
acquire a 0 unknown 0 10 100
acquire b 5 ok 20 30 100`, true, true},
		{"F25 a lost release", `
acquire a 5 ok 0 10 100
release a 5 unknown 20 30 0
acquire b 6 ok 40 50 100`, true, true},
		{"F24 a lost renewal", `
acquire a 5 ok 0 10 100
renew a 5 unknown 50 60 100
acquire b 0 busy 120 130 100`, true, true},
		{"abandoned by its owner while it is held", `
acquire a 5 ok 0 10 100
abandon a 0 ok 20 30 0
acquire b 6 ok 40 50 100`, true, true},
		{"trust that reaches past another's grant", `
acquire a 5 ok 0 10 100
renew a 5 ok 90 100 100
acquire b 6 ok 120 130 100`, false, false},
		{"M05 released by another fence", `
acquire a 5 ok 0 10 100
release a 4 ok 20 30 0
acquire b 6 ok 120 130 100`, false, true},
		{"another fence renews nothing", `
acquire a 5 ok 0 10 100
renew a 4 lost 20 30 100
release a 4 lost 20 30 100
renew a 5 ok 40 50 100`, true, true},
		{"M06 renewed by another fence", `
acquire a 5 ok 0 10 100
renew a 4 ok 20 30 100`, false, true},
		{"M07 an expired lease is granted to its own owner anew", `
acquire a 5 ok 0 10 100
acquire a 6 ok 120 130 100`, false, true},
		{"M08 a lost renewal came too late to count", `
acquire a 5 ok 0 10 100
renew a 5 unknown 120 130 100
acquire b 0 busy 180 190 100`, false, true},
		{"M16 a lost acquire took it from a live holder", `
acquire a 5 ok 0 10 100
acquire b 0 unknown 20 30 100
renew a 5 lost 40 50 100`, false, false},
		{"M13 a fence from a local counter", `
acquire a 9 ok 0 10 100
release a 9 ok 20 30 0
acquire b 3 ok 40 50 100
release b 3 ok 60 70 0`, false, false},
		{"M19 two who looked at the same time", `
acquire a 5 ok 0 10 100
acquire b 6 ok 5 15 100`, false, false},
		{"M36 a failure is told as busy", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 0 busy 40 50 100
acquire c 6 ok 60 70 100`, false, true},
		{"M15 its own repeat reads as lost", `
acquire a 0 unknown 0 10 100
acquire a 0 lost 20 30 100
acquire b 0 busy 40 50 100`, false, true},
		{"but two after one another last longer than one", `
acquire a 5 ok 0 10 100
renew a 5 unknown 50 60 100
renew a 5 unknown 70 80 100
acquire b 0 busy 220 230 100`, true, true},
		{"a late release after another's takeover", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 115 100
release a 5 ok 120 130 0`, false, true},
		{"corrupt", `
acquire a 0 invalid 0 10 100`, true, false},
		{"an answer that took too long", `
acquire a 5 ok 0 60 100`, true, false},
		{"a write is refused that comes too late", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 115 100
write b 6 ok 120 120 0
write a 5 lost 130 130 0`, true, true},
		{"writes before a late duplicate of the other's acquire", `
acquire a 5 ok 0 10 100
write a 5 ok 11 11 0
acquire b 6 ok 105 115 100
write b 6 ok 120 120 0
release b 6 ok 125 126 0
acquire a 7 ok 130 140 100`, true, true},
		{"the store forgets a lease", `
acquire a 5 ok 0 10 100
forget - 0 ok 15 25 0
acquire b 6 ok 30 40 100
renew a 5 lost 50 60 100`, true, true},
		{"the store forgets a lease whose grant was told late", `
acquire a 5 ok 0 40 100
forget - 0 ok 10 12 0
acquire b 6 ok 20 30 100`, true, true},
		{"the store forgets before both are granted", `
forget - 0 ok 0 2 0
acquire a 5 ok 5 40 100
acquire b 6 ok 20 30 100`, false, false},
		{"the store forgets, but not yet", `
acquire a 5 ok 0 10 100
acquire b 6 ok 30 40 100
forget - 0 ok 45 50 0`, false, false},
		{"a replica knows what was granted before it was cut off", `
acquire a 5 ok 0 10 100
cutoff - 0 ok 15 16 0
promote - 0 ok 40 45 0
acquire b 6 ok 50 60 100`, false, true},

		{"kept, read and open again", `
acquire a 5 ok 0 10 100
effect a 5 ok 12 12 0
complete a 5 ok 20 30 100 x
acquire b 0 completed 40 50 100 x
acquire c 6 ok 125 135 100
effect c 6 ok 136 136 0`, true, true},
		{"kept, and open too early", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 6 ok 60 70 100`, false, false},
		{"kept, and told after its time", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 0 completed 140 150 100 x`, false, true},
		{"kept is not held", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 0 busy 40 50 100`, false, true},
		{"an answer that nobody kept", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
acquire b 0 completed 40 50 100 y`, false, true},
		{"kept after the end of the lease", `
acquire a 5 ok 0 10 100
complete a 5 ok 150 160 100 x
acquire b 0 completed 170 180 100 x`, true, true},
		{"kept twice, and released late", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
complete a 5 ok 40 50 100 y
release a 5 ok 52 55 0
acquire b 0 completed 60 70 100 x
acquire b 6 ok 125 130 100
complete a 5 ok 140 150 100 z`, true, true},
		{"a replica takes over without the answer, and an operator settles the key with another", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 12 14 0
cutoff - 0 ok 20 21 0
complete a 5 ok 30 35 100 x
acquire b 0 completed 40 45 100 x
promote - 0 ok 50 55 0
resolve-effect a 5 ok 120 125 100 y
acquire b 0 completed 130 140 100 y`, true, true},
		{"a lost Keep, applied", `
acquire a 5 ok 0 10 100
complete a 5 unknown 20 30 100 x
acquire b 0 completed 40 50 100 x`, true, true},
		{"a lost Keep, and the next is no repeat of it", `
acquire a 5 ok 0 10 100
complete a 5 unknown 20 30 100 x
acquire b 6 ok 105 115 100
complete a 5 ok 120 130 100 y`, false, true},
		{"kept, and told lost", `
acquire a 5 ok 0 10 100
complete a 5 ok 20 30 100 x
complete a 5 lost 40 50 100 y`, false, true},

		{"begun, in doubt, free, and settled again when the next has the key", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
acquire b 0 in-doubt 110 120 100
resolve-no-effect a 5 ok 130 140 0
acquire c 6 ok 150 160 100
resolve-no-effect a 5 ok 162 165 0
acquire d 0 busy 170 180 100`, true, true},
		{"settled only when the next has the key", `
acquire a 5 ok 0 10 100
acquire c 6 ok 150 160 100
resolve-no-effect a 5 ok 162 165 0`, false, true},
		{"begun, in doubt, and settled with an answer", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
resolve-effect a 5 busy 40 50 100 w
resolve-effect a 5 ok 110 120 100 x
acquire b 0 completed 130 140 100 x
complete a 5 lost 145 150 100 y
resolve-effect a 5 ok 152 155 100 z
acquire c 6 ok 225 235 100`, true, true},
		{"in doubt while the lease lasts", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
acquire b 0 in-doubt 40 50 100`, false, true},
		{"settled while the lease lasts", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
resolve-no-effect a 5 ok 40 50 0`, false, true},
		{"settled, but not in doubt", `
acquire a 5 ok 0 10 100
resolve-no-effect a 5 ok 110 120 0`, false, true},
		{"in doubt, and not to be settled", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
resolve-no-effect a 5 lost 120 130 0`, false, true},
		{"a lost settlement", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
resolve-effect a 5 unknown 110 120 100 x
acquire b 0 completed 130 140 100 x`, true, true},

		{"broken", `
acquire a 5 ok 0 10 100
revoke a 5 ok 20 30 0
revoke a 5 ok 32 35 0
renew a 5 lost 40 50 100
acquire b 0 busy 60 70 100
release a 5 ok 72 75 0
acquire c 6 ok 105 115 100`, true, true},
		{"broken, and its release opens the key", `
acquire a 5 ok 0 10 100
revoke a 5 ok 20 30 0
release a 5 lost 40 50 0
acquire b 6 ok 60 70 100
release a 5 lost 72 75 0
acquire c 0 busy 76 80 100`, true, true},
		{"broken, and its lost release may have opened the key", `
acquire a 5 ok 0 10 100
revoke a 5 ok 20 30 0
release a 5 unknown 40 50 0
acquire b 6 ok 60 70 100`, true, true},
		{"broken, and another's release opens the key", `
acquire a 5 ok 0 10 100
revoke a 5 ok 20 30 0
release x 5 lost 40 50 0
acquire b 6 ok 60 70 100`, false, false},
		{"nothing to break, while it is held", `
acquire a 5 ok 0 10 100
revoke a 5 lost 20 30 0`, false, true},
		{"a lost Break", `
acquire a 5 ok 0 10 100
revoke a 5 unknown 20 30 0
renew a 5 lost 40 50 100`, true, true},
		{"broken after it has begun, and free", `
acquire a 5 ok 0 10 100
mark-started a 5 ok 20 30 0
revoke a 5 ok 40 50 0
acquire b 6 ok 110 120 100`, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ops := script(t, c.history)
			ok, decided, _ := Check(ops, limits, time.Minute)
			require.True(t, decided)
			require.Equal(t, c.check, ok, "linearizability")
			require.Equal(t, c.sweep, len(Sweep(ops, limits)) == 0, "%v", Sweep(ops, limits))
		})
	}
}

// An acquire that is repeated after the trust in its lease has ended may get this lease, as long as others may not
// take it over, and only if nothing of it can be trusted.
func TestARepeatNamesALeaseThatIsOver(t *testing.T) {
	for _, c := range []struct {
		repeat string
		trust  time.Duration
		ok     bool
	}{
		{"acquire a 5 ok 120 130 100", -10 * time.Millisecond, true},
		{"acquire a 5 ok 120 130 100", 10 * time.Millisecond, false},
		{"acquire a 5 ok 170 180 100", -60 * time.Millisecond, false},
	} {
		ops := script(t, "acquire a 5 ok 0 10 100\n"+c.repeat)
		ops[1].Trust = c.trust
		ok, decided, _ := Check(ops, Limits{Late: 50 * time.Millisecond}, time.Minute)
		require.True(t, decided)
		require.Equal(t, c.ok, ok, "%+v", c)
	}
}

// TestDocumentedExceptions: what a store may do that repeats requests, stamps them or
// forgets owners, and what no other store may do. right lists the limits under which an
// answer is right. explained lists the limits under which only a late duplicate explains
// it. Under all other limits the answer is wrong.
func TestDocumentedExceptions(t *testing.T) {
	const ms = time.Millisecond
	strict := Limits{Early: ms, Late: 5 * ms}
	repeats := Limits{Early: ms, Late: 5 * ms, Repeats: 25 * ms}
	stamped := Limits{Stamped: true}
	late := Limits{LateDuplicates: 50 * ms}
	lateStamped := Limits{LateDuplicates: 50 * ms, Stamped: true}
	lateRepeats := Limits{LateDuplicates: 20 * ms, Repeats: 30 * ms}
	slowRepeats := Limits{LateDuplicates: 20 * ms, Repeats: 40 * ms}
	prompt := Limits{LateDuplicates: ms, Repeats: 30 * ms}
	type limits []Limits
	for _, c := range []struct {
		name, history           string
		right, explained, wrong limits
	}{
		{"F29 an acquire is told how the lease of its first try ended", `
acquire a 0 lost 0 45 30
acquire b 0 busy 20 22 30
acquire b 5 ok 46 48 30`,
			limits{repeats}, nil, limits{strict}},
		{"and when it was over", `
acquire a 0 lost 0 45 30
acquire b 0 busy 1000 1002 30`,
			nil, nil, limits{strict, repeats}},
		{"a renewal is told how the lease of its first try ended", `
acquire a 5 ok 0 2 30
renew a 5 lost 10 50 30
acquire b 0 busy 42 44 30`,
			limits{repeats}, nil, limits{strict}},
		{"and when that was over", `
acquire a 5 ok 0 2 30
renew a 5 lost 10 50 30
acquire b 0 busy 1000 1002 30`,
			nil, nil, limits{strict, repeats}},
		{"a renewal is lost faster than it could end, and the key stays busy", `
acquire a 5 ok 0 2 3000
renew a 5 lost 2995 3015 3000
acquire b 0 busy 3016 3018 3000`,
			nil, nil, limits{strict, repeats}},
		{"an acquire was granted, undone and then not sent again", `
acquire a 0 not-applied 0 45 30
acquire b 0 busy 20 22 30`,
			limits{repeats}, nil, limits{strict}},
		{"an acquire's second try extends what was handed to its place, for a turn", `
acquire a 5 ok 0 2 100
acquire b 6 ok 1 25 100
release a 5 ok 20 22 0
acquire c 0 busy 1000 1002 100`,
			limits{repeats}, nil, limits{strict}},
		{"a late acquire extends what was handed to its repeat's place, for a turn", `
acquire a 5 ok 0 2 100
acquire b 0 unknown 3 4 100
acquire b 0 busy 5 6 100
release a 5 ok 20 22 0
acquire c 0 busy 130 132 100
acquire d 0 busy 1000 1002 100`,
			limits{strict, repeats}, nil, nil},
		{"and nothing that was never handed over", `
acquire a 5 ok 0 2 100
acquire b 0 unknown 3 4 100
release a 5 ok 20 22 0
acquire c 0 busy 130 132 100
acquire d 0 busy 1000 1002 100`,
			nil, nil, limits{strict}},
		{"M18 abandoned while another had the key", `
acquire a 5 ok 0 10 100
acquire b 0 unknown 5 15 100
abandon b 0 ok 20 30 0
release a 5 ok 40 50 0
acquire c 0 busy 60 70 100`,
			nil, limits{lateStamped}, limits{{}, stamped, late}},
		{"on a free row an abandon replaces the last release", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
abandon b 0 ok 40 50 0
release a 5 lost 60 70 0`,
			limits{stamped}, nil, limits{{}}},
		{"a request was stamped before the row was deleted", `
acquire b 4 ok 1 40 100
acquire a 5 ok 2 10 100
forget - 0 ok 15 25 0`,
			limits{stamped}, nil, limits{{}}},
		{"F26 an acquire is told busy, and its duplicate arrives when the key is free", `
acquire a 5 ok 0 2 100
acquire b 0 busy 10 45 100
release a 5 ok 47 48 0
acquire c 0 busy 60 62 100`,
			nil, limits{lateRepeats}, limits{slowRepeats, prompt, {LateDuplicates: 20 * ms}}},
		{"the key was handed over to an owner that never asked, so a result comes too late", `
acquire a 5 ok 0 2 30
complete a 5 lost 60 62 100 x`,
			limits{strict}, nil, nil},
		{"a refusal rests on an old read", `
acquire a 5 ok 0 2 100
release a 5 ok 5 7 0
acquire b 0 busy 8 9 100`,
			limits{{OldReads: true}}, nil, limits{strict}},
		{"a renewal arrives after the end of the lease, and nobody was granted the key", `
acquire a 5 ok 0 2 30
renew a 5 unknown 20 40 30
acquire a 5 ok 68 69 30`,
			limits{{LateRenewals: true}}, nil, limits{strict}},
		{"a Begin comes too late and is undone", `
acquire a 5 ok 0 2 30
mark-started a 5 lost 25 60 30
acquire b 0 in-doubt 45 46 30
acquire c 6 ok 70 72 30`,
			limits{{LateRenewals: true}}, nil, limits{strict}},
		{"a shorter renewal makes the lease as long again, then it is broken, and the repeat is lost", `
acquire a 5 ok 0 2 30
renew a 5 ok 10 11 3000
renew a 5 lost 2900 2910 30
revoke a 5 ok 2905 2906 0
acquire b 0 busy 5800 5801 30`,
			limits{repeats}, nil, limits{strict}},
		{"a renewal is applied, then the lease is broken, and its repeat is lost", `
acquire a 5 ok 0 2 30
renew a 5 lost 10 20 30
revoke a 5 ok 14 15 0
acquire b 0 busy 40 42 30`,
			limits{repeats}, nil, limits{strict}},
		{"a lease is broken, its owner releases it, and the repeat of the revocation is lost", `
acquire a 5 ok 0 2 100
revoke a 5 lost 10 40 0
release a 5 lost 15 16 0
acquire b 6 ok 20 21 100`,
			limits{repeats}, nil, limits{strict}},
		{"a result is stored and ends, another gets the key, and the repeat of the settlement is refused", `
acquire a 5 ok 0 2 30
mark-started a 5 ok 3 4 0
resolve-effect a 5 busy 50 120 20 x
acquire b 0 completed 60 61 100 x
acquire b 6 ok 90 91 100`,
			limits{repeats}, nil, limits{strict}},
		{"a settlement arrives after the owner of a broken lease was told that it is lost", `
acquire a 5 ok 0 2 30
mark-started a 5 ok 3 4 0
revoke a 5 ok 5 6 0
resolve-no-effect a 5 unknown 50 51 0
complete a 5 lost 52 53 100 y
acquire b 0 in-doubt 54 55 100
acquire b 6 ok 60 61 100`,
			limits{strict}, nil, nil},
		{"the work had an effect, its result has ended, and another has the key", `
acquire a 5 ok 0 2 30
mark-started a 5 ok 3 4 0
complete a 5 ok 5 6 20 x
acquire b 6 ok 40 41 100
resolve-no-effect a 5 ok 42 43 0`,
			limits{strict}, nil, nil},
		{"a hand-over is on the replica that takes over, and its owner was told after the cut-off", `
acquire a 5 ok 0 2 100
acquire b 0 busy 3 4 100
release a 5 ok 5 6 0
cutoff - 0 ok 7 8 0
acquire b 6 ok 9 10 100
promote - 0 ok 12 13 0
acquire c 0 reserved 14 15 100
renew b 6 ok 20 21 100`,
			limits{strict}, nil, nil},
		{"nothing to break, and the row says broken all the same", `
acquire a 5 ok 0 2 30
mark-started a 5 ok 3 4 0
revoke a 5 lost 38 39 0
complete a 5 lost 42 43 30 x
release a 5 ok 44 45 0`,
			limits{stamped}, nil, limits{strict}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ops := script(t, c.history)
			check := func(all limits, right, explained bool) {
				t.Helper()
				for _, l := range all {
					ok, decided, _ := Check(ops, l, time.Minute)
					require.True(t, decided)
					require.Equal(t, right, ok, "%+v", l)
					if right {
						require.Empty(t, Sweep(ops, l))
					} else {
						ok, decided = ExplainedByLateDuplicate(ops, l, time.Minute)
						require.True(t, decided)
						require.Equal(t, explained, ok, "%+v", l)
					}
				}
			}
			check(c.right, true, false)
			check(c.explained, false, true)
			check(c.wrong, false, false)
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
