package redisstore

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// book is the rule book as this store has it.
var book = rules.Book{Places: places, Marks: marks}

// How many places a queue has, and how many owners that have ended an entry remembers.
const (
	places = 128
	marks  = 8
)

// differs says how an answer, or the entry after it, is not that of the rule book.
func differs(before rules.State, now time.Time, r driver.Request, got driver.Answer, entry string) (next rules.State, problem string) {
	next, _, want, _ := book.Decide(before, rules.At(now.UTC().Truncate(time.Microsecond)), r) // TIME has microseconds
	for _, a := range []*driver.Answer{&want, &got} {
		a.Why, a.Hint = "", ""
		if a.Outcome == driver.Lost {
			a.HandedOver = nil
		}
		if r.Kind != driver.Inspect {
			a.Status.Holders = nil
		}
		if r.Kind != driver.Acquire {
			a.Status.Result = nil
		}
		if a.Outcome == driver.Refused {
			a.Status.Waiting, a.Status.Parked = 0, 0
		}
	}
	if r.Kind == driver.Acquire && want.Outcome == driver.Granted {
		want.TTL = min(want.TTL, r.TTL)
	}
	if !reflect.DeepEqual(want, got) {
		return next, fmt.Sprintf("the answer to %+v is\n%+v; want\n%+v, for\n%+v", r, got, want, before)
	}
	after, ok := decode(entry)
	if !ok || !reflect.DeepEqual(normal(after), normal(next)) {
		return next, fmt.Sprintf("the entry is %q, so the state is\n%+v; want\n%+v, after %s of\n%+v", entry, normal(after), normal(next), r.Kind, before)
	}
	return next, ""
}

// normal is a state without what no answer depends on, and with nil for nothing.
func normal(s rules.State) rules.State {
	s.Holders, s.Queue, s.Ended = append([]rules.Holder(nil), s.Holders...), append([]rules.Waiter(nil), s.Queue...), append([]rules.Ended(nil), s.Ended...)
	for i := range s.Queue {
		s.Queue[i].Since = time.Time{} // of a place that an older version has written
	}
	if s.Closed.For == 0 {
		s.Closed = rules.Closed{}
	}
	return s
}

// An entry: its letter, fence, owner, marks, since, TTL, holder and the rest.
var (
	soundEntry  = regexp.MustCompile(`(?s)^lambdalock3 ([HOFKCX])(?:\d{3})(\d{16}) ([^ \n]*) ([^\n]*)\n(\d{16}) (\d{1,13}) ([^\n]*)\n(.*)$`)
	soundHolder = regexp.MustCompile(`^([^ \n]+) (\d{16}) (\d{1,9}) (\d{1,9}) (\d{16}) (\d{1,13}) ([a-zA-Z]*) ([^\n]*)\n`)
	soundMarks  = regexp.MustCompile(`^[0-8]([FEKDV]\d{16} [^ \n]+ )*$`)
	soundPlace  = regexp.MustCompile(`^([^ \n\x01\x02]+)\x01([1-9]\d?)\x01(\d+)(?:\x02(\d{1,8}))?(?:\x01.*)?$`)
	soundQueue  = regexp.MustCompile(`^ ([^ \n]+ )+$`)
)

// marksOf are the marks of an entry, if they are sound.
func marksOf(text string) (all []rules.Ended, ok bool) {
	words := strings.Split(text[min(1, len(text)):], " ")
	if !soundMarks.MatchString(text) || len(words)/2 != int(text[0]-'0') {
		return nil, false
	}
	for i := 0; i+1 < len(words); i += 2 {
		how := map[byte]rules.How{'F': rules.Released, 'E': rules.Expired, 'K': rules.Completed, 'D': rules.Resolved, 'V': rules.Revoked}[words[i][0]]
		fence, _ := strconv.ParseInt(words[i][1:], 10, 64)
		all = append(all, rules.Ended{Owner: lockstore.Owner(words[i+1]), Fence: driver.Fence(fence), How: how})
	}
	return all, true
}

// decode reads an entry, if it is one.
func decode(entry string) (s rules.State, ok bool) {
	if entry == "" {
		return s, true
	}
	p := soundEntry.FindStringSubmatch(entry)
	if p == nil {
		return s, false
	}
	number := func(text string) int64 { n, _ := strconv.ParseInt(text, 10, 64); return n }
	at := func(text string) time.Time { return time.UnixMicro(number(text)).UTC() }
	span := func(text string) time.Duration { return time.Duration(number(text)) * time.Microsecond }
	state, owner, ended, rest := p[1], p[3], p[4], p[8]
	if strings.Contains("HOF", state) == (owner == "") || state == "K" && rest == "" {
		return s, false
	}
	s.LastFence = driver.Fence(number(p[2]))
	switch state {
	case "H", "O":
		s.Holders = []rules.Holder{{
			Owner: driver.Owner(owner), Fence: s.LastFence, MaxHolders: 1, Since: at(p[5]), TTL: span(p[6]), Text: p[7], HandedOver: state == "O",
		}}
	case "F":
		rest = ""
	case "K", "C":
		s.Closed = rules.Closed{Since: at(p[5]), For: span(p[6]), Text: p[7]}
		if rest != "" {
			s.Closed.Result = driver.HiddenBytes(rest)
		}
		rest = ""
	case "X":
		for !strings.HasPrefix(rest, "\n") {
			h := soundHolder.FindStringSubmatch(rest)
			if h == nil {
				return s, false
			}
			s.Holders = append(s.Holders, rules.Holder{
				Owner: driver.Owner(h[1]), Fence: driver.Fence(number(h[2])), Seat: int(number(h[3])), MaxHolders: int(number(h[4])),
				Since: at(h[5]), TTL: span(h[6]), Text: h[8],
				HandedOver: strings.Contains(h[7], "h"), Revoked: strings.Contains(h[7], "r"), Started: strings.Contains(h[7], "s"),
			})
			rest = rest[len(h[0]):]
		}
		rest = rest[1:]
	}
	if s.Corrupt() != nil {
		return s, false
	}
	if soundQueue.MatchString(rest) && entry[13:16] != "000" {
		for place := range strings.SplitSeq(strings.TrimSuffix(rest[1:], " "), " ") {
			if p := soundPlace.FindStringSubmatch(place); p != nil {
				s.Queue = append(s.Queue, rules.Waiter{Owner: driver.Owner(p[1]), MaxHolders: int(number(p[2])), Since: at(p[3]), Parked: span(p[4])})
			}
		}
	}
	s.Ended, _ = marksOf(ended)
	if state == "F" {
		s.Ended = append(s.Ended, rules.Ended{Owner: driver.Owner(owner), Fence: s.LastFence})
		s.Ended = s.Ended[max(0, len(s.Ended)-marks):]
	}
	return s, true
}
