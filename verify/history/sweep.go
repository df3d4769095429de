package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// belief is the time for which a client may believe in its lease.
type belief struct {
	op         Op
	begin, end time.Duration
}

// Sweep returns what no order of the operations could excuse: a fence that did
// not grow, told to two, or two holders who trust their leases of a key at the
// same time.
func Sweep(ops []Op, l Limits) (violations []string) {
	leases := map[[2]string][]*belief{} // by key and owner, in the order of the calls
	for _, op := range sorted(ops) {
		id := [2]string{op.Key, op.Owner}
		own := leases[id]
		switch {
		case op.Kind == Acquire && op.Outcome == OK && len(own) > 0 && own[len(own)-1].op.Fence == op.Fence:
			own[len(own)-1].end = max(own[len(own)-1].end, op.Call+op.Trust)
		case op.Kind == Acquire && op.Outcome == OK:
			leases[id] = append(own, &belief{op, op.Return, op.Call + op.Trust})
		case len(own) == 0:
		case op.Kind == Renew && op.Outcome == OK:
			own[len(own)-1].end = max(own[len(own)-1].end, op.Call+op.Trust)
		case op.Kind == Renew && op.Outcome == Lost:
			own[len(own)-1].end = min(own[len(own)-1].end, op.Return)
		case op.Kind == Release, op.Kind == Withdraw:
			own[len(own)-1].end = min(own[len(own)-1].end, op.Call)
		}
	}
	keys := map[string][]*belief{}
	for id, own := range leases {
		keys[id[0]] = append(keys[id[0]], own...)
	}
	for _, all := range keys {
		violations = append(violations, overlaps(all, l)...)
		violations = append(violations, fences(all)...)
	}
	slices.Sort(violations)
	return violations
}

func sorted(ops []Op) []Op {
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	return ops
}

func overlaps(all []*belief, l Limits) (violations []string) {
	if l.Forgetful {
		return nil
	}
	slices.SortFunc(all, func(a, b *belief) int { return cmp.Compare(a.begin, b.begin) })
	var last *belief // the one that lasts longest so far
	for _, b := range all {
		if b.begin >= b.end {
			continue // it came too late to be of use
		}
		if last != nil && last.end-b.begin > l.Early {
			violations = append(violations, fmt.Sprintf("two trusted the key for %v:\n  %v\n  %v", last.end-b.begin, last.op, b.op))
		}
		if last == nil || b.end > last.end {
			last = b
		}
	}
	return violations
}

// fences have to differ, and a grant that began after another had ended has the
// larger one.
func fences(all []*belief) (violations []string) {
	byReturn := slices.Clone(all)
	slices.SortFunc(byReturn, func(a, b *belief) int { return cmp.Compare(a.op.Return, b.op.Return) })
	slices.SortFunc(all, func(a, b *belief) int { return cmp.Compare(a.op.Call, b.op.Call) })
	seen := map[int64]*belief{}
	var largest *belief
	i := 0
	for _, b := range all {
		for ; i < len(byReturn) && byReturn[i].op.Return < b.op.Call; i++ {
			if largest == nil || byReturn[i].op.Fence > largest.op.Fence {
				largest = byReturn[i]
			}
		}
		if largest != nil && b.op.Fence <= largest.op.Fence {
			violations = append(violations, fmt.Sprintf("the fence did not grow:\n  %v\n  %v", largest.op, b.op))
		}
		if twin := seen[b.op.Fence]; twin != nil {
			violations = append(violations, fmt.Sprintf("two have the same fence:\n  %v\n  %v", twin.op, b.op))
		}
		seen[b.op.Fence] = b
	}
	return violations
}

// Counts say what happened in a history.
type Counts struct {
	Operations int `json:"operations"` // that returned an answer
	Contended  int `json:"contended"`  // acquires that were told busy
	Takeovers  int `json:"takeovers"`  // grants behind a lease that nobody released
	Unknown    int `json:"unknown"`
	Lost       int `json:"lost"`
}

// Count counts.
func Count(ops []Op) Counts {
	var c Counts
	given := map[[2]string]bool{}
	for _, op := range ops {
		if (op.Kind == Release || op.Kind == Withdraw) && op.Outcome != Refused {
			given[[2]string{op.Key, op.Owner}] = true
		}
	}
	last := map[string]Op{} // the last grant of each key
	for _, op := range sorted(ops) {
		switch op.Outcome {
		case Unknown:
			c.Unknown++
			continue
		case Refused:
			continue
		case Busy:
			c.Contended++
		case Lost:
			c.Lost++
		}
		c.Operations++
		if op.Kind != Acquire || op.Outcome != OK {
			continue
		}
		if before, ok := last[op.Key]; ok && before.Owner != op.Owner && !given[[2]string{op.Key, before.Owner}] {
			c.Takeovers++
		}
		last[op.Key] = op
	}
	return c
}
