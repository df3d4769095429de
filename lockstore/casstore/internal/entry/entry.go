// Package entry is the value of an entry: the state of a key as JSON, behind the name of its format and a checksum. Each time in it
// that decides anything comes from a stamp of the service, so a client's clock may be wrong by any amount.
package entry

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// Entry is a value, decoded. The zero Entry is that of a key without an entry.
type Entry struct{ kept[whole] }

type whole = fields[kept[holder], queue, kept[ended], kept[closed]]

// plain is an entry without fields of a later version, as nearly all are: to read or write it takes a quarter of the time.
type plain = fields[holder, []waiter, ended, closed]

// Number counts the writes of the entry.
func (e Entry) Number() uint64 { return e.it.N }

type fields[H, Q, E, C any] struct {
	N       uint64          `json:"n"` // so that each write changes the value
	Fence   lockstore.Fence `json:"fence,omitempty"`
	Holders []H             `json:"holders,omitempty"`
	Queue   Q               `json:"queue,omitempty"`
	Ended   []E             `json:"ended,omitempty"`
	Closed  *C              `json:"closed,omitempty"`
}

// Begin, also of closed, is when the lease began at the earliest, in nanoseconds since 1970. The method
// Codec.since adds the blur. 0, or a time after the stamp of the write (a clock was set back), stands for this stamp.
type holder struct {
	Owner      string          `json:"owner"`
	Fence      lockstore.Fence `json:"fence"`
	Seat       int             `json:"seat,omitempty"`
	Others     int             `json:"others,omitempty"` // MaxHolders - 1, so that a mutex needs no field
	Begin      int64           `json:"begin,omitempty"`
	TTL        time.Duration   `json:"ttl"`
	Text       string          `json:"text,omitempty"`
	HandedOver bool            `json:"handed,omitempty"`
	Revoked    bool            `json:"revoked,omitempty"`
	Started    bool            `json:"started,omitempty"`
	// Starts is Started in the write of MarkStarted. It counts only if the stamp of this write is before the end of the lease. The next write
	// makes it Started, or drops it.
	Starts bool `json:"starts,omitempty"`
}

type waiter struct {
	Owner  string        `json:"owner"`
	Others int           `json:"others,omitempty"`
	Parked time.Duration `json:"parked,omitempty"`
	Since  int64         `json:"since,omitempty"` // when it joined, in nanoseconds since 1970; 0 stands for the stamp of the write
	Work   string        `json:"work,omitempty"`
	Event  string        `json:"event,omitempty"`
}

type ended struct {
	Owner string          `json:"owner"`
	Fence lockstore.Fence `json:"fence,omitempty"`
	How   rules.How       `json:"how,omitempty"`
}

type closed struct {
	Begin  int64         `json:"begin,omitempty"`
	For    time.Duration `json:"for"`
	Result []byte        `json:"result,omitempty"`
	Text   string        `json:"text,omitempty"`
}

// queue is read as empty if it is damaged. That is safe: a queue can only refuse a lock, so without it nothing is
// granted that the leases forbid.
type queue []kept[waiter]

func (q *queue) UnmarshalJSON(text []byte) error {
	var all []kept[waiter]
	if json.Unmarshal(text, &all) != nil || slices.ContainsFunc(all, func(k kept[waiter]) bool { return k.it.damaged() }) {
		all = nil
	}
	*q = all
	return nil
}

func (w waiter) damaged() bool {
	return w.Owner == "" || w.Others < 0 || w.Parked < 0 || w.Parked > driver.MaxParkedTurn
}

const mark = "lambdalock2 "

// Encode returns the mark, a checksum, and the entry as JSON.
func (e Entry) Encode() []byte {
	var object any = e
	if p, ok := e.plain(); ok {
		object = p
	}
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // strings, numbers, and what was JSON before
	}
	return fmt.Appendf(nil, "%s%08x %s", mark, crc32.ChecksumIEEE(text), text)
}

// plain returns false for an entry that has fields of a later version.
func (e Entry) plain() (p plain, ok bool) {
	holders, ok1 := alone(e.it.Holders)
	places, ok2 := alone(e.it.Queue)
	marks, ok3 := alone(e.it.Ended)
	p = plain{e.it.N, e.it.Fence, holders, places, marks, nil}
	ok = ok1 && ok2 && ok3 && len(e.other) == 0
	if c := e.it.Closed; c != nil {
		p.Closed, ok = &c.it, ok && len(c.other) == 0
	}
	return p, ok
}

// Decode reads what Encode has written.
func Decode(value []byte) (e Entry, err error) {
	rest, ok := bytes.CutPrefix(value, []byte(mark))
	sum, text, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 {
		return Entry{}, fmt.Errorf("the value does not begin as a lock's: %.40q", value)
	}
	if want := fmt.Sprintf("%08x", crc32.ChecksumIEEE(text)); string(sum) != want {
		return Entry{}, fmt.Errorf("the value has the checksum %.8q; want %s", sum, want)
	}
	if e, err = unmarshal(text); err != nil {
		return Entry{}, err
	}
	bad := e.it.N == 0 || e.it.Fence < 0 || slices.ContainsFunc(e.it.Holders, func(k kept[holder]) bool {
		h := k.it
		return h.Owner == "" || h.Seat < 0 || h.Others < 0 || h.Begin < 0 || h.TTL <= 0 || h.TTL > longest
	})
	if c := e.it.Closed; c != nil {
		bad = bad || c.it.Begin < 0 || c.it.For <= 0 || c.it.For > longest
	}
	if bad {
		return Entry{}, errors.New("the value's fields contradict each other")
	}
	return e, nil
}

// unmarshal reads an entry. One that is not plain, or that is damaged, takes longer.
func unmarshal(text []byte) (e Entry, err error) {
	var p plain
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode(&p) != nil || d.InputOffset() != int64(len(text)) || slices.ContainsFunc(p.Queue, waiter.damaged) {
		err = json.Unmarshal(text, &e)
		return e, err
	}
	e.it = whole{p.N, p.Fence, wrap(p.Holders), wrap(p.Queue), wrap(p.Ended), nil}
	if p.Closed != nil {
		e.it.Closed = &kept[closed]{it: *p.Closed}
	}
	return e, nil
}

// longest is the longest time in an entry.
const longest = lockstore.MaxResultTime + MaxResolution

// MaxResolution bounds a Codec's Resolution.
const MaxResolution = time.Second

// ThisWrite is the time of a write that is still to come: later than every other time.
var ThisWrite = time.Unix(0, 1<<62)

// Codec says how exact the stamps of a service are.
type Codec struct {
	Resolution time.Duration // all stamps are whole multiples of it
	Skew       time.Duration // by which the clocks of the service's hosts may differ
}

// Blur is by how much two stamps of one moment may differ.
func (c Codec) Blur() time.Duration { return c.Resolution + c.Skew }

// State is what an entry with the stamp written says.
func (c Codec) State(e Entry, written time.Time) (s rules.State) {
	s.LastFence = e.it.Fence
	s.Queue = slices.Grow(s.Queue, len(e.it.Queue))
	s.Ended = slices.Grow(s.Ended, len(e.it.Ended))
	for _, k := range e.it.Holders {
		h := k.it
		since := c.since(h.Begin, written, h.TTL)
		s.Holders = append(s.Holders, rules.Holder{
			Owner: driver.Owner(h.Owner), Fence: h.Fence, Seat: h.Seat, MaxHolders: h.Others + 1, Since: since, TTL: h.TTL,
			Text: h.Text, HandedOver: h.HandedOver, Revoked: h.Revoked, Started: h.Started || h.Starts && written.Before(since.Add(h.TTL)),
		})
	}
	for _, k := range e.it.Queue {
		w := k.it
		since := time.Unix(0, cmp.Or(w.Since, written.UnixNano()))
		s.Queue = append(s.Queue, rules.Waiter{Owner: driver.Owner(w.Owner), MaxHolders: w.Others + 1, Parked: w.Parked, Since: since, Work: w.Work, Event: w.Event})
	}
	for _, m := range e.it.Ended {
		s.Ended = append(s.Ended, rules.Ended{Owner: driver.Owner(m.it.Owner), Fence: m.it.Fence, How: m.it.How})
	}
	if e.it.Closed != nil {
		is := e.it.Closed.it
		s.Closed = rules.Closed{Since: c.since(is.Begin, written, is.For), For: is.For, Text: is.Text}
		if len(is.Result) > 0 {
			s.Closed.Result = is.Result
		}
	}
	return s
}

// Replacing is the entry with the state next, in place of one with the state before.
func (c Codec) Replacing(e Entry, before, next rules.State) Entry {
	old := e.it
	e.it = whole{N: old.N + 1, Fence: next.LastFence}
	for _, h := range next.Holders {
		started := h.Started && slices.ContainsFunc(before.Holders, func(o rules.Holder) bool { return o.Fence == h.Fence && o.Started })
		e.it.Holders = append(e.it.Holders, with(holder{
			string(h.Owner), h.Fence, h.Seat, h.MaxHolders - 1, c.Begin(h.Since), h.TTL, h.Text, h.HandedOver, h.Revoked, started, h.Started && !started,
		}, old.Holders, func(o holder) bool { return o.Fence == h.Fence }))
	}
	for _, w := range next.Queue {
		since := w.Since.UnixNano()
		if w.Since.Equal(ThisWrite) {
			since = 0
		}
		e.it.Queue = append(e.it.Queue, with(waiter{string(w.Owner), w.MaxHolders - 1, w.Parked, since, w.Work, w.Event}, old.Queue, func(o waiter) bool { return o.Owner == string(w.Owner) }))
	}
	for _, m := range next.Ended {
		e.it.Ended = append(e.it.Ended, with(ended{string(m.Owner), m.Fence, m.How}, old.Ended, func(o ended) bool { return o.Owner == string(m.Owner) }))
	}
	if is := next.Closed; is.For > 0 {
		e.it.Closed = &kept[closed]{it: closed{c.Begin(is.Since), is.For, is.Result, is.Text}}
		if old.Closed != nil && is.Since.Equal(before.Closed.Since) {
			e.it.Closed.other = old.Closed.other
		}
	}
	return e
}

// Begin is what an entry says of when a state begins.
func (c Codec) Begin(since time.Time) int64 {
	if since.Equal(ThisWrite) {
		return 0
	}
	return since.Add(-c.Blur()).UnixNano()
}

// since returns when a lease or a closed time of the length ttl begins: its stamp + the blur, the latest
// moment at which it can have been written. The end is rounded up to a whole multiple of the clock's
// resolution, because all stamps are such multiples; the begin moves with it.
func (c Codec) since(begin int64, written time.Time, ttl time.Duration) time.Time {
	since := written
	if at := time.Unix(0, begin); begin != 0 && at.Before(written) {
		since = at
	}
	end := since.Add(c.Blur() + ttl)
	if whole := end.Truncate(c.Resolution); whole.Before(end) {
		end = whole.Add(c.Resolution)
	}
	return end.Add(-ttl)
}
