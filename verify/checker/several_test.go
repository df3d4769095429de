package checker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// severalScript reads a script whose acquires end with a seat and a MaxHolders, and "w" if it waits. An owner has
// its seat also when it writes.
func severalScript(t *testing.T, text string) []Op {
	var lines []string
	seats := map[string]Op{}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		fields := strings.Fields(line)
		if fields[0] == "acquire" {
			var op Op
			_, err := fmt.Sscanf(fields[7], "%d/%d", &op.Seat, &op.Most)
			require.NoError(t, err, line)
			op.Waits = strings.HasSuffix(fields[7], "w")
			seats[fields[1]] = op
			fields = fields[:7]
		}
		lines = append(lines, strings.Join(fields, " "))
	}
	ops := script(t, strings.Join(lines, "\n"))
	for i, op := range ops {
		own := seats[op.Owner]
		ops[i].Seat = own.Seat
		if op.Kind == Acquire {
			ops[i].Most, ops[i].Waits = own.Most, own.Waits
		}
	}
	return ops
}

func TestSeveralHolders(t *testing.T) {
	limits := Limits{Early: time.Millisecond, Late: 5 * time.Millisecond}
	for _, c := range []struct {
		name, history string
		want          string // of the only violation; "" is none
	}{
		{"two at once, and a seat that comes back", `
acquire a 5 ok 0 2 100 0/2
acquire b 6 ok 10 12 100 1/2
acquire c 0 busy 20 22 100 0/2
release a 5 ok 30 32 0
acquire d 7 ok 40 42 100 0/2`, ""},
		{"a dead holder's seat before", `
acquire a 5 ok 0 2 50 0/2
acquire b 6 ok 10 12 100 1/2
acquire c 7 ok 40 42 100 2/2`, "3 trusted the key, and 2 may"},
		{"a reader beside a writer", `
acquire w 5 ok 0 2 100 0/1
acquire a 6 ok 10 12 100 1/64`, "two trusted the key"},
		{"one seat for two", `
acquire a 5 ok 0 2 100 0/2
acquire b 6 ok 10 12 100 0/2`, "two have the seat 0"},
		{"refused when a seat must be free", `
acquire a 5 ok 0 2 50 0/2
acquire b 6 ok 10 12 100 1/2
acquire c 0 busy 58 60 100 0/2`, "refused, and only 1 of 2 had the key"},
		{"refused after a release", `
acquire a 5 ok 0 2 100 0/2
acquire b 6 ok 10 12 100 1/2
release a 5 ok 20 22 0
acquire c 0 busy 23 25 100 0/2`, "refused, and only 1 of 2 had the key"},
		{"refused for one that waits", `
acquire a 5 ok 0 2 100 0/2
acquire b 0 busy 10 12 100 0/1w
acquire c 0 reserved 20 22 100 0/2`, ""},
		{"two that were handed the key learn of it in the other order", `
acquire w 5 ok 0 2 100 0/1
acquire a 0 busy 10 12 100 0/64w
acquire b 0 busy 13 15 100 0/64w
release w 5 ok 20 22 0
acquire b 7 ok 30 32 100 1/64w
acquire a 6 ok 33 35 100 0/64w`, ""},
		{"renewed after a turn that was longer than asked for", `
acquire w 5 ok 0 2 100 0/1
acquire a 0 busy 10 12 100 0/64w
release w 5 ok 20 22 0
acquire a 6 ok 30 32 100 0/64w
renew a 6 ok 1900 1902 100`, ""},
		{"and after that", `
acquire w 5 ok 0 2 100 0/1
acquire a 0 busy 10 12 100 0/64w
release w 5 ok 20 22 0
acquire a 6 ok 30 32 100 0/64w
renew a 6 ok 2100 2102 100`, "a renewal without a lease"},
		{"a stale write of one seat", `
acquire a 5 ok 0 2 10 0/2
acquire b 6 ok 20 22 100 0/2
write b 6 ok 30 30 0
write a 5 ok 40 40 0`, "a stale write was accepted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			requireOnly(t, Sweep(severalScript(t, c.history), limits), c.want)
		})
	}
}

// Where late duplicates are possible, a refusal after a release is explained by an acquire that got no answer,
// and by nothing else.
func TestRefusalAfterARelease(t *testing.T) {
	limits := Limits{LateDuplicates: time.Second}
	const first, then = `
acquire a 5 ok 0 2 100 0/2
acquire b 6 ok 10 12 100 1/2`, `
release a 5 ok 20 22 0
acquire c 0 busy 23 25 100 0/2`
	require.Len(t, Sweep(severalScript(t, first+then), limits), 1)
	require.Empty(t, Sweep(severalScript(t, first+"\nacquire a 0 unknown 13 14 100 0/2"+then), limits))
}

// A revocation was applied, its reply was lost, and its repeat came when the lease had ended: it is told
// that the lease is lost. A store whose client repeats nothing may not say so.
func TestRevocationThatWasToldLost(t *testing.T) {
	ops := script(t, `
acquire a 5 ok 0 2 100
revoke a 5 lost 10 60 0
renew a 5 lost 20 22 100
release a 5 lost 30 32 0`)
	require.Empty(t, Sweep(ops, Limits{Repeats: 40 * time.Millisecond}))
	require.Len(t, Sweep(ops, Limits{}), 1)
}

// An acquire was granted, its reply was lost, and its repeat came when the lease had ended: meanwhile it had the key.
func TestAcquireThatWasToldLost(t *testing.T) {
	ops := severalScript(t, `
acquire a 0 lost 0 150 100 0/1
acquire b 0 busy 20 22 100 0/2`)
	require.Empty(t, Sweep(ops, Limits{Repeats: 40 * time.Millisecond}))
	require.Len(t, Sweep(ops, Limits{}), 1)
}
