package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/lockstore"
)

// The letters with which an answer of the script begins. The comments name the rest of the answer.
const (
	granted   = 'G' // fence; for a new lease nothing else, or microseconds left, seat, the owner that is first in the queue; a line for each handed-over lease
	held      = 'H' // fence, microseconds left, place or for each place how long it has waited, how long the first has, 1 if the work has started, holder; a line for each holder
	revoked   = 'X' // as held; the holder is who revoked the lease
	reserved  = 'W' // as held
	completed = 'K' // as held; to an Acquire the result follows
	cooldown  = 'C' // as held
	inDoubt   = 'U' // as held
	free      = 'I' // as held
	ended     = 'D' // to a Revoke that is done: one of the answers above with its holders; a line for each handed-over lease, behind an empty line
	done      = 'R' // a line for each handed-over lease
	lost      = 'L' // a line for each handed-over lease
	holds     = 'O' // fence
	shared    = 'S'
	address   = 'A' // the address of a parked owner, or nothing
	foreign   = 'B' // another program's entry, or a damaged one; perhaps what is wrong with its leases
)

// states are the letters that tell the state of a key.
var states = map[byte]driver.State{
	free: driver.Free, reserved: driver.Reserved, held: driver.Held, revoked: driver.Revoked,
	completed: driver.Completed, cooldown: driver.Cooldown, inDoubt: driver.InDoubt,
}

// news is what an owner learns that was handed the key.
type news struct {
	owner   lockstore.Owner
	element string // of its list
}

// answer reads the script's answer to a request. handed are those whose lists have no element yet.
func (c *call) answer(r driver.Request) (a driver.Answer, handed []news, err error) {
	text, told := strings.CutPrefix(c.text, string(ended)) // what follows tells the state of the key
	if text == "" {
		return a, nil, c.unreadable(errors.New("an empty answer"))
	}
	letter, p := text[0], parser{rest: text[1:]}
	state, tellsState := states[letter]
	switch {
	case letter == granted:
		a = driver.Answer{Outcome: driver.Granted, Fence: p.fence(), TTL: r.TTL}
		if p.rest != "" {
			if a.TTL = p.micros(); r.Kind == driver.Acquire { // of a lease that the same owner had already
				a.TTL = min(a.TTL, r.TTL)
			}
			a.Seat, a.Hint = p.number(), driver.Hint(p.line())
			handed = p.news(&a)
		}
	case tellsState:
		s := driver.Status{State: state, Fence: p.fence(), Remaining: p.micros()}
		position, queue := p.waiting()
		s.OldestWait, s.Started, s.Holder = p.micros(), p.number() == 1, p.line()
		if state == driver.Completed {
			s.Result = []byte(p.rest)
		} else {
			s.Holders = p.holders()
			handed = p.news(&a)
		}
		if r.Kind == driver.Inspect || told {
			a.Outcome, s.Waiting = driver.Done, len(queue)
			for _, w := range queue {
				if w.Parked {
					s.Parked++
				}
			}
			if r.Kind == driver.Inspect {
				s.Queue = queue
			}
		} else {
			a.Outcome, a.Covered, a.Position, a.Hint = driver.Refused, position < 0, max(0, position), driver.Hint(strconv.FormatInt(int64(s.Fence), 10))
		}
		a.Status = s
	case letter == done:
		a.Outcome = driver.Done
		handed = p.news(&a)
	case letter == lost:
		a.Outcome, a.Why = driver.Lost, "the lease is expired, released, revoked or gone, or the key is another owner's"
		if r.Kind == driver.Resolve {
			a.Why = "it is not in doubt with this fence"
		}
		handed = p.news(&a)
		if c.state.Load()&ambiguous != 0 && forgets(r) {
			// The other attempt may have been applied, and other owners may have had the key
			// since. Lost would say that the request had no effect.
			a.Outcome, err = 0, fmt.Errorf("redisstore: key %q: outcome unknown: a reply was lost, and the entry does not show this lease", c.key)
		}
	case letter == holds:
		a.Outcome, a.Fence = driver.Holding, p.fence()
	case letter == shared:
		a.Outcome = driver.Exclusive
	case letter == foreign:
		return a, nil, errForeign(c.key, p.rest)
	default:
		p.err = fmt.Errorf("an answer of the unknown kind %q", letter)
	}
	if p.err != nil {
		return driver.Answer{}, nil, c.unreadable(p.err)
	}
	return a, handed, err
}

// forgets reports whether a second attempt of a request, after other owners had the key, or after the end of a lease that the first one
// has revoked, may be lost although the first attempt was applied.
func forgets(r driver.Request) bool {
	return slices.Contains([]driver.Kind{driver.Release, driver.Abandon, driver.MarkStarted, driver.Complete, driver.Resolve, driver.Revoke}, r.Kind)
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

func (p *parser) parse(word string, bits int) int64 {
	n, err := strconv.ParseUint(word, 10, bits)
	if err != nil && p.err == nil {
		p.err = err
	}
	return int64(n)
}

func (p *parser) fence() lockstore.Fence { return lockstore.Fence(p.parse(p.word(), 63)) }

// micros is a time that is still below 63 bits in nanoseconds.
func (p *parser) micros() time.Duration { return p.duration(p.word()) }

func (p *parser) duration(word string) time.Duration {
	return time.Duration(p.parse(word, 53)) * time.Microsecond
}

func (p *parser) number() int { return int(p.parse(p.word(), 31)) }

// waiting is a place, or -1 for c, if another run covers the owner, or the queue.
func (p *parser) waiting() (position int, queue []driver.Place) {
	word := p.word()
	places, is := strings.CutPrefix(word, ",")
	switch {
	case word == "c":
		return -1, nil
	case !is:
		return int(p.parse(word, 31)), nil
	}
	for place := range strings.SplitSeq(places, ",") {
		if waited, parked := strings.CutSuffix(place, "+"); place != "" {
			queue = append(queue, driver.Place{Waited: p.duration(waited), Parked: parked})
		}
	}
	return 0, queue
}

// news tells the answer who was handed the key and whom the caller wakes.
func (p *parser) news(a *driver.Answer) (all []news) {
	for p.rest != "" {
		line := p.line()
		if owner, parked := strings.CutPrefix(line, "\x02"); parked {
			a.Wake = append(a.Wake, lockstore.Owner(owner))
		} else if owner, element, found := strings.Cut(line, " "); found {
			a.HandedOver = append(a.HandedOver, lockstore.Owner(owner))
			all = append(all, news{lockstore.Owner(owner), element})
		}
	}
	return all
}

func (p *parser) holders() (all []driver.LiveLease) {
	for p.rest != "" && p.rest[0] != '\n' {
		h := driver.LiveLease{Fence: p.fence(), Remaining: p.micros(), Seat: p.number(), MaxHolders: p.number()}
		if letter := p.word(); letter != "" {
			h.State = states[letter[0]]
		}
		h.Text = p.line()
		all = append(all, h)
	}
	return all
}
