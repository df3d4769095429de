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
	granted  code = 'G' // fence, microseconds left
	held     code = 'H' // fence, microseconds left, holder
	free     code = 'I' // fence
	released code = 'R'
	lost     code = 'L'
	foreign  code = 'F' // another program's entry, or a damaged one
	clock    code = 'T' // the server's clock has stepped back
)

// reply is a script's answer.
type reply struct {
	code      code
	fence     lockstore.Fence
	left      time.Duration
	holder    lockstore.Holder
	ambiguous bool // an earlier attempt of this request may have been applied
}

func parseReply(text string) (reply, error) {
	if text == "" {
		return reply{}, fmt.Errorf("an empty answer")
	}
	r := reply{code: code(text[0])}
	text = text[1:]
	switch r.code {
	case released, lost, foreign, clock:
		return r, nil
	case granted, held, free:
		number, rest, _ := strings.Cut(text, " ")
		fence, err := strconv.ParseUint(number, 10, 63)
		if err != nil {
			return reply{}, err
		}
		r.fence = lockstore.Fence(fence)
		if r.code == free {
			return r, nil
		}
		number, rest, _ = strings.Cut(rest, " ")
		left, err := strconv.ParseUint(number, 10, 53) // in nanoseconds still below 63 bits
		if err != nil {
			return reply{}, err
		}
		r.left = time.Duration(left) * time.Microsecond
		if r.code == held {
			r.holder = lockstore.DecodeHolder(rest)
		}
		return r, nil
	}
	return reply{}, fmt.Errorf("an answer of the unknown kind %q", r.code)
}

// refusal is the error for an answer that is not success.
func (r reply) refusal(key string) error {
	switch r.code {
	case held:
		return &lockstore.HeldError{Key: key, Holder: r.holder, Remaining: r.left}
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
