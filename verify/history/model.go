package history

import (
	"errors"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

var is = errors.Is

// lease is the model's state of one key. The moment of expiry is known only to
// lie between lo, until which its holder may trust it, and hi, from which on it
// must be had by others.
type lease struct {
	owner     string // "" when the key is free
	fence     int64  // of the owner's grant; 0 when its reply was lost
	last      int64  // the largest fence that anybody was told
	lo, hi    time.Duration
	released  string // the last released owner
	withdrawn string // the last withdrawn owner: takes nothing any more
}

// model says which answers a store may give in which state. Unknown outcomes
// lead to both states.
func model(l Limits) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			return partition(history)
		},
		Init:  func() []any { return []any{lease{}} },
		Equal: func(a, b any) bool { return a == b },
		Step: func(state, input, _ any) []any {
			var next []any
			for _, s := range step(state.(lease), input.(Op), l) {
				next = append(next, s)
			}
			return next
		},
		DescribeOperation: func(input, _ any) string { return input.(Op).String() },
	}
	return m.ToModel()
}

func partition(history []porcupine.Operation) [][]porcupine.Operation {
	keys := map[string][]porcupine.Operation{}
	var order []string
	for _, op := range history {
		key := op.Input.(Op).Key
		if keys[key] == nil {
			order = append(order, key)
		}
		keys[key] = append(keys[key], op)
	}
	var parts [][]porcupine.Operation
	for _, key := range order {
		parts = append(parts, keys[key])
	}
	return parts
}

// step returns the states that an operation may lead to; none when the answer
// is not allowed in this state.
func step(s lease, op Op, l Limits) []lease {
	if op.Outcome == Unknown {
		return unknown(s, op, l)
	}
	mine := s.owner == op.Owner
	mayBeOver := s.owner == "" || op.Return >= s.lo-l.Early || l.Forgetful
	mustBeOver := s.owner == "" || op.Call > s.hi+l.Late
	switch op.Kind {
	case Acquire:
		switch op.Outcome {
		case OK:
			return granted(s, op, mine, mayBeOver, l)
		case Busy:
			if mine || mustBeOver {
				return nil
			}
			return []lease{s}
		case Lost:
			// Its own lease is over, or it was withdrawn.
			if mine && !mayBeOver {
				return nil
			}
			return []lease{s}
		}
	case Renew:
		switch op.Outcome {
		case OK:
			if !mine || s.fence != 0 && s.fence != op.Fence || op.Call > s.hi {
				return nil
			}
			s.fence = op.Fence
			s.lo, s.hi = max(s.lo, op.Call+op.Trust), max(s.hi, op.Return+op.TTL)
			return []lease{s}
		case Lost:
			if mine && !mayBeOver {
				return nil
			}
			return []lease{s}
		}
	case Release, Withdraw:
		switch op.Outcome {
		case OK:
			return freed(s, op, mine, l)
		case Lost:
			if mine && !mayBeOver || op.Kind == Withdraw {
				return nil
			}
			return []lease{s}
		}
	}
	if op.Outcome == Refused {
		return []lease{s}
	}
	return nil
}

func granted(s lease, op Op, mine, mayBeOver bool, l Limits) []lease {
	var next []lease
	if mine && (s.fence == op.Fence || s.fence == 0 && op.Fence > s.last) && op.Call <= s.hi {
		again := s
		again.fence, again.last = op.Fence, max(s.last, op.Fence)
		again.lo = max(s.lo, op.Call+op.Trust)
		next = append(next, again)
	}
	if op.Owner == s.withdrawn || op.Owner == s.released || !mayBeOver || op.Fence <= s.last {
		return next
	}
	fresh := s
	fresh.owner, fresh.fence, fresh.last = op.Owner, op.Fence, op.Fence
	fresh.lo, fresh.hi = op.Call+op.Trust, op.Return+op.TTL
	return append(next, fresh)
}

func freed(s lease, op Op, mine bool, l Limits) []lease {
	if op.Kind == Withdraw {
		s.withdrawn = op.Owner
	} else if !mine && s.released != op.Owner {
		return nil
	}
	if mine {
		s.owner, s.fence, s.lo, s.hi, s.released = "", 0, 0, 0, op.Owner
	}
	return []lease{s}
}

// unknown is nothing, or what the request would have done. It may be applied as
// late as the checker likes, so its times are as open as its return.
func unknown(s lease, op Op, l Limits) []lease {
	next := []lease{s}
	switch op.Kind {
	case Acquire:
		if s.owner != op.Owner && op.Owner != s.withdrawn && op.Owner != s.released {
			taken := s
			// The fence is told by a later answer to this owner, or never.
			taken.owner, taken.fence = op.Owner, 0
			taken.lo, taken.hi = op.Call, forever
			next = append(next, taken)
		}
	case Renew:
		if s.owner == op.Owner && (s.fence == 0 || s.fence == op.Fence) {
			longer := s
			longer.hi = forever
			next = append(next, longer)
		}
	case Release:
		if s.owner == op.Owner {
			s.owner, s.fence, s.lo, s.hi, s.released = "", 0, 0, 0, op.Owner
			next = append(next, s)
		}
	case Withdraw:
		s.withdrawn = op.Owner
		if s.owner == op.Owner {
			s.owner, s.fence, s.lo, s.hi, s.released = "", 0, 0, 0, op.Owner
		}
		next = append(next, s)
	}
	return next
}

// Check searches for an order of the operations that explains every answer. It
// returns false, and for people the longest that it could explain, when there is
// none; decided is false when the search took longer than limit, which is no
// success.
func Check(ops []Op, l Limits, limit time.Duration) (ok, decided bool, info porcupine.LinearizationInfo) {
	var all []porcupine.Operation
	for _, op := range ops {
		if op.Outcome == Refused {
			continue // certainly not applied, so it says nothing about the state
		}
		end := op.Return
		if op.Outcome == Unknown {
			end = forever
		}
		all = append(all, porcupine.Operation{ClientId: op.Client, Input: op, Call: int64(op.Call), Return: int64(end)})
	}
	slices.SortFunc(all, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	result, info := porcupine.CheckOperationsVerbose(model(l), all, limit)
	return result == porcupine.Ok, result != porcupine.Unknown, info
}
