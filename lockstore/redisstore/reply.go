package redisstore

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// code is the first byte of a script's answer. The comments name the rest of the answer.
type code byte

const (
	granted   code = 'G' // fence; for a new lease nothing else, or microseconds left, seat, the owner that is first in the queue; a line for each handed-over lease
	held      code = 'H' // fence, microseconds left, place or how many wait, 1 if the work has started, holder; a line for each holder
	revoked   code = 'X' // as held; the holder is who revoked the lease
	reserved  code = 'W' // as held
	completed code = 'K' // as held; to an Acquire the result follows
	cooldown  code = 'C' // as held
	inDoubt   code = 'U' // as held
	free      code = 'I' // as held
	ended     code = 'D' // to a Revoke that is done: one of the answers above with its holders; a line for each handed-over lease, behind an empty line
	done      code = 'R' // a line for each handed-over lease
	lost      code = 'L' // a line for each handed-over lease
	holds     code = 'O' // fence
	shared    code = 'S'
	address   code = 'A' // the address of a parked owner, or nothing
	foreign   code = 'B' // another program's entry, or a damaged one; perhaps what is wrong with its leases
)

// states are the codes that tell the state of a key.
var states = map[code]driver.State{
	free: driver.Free, reserved: driver.Reserved, held: driver.Held, revoked: driver.Revoked,
	completed: driver.Completed, cooldown: driver.Cooldown, inDoubt: driver.InDoubt,
}

// reply is a script's answer.
type reply struct {
	code      code
	ended     bool
	fence     lockstore.Fence
	left      time.Duration
	seat      int
	queue     int // a place in the queue, or how many wait
	parked    int // of those who wait
	started   bool
	holder    string
	result    []byte
	holders   []driver.LiveLease
	next      lockstore.Owner   // who is the first in the queue
	handed    []news            // whose lists have no element yet
	wake      []lockstore.Owner // the parked owners that were handed the key, or whose queue has ended
	damage    string            // what is wrong with the leases of the entry
	ambiguous bool              // an earlier attempt of this request may have been applied
}

// news is what an owner learns that was handed the key.
type news struct {
	owner   lockstore.Owner
	element string // of its list
}

func parseReply(text string) (reply, error) {
	if text == "" {
		return reply{}, errors.New("an empty answer")
	}
	r := reply{code: code(text[0])}
	if r.ended = r.code == ended && len(text) > 1; r.ended {
		text = text[1:]
		r.code = code(text[0])
	}
	p := parser{rest: text[1:]}
	_, state := states[r.code]
	switch {
	case r.code == granted:
		if r.fence, r.left = p.fence(), math.MaxInt64; p.rest == "" {
			break
		}
		r.left, r.seat = p.micros(), p.number()
		r.next = lockstore.Owner(p.line())
		r.handed, r.wake = p.news()
	case state:
		r.fence, r.left = p.fence(), p.micros()
		r.queue, r.parked = p.waiting()
		r.started = p.number() == 1
		r.holder = p.line()
		switch {
		case r.code == completed:
			r.result = []byte(p.rest)
		default:
			r.holders = p.holders()
			r.handed, r.wake = p.news()
		}
	case r.code == done, r.code == lost:
		p.line()
		r.handed, r.wake = p.news()
	case r.code == holds:
		r.fence = p.fence()
	case r.code == address:
		r.result = []byte(p.rest)
	case r.code == foreign:
		r.damage = p.rest
	case r.code != shared:
		return reply{}, fmt.Errorf("an answer of the unknown kind %q", r.code)
	}
	return r, p.err
}

// parser reads the words of an answer one by one, and keeps the first error.
type parser struct {
	rest string
	err  error
}

func (p *parser) word() (w string) {
	w, p.rest, _ = strings.Cut(p.rest, " ")
	return w
}

func (p *parser) line() (l string) {
	l, p.rest, _ = strings.Cut(p.rest, "\n")
	return l
}

func (p *parser) int(bits int) int64 { return p.parse(p.word(), bits) }

func (p *parser) parse(word string, bits int) int64 {
	n, err := strconv.ParseUint(word, 10, bits)
	if err != nil && p.err == nil {
		p.err = err
	}
	return int64(n)
}

func (p *parser) fence() lockstore.Fence { return lockstore.Fence(p.int(63)) }

// micros is a time that is still below 63 bits in nanoseconds.
func (p *parser) micros() time.Duration { return time.Duration(p.int(53)) * time.Microsecond }

func (p *parser) number() int { return int(p.int(31)) }

// waiting is a place, or how many wait and how many of them are parked.
func (p *parser) waiting() (queue, parked int) {
	all, of, both := strings.Cut(p.word(), "+")
	if queue = int(p.parse(all, 31)); both {
		parked = int(p.parse(of, 31))
	}
	return queue, parked
}

func (p *parser) news() (all []news, wake []lockstore.Owner) {
	for p.rest != "" {
		line := p.line()
		if owner, parked := strings.CutPrefix(line, "\x02"); parked {
			wake = append(wake, lockstore.Owner(owner))
		} else if owner, element, found := strings.Cut(line, " "); found {
			all = append(all, news{lockstore.Owner(owner), element})
		}
	}
	return all, wake
}

func (p *parser) holders() (all []driver.LiveLease) {
	for p.rest != "" && p.rest[0] != '\n' {
		h := driver.LiveLease{Fence: p.fence(), Remaining: p.micros(), Seat: p.number(), MaxHolders: p.number()}
		if letter := p.word(); letter != "" {
			h.State = states[code(letter[0])]
		}
		h.Text = p.line()
		all = append(all, h)
	}
	return all
}

// answer is a reply in the words of a driver. A reply that is no answer is an error.
func (r reply) answer(key string, req driver.Request) (driver.Answer, error) {
	a, err := r.outcome(key, req)
	for _, h := range r.handed {
		a.HandedOver = append(a.HandedOver, h.owner)
	}
	a.Wake = r.wake
	return a, err
}

func (r reply) outcome(key string, req driver.Request) (driver.Answer, error) {
	if state, ok := states[r.code]; ok {
		return r.status(state, req), nil
	}
	switch r.code {
	case granted:
		return driver.Answer{Outcome: driver.Granted, Fence: r.fence, Seat: r.seat, TTL: r.left, Hint: driver.Hint(r.next)}, nil
	case done:
		return driver.Answer{Outcome: driver.Done}, nil
	case holds:
		return driver.Answer{Outcome: driver.Holding, Fence: r.fence}, nil
	case shared:
		return driver.Answer{Outcome: driver.Exclusive}, nil
	case lost:
		if r.ambiguous && forgets(req) {
			// The other attempt may have been applied, and other owners may have had the key
			// since. Lost would say that the request had no effect.
			return driver.Answer{}, fmt.Errorf("redisstore: key %q: outcome unknown: a reply was lost, and the entry does not show this lease", key)
		}
		if req.Kind == driver.Resolve {
			return driver.Answer{Outcome: driver.Lost, Why: "it is not in doubt with this fence"}, nil
		}
		return driver.Answer{Outcome: driver.Lost, Why: "the lease is expired, released, revoked or gone, or the key is another owner's"}, nil
	case foreign:
		return driver.Answer{}, errForeign(key, nil, r.damage)
	}
	return driver.Answer{}, unexpected(key, r.code)
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
	status := driver.Status{
		State: state, Fence: r.fence, Holder: r.holder, Remaining: r.left, Result: r.result, Started: r.started, Holders: r.holders,
	}
	if req.Kind != driver.Inspect && !r.ended {
		return driver.Answer{Outcome: driver.Refused, Position: r.queue, Status: status, Hint: driver.Hint(strconv.FormatInt(int64(r.fence), 10))}
	}
	status.Waiting, status.Parked = r.queue, r.parked
	return driver.Answer{Outcome: driver.Done, Status: status}
}
