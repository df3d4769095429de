package history

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script reads lines such as
//
//	acquire a 5 ok 0 10 100    owner a, fence 5, from 0 to 10 ms, TTL and trust 100 ms
func script(t *testing.T, text string) (ops []Op) {
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var op Op
		var call, ret, ttl int
		_, err := fmt.Sscan(line, &op.Kind, &op.Owner, &op.Fence, &op.Outcome, &call, &ret, &ttl)
		require.NoError(t, err, line)
		op.Client, op.Key = i, "k"
		op.Call, op.Return = time.Duration(call)*time.Millisecond, time.Duration(ret)*time.Millisecond
		op.TTL = time.Duration(ttl) * time.Millisecond
		if op.Outcome == OK {
			op.Trust = op.TTL
		}
		ops = append(ops, op)
	}
	return ops
}

func TestCheckers(t *testing.T) {
	limits := Limits{Early: time.Millisecond, Late: 5 * time.Millisecond}
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
		{"taken over after the end", `
acquire a 5 ok 0 10 100
acquire b 6 ok 105 115 100
renew a 5 lost 120 130 100
release a 5 lost 140 150 0`, true, true},
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
		{"M07 renewed when it was another's", `
acquire a 5 ok 0 10 100
acquire b 6 ok 110 120 100
renew a 5 ok 130 140 100`, false, false},
		{"M08 renewed after its end", `
acquire a 5 ok 0 10 100
renew a 5 ok 120 130 100`, false, true},
		{"M15 its own retry reads as busy", `
acquire a 5 ok 0 10 100
acquire a 0 busy 20 30 100`, false, true},
		{"busy when nobody has it", `
acquire a 5 ok 0 10 100
release a 5 ok 20 30 0
acquire b 0 busy 40 50 100`, false, true},
		{"busy long after the end", `
acquire a 5 ok 0 10 100
acquire b 0 busy 120 130 100`, false, true},
		{"lost while it is held", `
acquire a 5 ok 0 10 100
renew a 5 lost 20 30 100`, false, true},
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
		{"M18 a ghost after the withdrawal", `
acquire a 0 unknown 0 10 1000
withdraw a 0 ok 20 30 0
acquire b 0 busy 40 50 100`, false, true},
		{"F24 a lost renewal", `
acquire a 5 ok 0 10 100
renew a 5 unknown 50 60 100
acquire b 0 busy 120 130 100`, true, true},
		{"withdrawn by its owner while it is held", `
acquire a 5 ok 0 10 100
withdraw a 0 ok 20 30 0
acquire b 6 ok 40 50 100`, true, true},
		{"one of two at once", `
acquire a 5 ok 0 30 100
acquire b 0 busy 0 30 100`, true, true},
		{"trust that reaches past another's grant", `
acquire a 5 ok 0 10 100
renew a 5 ok 90 100 100
acquire b 6 ok 120 130 100`, false, false},
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

func TestForgetful(t *testing.T) {
	limits := Limits{Forgetful: true}
	lost := script(t, `
acquire a 5 ok 0 10 100
acquire b 6 ok 20 30 100
renew a 5 lost 40 50 100`)
	ok, decided, _ := Check(lost, limits, time.Minute)
	require.True(t, ok && decided)
	require.Empty(t, Sweep(lost, limits))
	fell := script(t, `
acquire a 5 ok 0 10 100
acquire b 4 ok 20 30 100`)
	ok, decided, _ = Check(fell, limits, time.Minute)
	require.False(t, ok)
	require.True(t, decided)
	require.NotEmpty(t, Sweep(fell, limits), "the fence has to grow all the same")
}

func TestCount(t *testing.T) {
	c := Count(script(t, `
acquire a 5 ok 0 10 100
acquire b 0 busy 20 30 100
acquire b 6 ok 120 130 100
renew a 5 lost 140 150 100
acquire c 0 unknown 160 170 100
acquire d 0 refused 160 170 100
release b 6 ok 180 190 0
acquire e 7 ok 200 210 100`))
	require.Equal(t, Counts{Operations: 6, Contended: 1, Takeovers: 1, Unknown: 1, Lost: 1}, c)
}
