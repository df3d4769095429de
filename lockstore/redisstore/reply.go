package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
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
	holder    lockstore.Holder
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
		r.holder, r.data = lockstore.DecodeHolder(holder), []byte(data)
	case held, broken, begun, inDoubt:
		r.holder = lockstore.DecodeHolder(text)
	}
	return r, nil
}

// refusal is the error for an answer that is not success.
func (r reply) refusal(key string) error {
	switch r.code {
	case held:
		return &lockstore.HeldError{Key: key, Holder: r.holder, Remaining: r.left, Place: r.queue}
	case answered:
		return &lockstore.KeptError{HeldError: lockstore.HeldError{Key: key, Holder: r.holder, Remaining: r.left}, Data: r.data}
	case begun:
		return &lockstore.BegunError{HeldError: lockstore.HeldError{Key: key, Holder: r.holder, Remaining: r.left}}
	case inDoubt:
		return &lockstore.DoubtError{HeldError: lockstore.HeldError{Key: key, Holder: r.holder}}
	case kept:
		return &lockstore.HeldError{Key: key, Remaining: r.left, Place: r.queue, Free: true}
	case holds:
		return fmt.Errorf("redisstore: key %q: %w", key, lockstore.ErrGranted)
	case lost:
		return fmt.Errorf("redisstore: key %q: the lease is expired, released or gone, or the key is another owner's: %w", key, lockstore.ErrLost)
	case foreign:
		return errForeign(key, nil)
	case clock:
		return fmt.Errorf("redisstore: key %q: more time is left than the lease's TTL, "+
			"so the server's clock has stepped back (or the entry is damaged): %w", key, lockstore.ErrCorrupt)
	}
	return fmt.Errorf("redisstore: key %q: unexpected answer %q, outcome unknown", key, r.code)
}
