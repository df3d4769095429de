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
	granted  code = 'G' // fence, microseconds left, the owner that is first in the queue
	held     code = 'H' // fence, microseconds left, place or how many wait, holder
	broken   code = 'X' // as held; the holder is who broke the lease
	begun    code = 'N' // as held: a break that would free the key now is refused
	kept     code = 'W' // fence, microseconds until the turn, place
	answered code = 'K' // as held, and after a newline the answer
	inDoubt  code = 'U' // as held
	free     code = 'I' // fence, how many wait
	released code = 'R' // the owner that is first in the queue of a free key, if nobody has woken it
	holds    code = 'O'
	lost     code = 'L'
	foreign  code = 'F' // another program's entry, or a damaged one
	clock    code = 'T' // the server's clock has stepped back
)

// reply is a script's answer.
type reply struct {
	code      code
	fence     lockstore.Fence
	left      time.Duration
	queue     int // a place in the queue, or how many wait
	holder    string
	data      []byte
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
	case released:
		r.next = lockstore.Owner(text)
		return r, nil
	case lost, foreign, clock, holds:
		return r, nil
	case granted, held, broken, begun, kept, answered, inDoubt, free:
	default:
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
	case answered:
		holder, data, _ := strings.Cut(text, "\n")
		r.holder, r.data = holder, []byte(data)
	case held, broken, begun, inDoubt:
		r.holder = text
	}
	return r, nil
}

// answer is a reply in the words of a driver. A reply that is no answer is an error.
func (r reply) answer(key string, req driver.Request) (driver.Answer, error) {
	switch r.code {
	case granted:
		return driver.Answer{Outcome: driver.Granted, Fence: r.fence, TTL: r.left}, nil
	case released:
		return driver.Answer{Outcome: driver.Done}, nil
	case holds:
		return driver.Answer{Outcome: driver.Holding}, nil
	case held, broken, begun, kept, answered, inDoubt, free:
		a := driver.Answer{Outcome: driver.Refused, Status: driver.Status{
			State: r.state(), Fence: r.fence, Holder: r.holder, Remaining: r.left, Result: r.data,
		}}
		switch req.Kind {
		case driver.Inspect, driver.Revoke:
			a.Status.Waiting = r.queue
		default:
			a.Position = r.queue
		}
		if req.Kind == driver.Inspect || req.Kind == driver.Revoke && r.code == broken {
			a.Outcome = driver.Done
		}
		if req.AtOnce && r.code == broken {
			a.Status.State = driver.Free
		}
		return a, nil
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

// state is the state of the key that an answer tells.
func (r reply) state() driver.State {
	switch r.code {
	case held, begun:
		return driver.Held
	case broken:
		return driver.Revoked
	case kept:
		return driver.Reserved
	case answered:
		return driver.Completed
	case inDoubt:
		return driver.InDoubt
	}
	return driver.Free
}
