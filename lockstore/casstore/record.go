package casstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// State of a key.
const (
	stateFree     = "F"
	stateHeld     = "H"
	stateCooldown = "C"
)

const (
	maxPlaces = 64
	maxEnded  = 16
)

// record is the value of an entry. It has durations and the service's own stamps,
// and no time of a client's clock, so a client's clock can be wrong by anything.
type record struct {
	N      uint64          `json:"n"` // counts the writes, so that each one changes the value
	Fence  lockstore.Fence `json:"fence"`
	State  string          `json:"state"`
	Owner  string          `json:"owner,omitempty"`
	TTL    int64           `json:"ttl,omitempty"`   // nanoseconds, of a lease or a cooldown
	Begun  bool            `json:"begun,omitempty"` // the owner has begun its work
	Data   []byte          `json:"data,omitempty"`  // the answer, in a cooldown
	Begin  int64           `json:"begin,omitempty"` // nanoseconds since 1970, of the state; 0: when this version was written
	Holder string          `json:"holder,omitempty"`
	Queue  []string        `json:"queue,omitempty"`
	Ended  []ended         `json:"ended,omitempty"` // oldest first
}

// ended is an owner whose acquisition is over.
type ended struct {
	Owner string `json:"owner"`
	Lost  bool   `json:"lost,omitempty"` // expired, and another was granted the key
	Kept  bool   `json:"kept,omitempty"`
}

const mark = "lambdalock1 "

// encode returns the mark, a checksum and the record as JSON.
func (r record) encode() []byte {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return fmt.Appendf(nil, "%s%08x %s", mark, crc32.ChecksumIEEE(text), text)
}

func decode(value []byte) (record, error) {
	rest, ok := bytes.CutPrefix(value, []byte(mark))
	sum, text, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 {
		return record{}, fmt.Errorf("the value does not begin as a lock's: %.40q", value)
	}
	if want := fmt.Sprintf("%08x", crc32.ChecksumIEEE(text)); string(sum) != want {
		return record{}, fmt.Errorf("the value has the checksum %.8q; want %s", sum, want)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var r record
	if err := d.Decode(&r); err != nil {
		return record{}, err
	}
	switch {
	case r.State != stateFree && r.State != stateHeld && r.State != stateCooldown,
		r.State == stateHeld && r.Owner == "", r.Fence < 0, r.TTL < 0, r.Begin < 0,
		r.TTL > lockstore.MaxKeep.Nanoseconds(), r.State == stateHeld && r.TTL > lockstore.MaxTTL.Nanoseconds():
		return record{}, fmt.Errorf("the value's fields contradict each other")
	}
	return r, nil
}

// view is an entry as it was read or written.
type view struct {
	record
	key     string
	version string
	begin   time.Time // of the state
	written time.Time
}

func newView(key string, e Entry) (view, error) {
	v := view{key: key, version: e.Version, begin: e.Written, written: e.Written, record: record{State: stateFree}}
	if e.Version == "" {
		return v, nil
	}
	r, err := decode(e.Value)
	if err != nil {
		return view{}, err
	}
	v.record = r
	if begin := time.Unix(0, r.Begin); r.Begin != 0 && begin.Before(v.begin) {
		v.begin = begin
	}
	return v, nil
}

func (v view) ttl() time.Duration { return time.Duration(v.TTL) }

func (v view) mine(o lockstore.Owner) bool { return v.State == stateHeld && v.Owner == string(o) }

func (v view) ending(o lockstore.Owner) (lost, ok bool) {
	i := slices.IndexFunc(v.Ended, func(e ended) bool { return e.Owner == string(o) })
	return i >= 0 && v.Ended[i].Lost, i >= 0
}

// kept reports whether the owner's acquisition has ended by a Keep.
func (v view) kept(o lockstore.Owner) bool {
	return slices.Contains(v.Ended, ended{Owner: string(o), Kept: true})
}

func (v view) place(o lockstore.Owner) int { return slices.Index(v.Queue, string(o)) }

func (v view) before(o lockstore.Owner) int {
	if i := v.place(o); i >= 0 {
		return i
	}
	return len(v.Queue)
}

// end remembers an owner. It makes a new slice: copies of the record share the old. The owner
// of a broken lease was remembered when the lease was broken.
func (r *record) end(o string, lost bool) {
	if o == broken {
		return
	}
	r.Ended = append(slices.Clone(r.Ended[max(0, len(r.Ended)-maxEnded+1):]), ended{Owner: o, Lost: lost})
}

// keep ends the lease and the queue, and keeps data for the time d. own says that it is the
// answer of the owner itself.
func (r *record) keep(data []byte, d time.Duration, own bool) {
	if r.Owner != broken {
		r.end(r.Owner, false)
		r.Ended[len(r.Ended)-1].Kept = own
	}
	r.State, r.Owner, r.TTL, r.Begun, r.Data, r.Queue = stateCooldown, "", d.Nanoseconds(), false, data, nil
}

// leave takes a place out.
func (r *record) leave(i int) {
	if i >= 0 {
		r.Queue = slices.Concat(r.Queue[:i], r.Queue[i+1:])
	}
}
