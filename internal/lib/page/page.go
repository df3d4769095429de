// Package page has what lockctl and make play show of keys: the data as JSON, and the files of rows and timelines.
package page

import (
	"cmp"
	"embed"
	"fmt"
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Files are page.css and page.js. They need nothing else, and nothing from another host.
//
//go:embed page.css page.js
var Files embed.FS

// Snapshot is what is known of some keys at one moment. Times whose name ends with At are milliseconds since 1970.
type Snapshot struct {
	At           int64 `json:"at"`
	Held         int   `json:"held"`         // keys that somebody has a lease of
	Waiting      int   `json:"waiting"`      // places in the queues of all keys
	OldestWaitMs int64 `json:"oldestWaitMs"` // the longest of all keys
	InDoubt      int   `json:"inDoubt"`      // keys
	Keys         []Key `json:"keys"`         // in the order in which they are shown
	More         int   `json:"more"`         // keys that are not among Keys, because there are too many
}

// Key is the state of a key. A fence is above 2^50, and many readers of JSON round numbers, so it is a text there.
type Key struct {
	Key          string                `json:"key"`
	State        lockstore.State       `json:"state"`
	Holder       *lockstore.HolderInfo `json:"holder,omitempty"`       // if the key may have one
	Fence        lockstore.Fence       `json:"fence,string,omitempty"` // of the last grant
	LeftMs       int64                 `json:"leftMs,omitempty"`
	Started      bool                  `json:"started,omitempty"` // the work has marked its start: the key is in doubt if its lease ends without an answer
	Waiting      int                   `json:"waiting"`
	Parked       int                   `json:"parked,omitempty"`       // of those who wait
	OldestWaitMs int64                 `json:"oldestWaitMs,omitempty"` // of the first who waits
	MaxHolders   int                   `json:"maxHolders,omitempty"`
	Holders      []Holder              `json:"holders,omitempty"`
	Queue        []Place               `json:"queue,omitempty"` // in the order of arrival

	// In a snapshot alone; the texts are as people are to see them.
	Shown   string `json:"shown,omitempty"`   // the key
	Who     string `json:"who,omitempty"`     // has it, or "2 of 3"; who did or started its work
	SinceAt int64  `json:"sinceAt,omitempty"` // by the clock of the holder that has had it for the longest time
}

// Holder is one of those who have a lease.
type Holder struct {
	State      lockstore.State       `json:"state"`
	Holder     *lockstore.HolderInfo `json:"holder,omitempty"`
	Fence      lockstore.Fence       `json:"fence,string"`
	Seat       int                   `json:"seat"`
	MaxHolders int                   `json:"maxHolders"`
	LeftMs     int64                 `json:"leftMs"`
	Who        string                `json:"who,omitempty"` // in a snapshot alone
}

type Place struct {
	WaitedMs int64 `json:"waitedMs"` // since it joined
	Parked   bool  `json:"parked,omitempty"`
}

// KeyOf is the state of a key, without the texts of a snapshot.
func KeyOf(s lockstore.Status) Key {
	k := Key{
		Key: s.Key, State: s.State, Fence: s.Fence, LeftMs: s.Remaining.Milliseconds(), Started: s.Started,
		Waiting: s.Waiting, Parked: s.Parked, OldestWaitMs: s.OldestWait.Milliseconds(), MaxHolders: s.MaxHolders(),
	}
	if s.State.Taken() && k.MaxHolders <= 1 {
		k.Holder = &s.Holder
	}
	for _, h := range s.Holders {
		one := Holder{State: h.State, Fence: h.Fence, Seat: h.Seat, MaxHolders: h.MaxHolders, LeftMs: h.Remaining.Milliseconds()}
		if h.State.Taken() {
			one.Holder = &h.HolderInfo
		}
		k.Holders = append(k.Holders, one)
	}
	for _, p := range s.Queue {
		k.Queue = append(k.Queue, Place{p.Waited.Milliseconds(), p.Parked})
	}
	return k
}

// Of makes a snapshot of keys at the time now. visible writes texts so that nothing in them is hidden. Of more than most keys the
// last ones in the order are left out.
func Of(all []lockstore.Status, now time.Time, most int, visible func(string) string) Snapshot {
	who := func(h *lockstore.HolderInfo) string {
		if h == nil {
			return ""
		}
		return visible(lockstore.HolderInfo{Name: h.Name, ID: h.ID, Caller: h.Caller}.String())
	}
	s := Snapshot{At: now.UnixMilli(), Keys: []Key{}}
	for _, status := range all {
		k := KeyOf(status)
		k.Shown, k.Who = visible(k.Key), who(k.Holder)
		for i := range k.Holders {
			k.Holders[i].Who = who(k.Holders[i].Holder)
		}
		if k.MaxHolders > 1 {
			k.Who = fmt.Sprintf("%d of %d", len(k.Holders), k.MaxHolders)
		}
		if since := Since(status); !since.IsZero() {
			k.SinceAt = since.UnixMilli()
		}
		if len(k.Holders) > 0 {
			s.Held++
		}
		if k.State == lockstore.InDoubt {
			s.InDoubt++
		}
		s.Waiting, s.OldestWaitMs, s.Keys = s.Waiting+k.Waiting, max(s.OldestWaitMs, k.OldestWaitMs), append(s.Keys, k)
	}
	slices.SortFunc(s.Keys, order)
	s.More = max(0, len(s.Keys)-most)
	s.Keys = s.Keys[:len(s.Keys)-s.More]
	return s
}

// order has the longest wait first, then keys in doubt, then who has a key for the longest time, then what nobody has.
func order(a, b Key) int {
	rank := func(k Key) int {
		switch {
		case k.State == lockstore.InDoubt:
			return 0
		case k.State.Taken():
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(b.OldestWaitMs, a.OldestWaitMs), rank(a)-rank(b), cmp.Compare(a.SinceAt, b.SinceAt), cmp.Compare(a.Key, b.Key))
}

// Since is since when somebody has a key, by the clock of the holder that has had it for the longest time. It is zero if nobody has it,
// and if somebody may have had it for longer.
func Since(s lockstore.Status) time.Time {
	if !s.State.Taken() {
		return time.Time{}
	}
	first := s.Holder.Since
	for i, h := range s.Holders {
		if since := h.HolderInfo.Since; h.State.Taken() && (i == 0 || since.Before(first)) {
			first = since
		}
	}
	return first
}
