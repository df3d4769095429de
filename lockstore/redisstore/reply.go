package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
	"github.com/lambdalock/lambdalock/lockstore/driver"
)

// code is the first byte of a script's answer. The comments name the rest of the answer.
type code byte

const (
	granted   code = 'G' // fence, microseconds left, the owner that is first in the queue
	held      code = 'H' // fence, microseconds left, place or how many wait, holder
	revoked   code = 'X' // as held; the holder is who revoked the lease
	reserved  code = 'W' // as held, without a holder
	completed code = 'K' // as held, and to an Acquire after a newline the result
	cooldown  code = 'C' // as completed, with an empty result
	inDoubt   code = 'U' // as held
	free      code = 'I' // fence, how many wait
	ended     code = 'D' // as revoked, to the Revoke that is done
	done      code = 'R' // the owner that is first in the queue of a free key, if nobody has woken it
	holds     code = 'O'
	lost      code = 'L'
	foreign   code = 'F' // another program's entry, or a damaged one
	clock     code = 'T' // the server's clock has stepped back
)

// states are the codes that tell the state of a key.
var states = map[code]driver.State{
	free: driver.Free, reserved: driver.Reserved, held: driver.Held, revoked: driver.Revoked, ended: driver.Revoked,
	completed: driver.Completed, cooldown: driver.Cooldown, inDoubt: driver.InDoubt,
}

// reply is a script's answer.
type reply struct {
	code      code
	fence     lockstore.Fence
	left      time.Duration
	queue     int // a place in the queue, or how many wait
	holder    string
	result    []byte
	next      lockstore.Owner // who is the first in the queue
	ambiguous bool            // an earlier attempt of this request may have been applied
}

func parseReply(text string) (reply, error) {
	if text == "" {
		return reply{}, fmt.Errorf("an empty answer")
	}
	r := reply{code: code(text[0])}
	text = text[1:]
	switch r.code {
	case done:
		r.next = lockstore.Owner(text)
		return r, nil
	case lost, foreign, clock, holds:
		return r, nil
	}
	if _, ok := states[r.code]; !ok && r.code != granted {
		return reply{}, fmt.Errorf("an answer of the unknown kind %q", r.code)
	}
	number := func(bits int) (n uint64, err error) {
		var word string
		word, text, _ = strings.Cut(text, " ")
		return strconv.ParseUint(word, 10, bits)
	}
	fence, err := number(63)
	if err != nil {
		return reply{}, err
	}
	r.fence = lockstore.Fence(fence)
	if r.code != free {
		left, err := number(53) // in nanoseconds still below 63 bits
		if err != nil {
			return reply{}, err
		}
		r.left = time.Duration(left) * time.Microsecond
	}
	if r.code != granted {
		queue, err := number(31)
		if err != nil {
			return reply{}, err
		}
		r.queue = int(queue)
	}
	switch r.code {
	case granted:
		r.next = lockstore.Owner(text)
	case completed, cooldown:
		holder, result, _ := strings.Cut(text, "\n")
		r.holder, r.result = holder, []byte(result)
	default:
		r.holder = text
	}
	return r, nil
}

// answer is a reply in the words of a driver. A reply that is no answer is an error.
func (r reply) answer(key string, req driver.Request) (driver.Answer, error) {
	if state, ok := states[r.code]; ok {
		return r.status(state, req), nil
	}
	switch r.code {
	case granted:
		return driver.Answer{Outcome: driver.Granted, Fence: r.fence, TTL: r.left}, nil
	case done:
		return driver.Answer{Outcome: driver.Done}, nil
	case holds:
		return driver.Answer{Outcome: driver.Holding}, nil
	case lost:
		if r.ambiguous && forgets(req) {
			// The other attempt may have been applied, and other owners may have had the key
			// since. Lost would say that the request had no effect.
			return driver.Answer{}, fmt.Errorf("redisstore: key %q: outcome unknown: a reply was lost, and the entry does not show this lease", key)
		}
		if req.Kind == driver.Resolve {
			return driver.Answer{Outcome: driver.Lost, Why: "it is not in doubt with this fence"}, nil
		}
		return driver.Answer{Outcome: driver.Lost, Why: "the lease is expired, released or gone, or the key is another owner's"}, nil
	case foreign:
		return driver.Answer{}, errForeign(key, nil)
	case clock:
		return driver.Answer{}, fmt.Errorf("redisstore: key %q: more time is left than the lease's TTL, "+
			"so the server's clock has stepped back (or the entry is damaged): %w", key, lockstore.ErrCorrupt)
	}
	return driver.Answer{}, fmt.Errorf("redisstore: key %q: unexpected answer %q, outcome unknown", key, r.code)
}

// forgets reports whether a second attempt of a request, after other owners had the key, may
// be lost although the first attempt was applied.
func forgets(r driver.Request) bool {
	switch r.Kind {
	case driver.Release, driver.Abandon, driver.MarkStarted, driver.Complete, driver.Resolve:
		return true
	case driver.Revoke:
		return r.AtOnce
	}
	return false
}

// status is the answer that tells the state of the key.
func (r reply) status(state driver.State, req driver.Request) driver.Answer {
	status := driver.Status{State: state, Fence: r.fence, Holder: r.holder, Remaining: r.left, Result: r.result}
	if req.Kind != driver.Inspect && r.code != ended {
		return driver.Answer{Outcome: driver.Refused, Position: r.queue, Status: status}
	}
	status.Waiting = r.queue
	switch {
	case req.AtOnce && r.queue > 0:
		status.State = driver.Reserved
	case req.AtOnce:
		status.State = driver.Free
	}
	return driver.Answer{Outcome: driver.Done, Status: status}
}
