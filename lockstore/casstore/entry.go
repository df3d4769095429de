package casstore

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lambdalock/lambdalock/internal/lib/driver"
	"github.com/lambdalock/lambdalock/internal/lib/rules"
	"github.com/lambdalock/lambdalock/lockstore"
)

// entry is the JSON of an Entry's Value: a rules.State. Each time in it that decides anything comes from a stamp
// of the service, so a client's clock may be wrong by any amount.
type entry = fields[kept[holder], queue, kept[ended], kept[closed]]

// plain is an entry without fields of a later version, as nearly all are. To read and write it as this type takes a fifth of
// the time.
type plain = fields[holder, []waiter, ended, closed]

type fields[H, Q, E, C any] struct {
	N       uint64          `json:"n"` // counts the writes, so that each one changes the value
	Fence   lockstore.Fence `json:"fence,omitempty"`
	Holders []H             `json:"holders,omitempty"`
	Queue   Q               `json:"queue,omitempty"`
	Ended   []E             `json:"ended,omitempty"`
	Closed  *C              `json:"closed,omitempty"`
}

// Begin, also of closed, is when the lease began at the earliest, in nanoseconds since 1970. The method
// store.since adds the blur. 0, or a time after WrittenAt (a clock was set back), stands for the entry's WrittenAt.
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
	// Starts is Started in the write of MarkStarted. It counts only if WrittenAt is before the end of the lease. The next write
	// makes it Started, or drops it.
	Starts bool `json:"starts,omitempty"`
}

type waiter struct {
	Owner  string        `json:"owner"`
	Others int           `json:"others,omitempty"`
	Parked time.Duration `json:"parked,omitempty"`
	Since  int64         `json:"since,omitempty"` // when it joined, in nanoseconds since 1970; 0 stands for the entry's WrittenAt
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

// kept is a JSON object. The fields that T does not have are those of a later version. They
// stay as they are.
type kept[T any] struct {
	it    T
	other map[string]json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler.
func (k *kept[T]) UnmarshalJSON(text []byte) error {
	if err := errors.Join(json.Unmarshal(text, &k.it), json.Unmarshal(text, &k.other)); err != nil {
		return err
	}
	known := reflect.TypeFor[T]()
	for i := range known.NumField() {
		name, _, _ := strings.Cut(known.Field(i).Tag.Get("json"), ",")
		maps.DeleteFunc(k.other, func(n string, _ json.RawMessage) bool { return strings.EqualFold(n, name) })
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (k kept[T]) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(&k.it)
	if err != nil || len(k.other) == 0 {
		return text, err
	}
	rest, err := json.Marshal(k.other)
	return slices.Concat(text[:len(text)-1], []byte(","), rest[1:]), err
}

// with adds to it the unknown fields of the first element of all for which same is true.
func with[T any](it T, all []kept[T], same func(T) bool) kept[T] {
	k := kept[T]{it: it}
	if i := slices.IndexFunc(all, func(old kept[T]) bool { return same(old.it) }); i >= 0 {
		k.other = all[i].other
	}
	return k
}

// alone unwraps each element; *none becomes false if one had unknown fields.
func alone[T any](all []kept[T], none *bool) (its []T) {
	for _, k := range all {
		its, *none = append(its, k.it), *none && len(k.other) == 0
	}
	return its
}

func wrap[T any](its []T) (all []kept[T]) {
	for _, it := range its {
		all = append(all, kept[T]{it: it})
	}
	return all
}

// queue is read as empty if it is damaged. That is safe: a queue can only refuse a lock, so without it nothing is
// granted that the leases forbid.
type queue []kept[waiter]

// UnmarshalJSON implements json.Unmarshaler.
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

// view is an entry as it was read or written.
type view struct {
	rules.State
	entry   kept[entry]
	version string
	written time.Time
	fresh   bool // it was read fresh, or the call has written it
	own     bool // the call has written it: its stamp is the time
}

// begins is the latest time at which something in it begins.
func (v view) begins() time.Time {
	latest := v.Closed.Since
	for _, h := range v.Holders {
		if h.Since.After(latest) {
			latest = h.Since
		}
	}
	return latest
}

// thisWrite is the time of a write that is still to come: later than every other time.
var thisWrite = time.Unix(0, 1<<62)

// replacing is the entry with the state next, in place of v.
func (s *store) replacing(v view, next rules.State) kept[entry] {
	old := v.entry.it
	e := kept[entry]{entry{N: old.N + 1, Fence: next.LastFence}, v.entry.other}
	for _, h := range next.Holders {
		started := h.Started && slices.ContainsFunc(v.Holders, func(o rules.Holder) bool { return o.Fence == h.Fence && o.Started })
		e.it.Holders = append(e.it.Holders, with(holder{
			string(h.Owner), h.Fence, h.Seat, h.MaxHolders - 1, s.begin(h.Since), h.TTL, h.Text, h.HandedOver, h.Revoked, started, h.Started && !started,
		}, old.Holders, func(o holder) bool { return o.Fence == h.Fence }))
	}
	for _, w := range next.Queue {
		since := w.Since.UnixNano()
		if w.Since.Equal(thisWrite) {
			since = 0
		}
		e.it.Queue = append(e.it.Queue, with(waiter{string(w.Owner), w.MaxHolders - 1, w.Parked, since}, old.Queue, func(o waiter) bool { return o.Owner == string(w.Owner) }))
	}
	for _, m := range next.Ended {
		e.it.Ended = append(e.it.Ended, with(ended{string(m.Owner), m.Fence, m.How}, old.Ended, func(o ended) bool { return o.Owner == string(m.Owner) }))
	}
	if c := next.Closed; c.For > 0 {
		e.it.Closed = &kept[closed]{it: closed{s.begin(c.Since), c.For, c.Result, c.Text}}
		if old.Closed != nil && c.Since.Equal(v.Closed.Since) {
			e.it.Closed.other = old.Closed.other
		}
	}
	return e
}

// encode returns the mark, a checksum, and the entry as JSON.
func encode(e kept[entry]) []byte {
	only := len(e.other) == 0
	p := plain{e.it.N, e.it.Fence, alone(e.it.Holders, &only), alone(e.it.Queue, &only), alone(e.it.Ended, &only), nil}
	if c := e.it.Closed; c != nil {
		p.Closed, only = &c.it, only && len(c.other) == 0
	}
	var whole any = p
	if !only {
		whole = e
	}
	text, err := json.Marshal(whole)
	if err != nil {
		panic(err) // strings, numbers, and what was JSON before
	}
	return fmt.Appendf(nil, "%s%08x %s", mark, crc32.ChecksumIEEE(text), text)
}

// unmarshal reads the JSON of an entry. Whatever is not that of a plain one takes longer.
func unmarshal(text []byte) (e kept[entry], err error) {
	var p plain
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode(&p) != nil || d.InputOffset() != int64(len(text)) || slices.ContainsFunc(p.Queue, waiter.damaged) {
		return e, json.Unmarshal(text, &e)
	}
	e.it = entry{p.N, p.Fence, wrap(p.Holders), wrap(p.Queue), wrap(p.Ended), nil}
	if p.Closed != nil {
		e.it.Closed = &kept[closed]{it: *p.Closed}
	}
	return e, nil
}

// view decodes an entry. Its error matches lockstore.ErrCorrupt.
func (s *store) view(key string, e Entry) (view, error) {
	if e.Version == "" {
		return view{written: e.WrittenAt}, nil
	}
	it, err := decode(e.Value)
	v := s.viewOf(it, e)
	if err == nil {
		err = v.Corrupt()
	}
	if err != nil {
		return view{}, fmt.Errorf("%s: key %q: %w: %w", s.opt.Name, key, err, lockstore.ErrCorrupt)
	}
	return v, nil
}

// viewOf is the view of an entry whose value is decoded.
func (s *store) viewOf(decoded kept[entry], e Entry) view {
	v := view{entry: decoded, version: e.Version, written: e.WrittenAt}
	it := decoded.it
	v.LastFence = it.Fence
	for _, k := range it.Holders {
		h := k.it
		since := s.since(h.Begin, e.WrittenAt, h.TTL)
		v.Holders = append(v.Holders, rules.Holder{
			Owner: driver.Owner(h.Owner), Fence: h.Fence, Seat: h.Seat, MaxHolders: h.Others + 1, Since: since, TTL: h.TTL,
			Text: h.Text, HandedOver: h.HandedOver, Revoked: h.Revoked, Started: h.Started || h.Starts && e.WrittenAt.Before(since.Add(h.TTL)),
		})
	}
	for _, k := range it.Queue {
		w := k.it
		since := time.Unix(0, cmp.Or(w.Since, e.WrittenAt.UnixNano()))
		v.Queue = append(v.Queue, rules.Waiter{Owner: driver.Owner(w.Owner), MaxHolders: w.Others + 1, Parked: w.Parked, Since: since})
	}
	for _, m := range it.Ended {
		v.Ended = append(v.Ended, rules.Ended{Owner: driver.Owner(m.it.Owner), Fence: m.it.Fence, How: m.it.How})
	}
	if it.Closed != nil {
		c := it.Closed.it
		v.Closed = rules.Closed{Since: s.since(c.Begin, e.WrittenAt, c.For), For: c.For, Text: c.Text}
		if len(c.Result) > 0 {
			v.Closed.Result = c.Result
		}
	}
	return v
}

func decode(value []byte) (kept[entry], error) {
	rest, ok := bytes.CutPrefix(value, []byte(mark))
	sum, text, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 {
		return kept[entry]{}, fmt.Errorf("the value does not begin as a lock's: %.40q", value)
	}
	if want := fmt.Sprintf("%08x", crc32.ChecksumIEEE(text)); string(sum) != want {
		return kept[entry]{}, fmt.Errorf("the value has the checksum %.8q; want %s", sum, want)
	}
	e, err := unmarshal(text)
	if err != nil {
		return e, err
	}
	bad := e.it.N == 0 || e.it.Fence < 0 || slices.ContainsFunc(e.it.Holders, func(k kept[holder]) bool {
		h := k.it
		return h.Owner == "" || h.Seat < 0 || h.Others < 0 || h.Begin < 0 || h.TTL <= 0 || h.TTL > longest
	})
	if c := e.it.Closed; c != nil {
		bad = bad || c.it.Begin < 0 || c.it.For <= 0 || c.it.For > longest
	}
	if bad {
		return kept[entry]{}, errors.New("the value's fields contradict each other")
	}
	return e, nil
}

// longest is the longest time in an entry.
const longest = lockstore.MaxResultTime + maxClockResolution

// begin is what an entry says of when a state begins.
func (s *store) begin(since time.Time) int64 {
	if since.Equal(thisWrite) {
		return 0
	}
	return since.Add(-s.blur()).UnixNano()
}

// since returns when a lease or a closed time of the length ttl begins: its stamp + the blur, the latest
// moment at which it can have been written. The end is rounded up to a whole multiple of the clock's
// resolution, because all stamps are such multiples; the begin moves with it.
func (s *store) since(begin int64, written time.Time, ttl time.Duration) time.Time {
	since, resolution := written, s.kv.ClockResolution()
	if at := time.Unix(0, begin); begin != 0 && at.Before(written) {
		since = at
	}
	end := since.Add(s.blur() + ttl)
	if whole := end.Truncate(resolution); whole.Before(end) {
		end = whole.Add(resolution)
	}
	return end.Add(-ttl)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
