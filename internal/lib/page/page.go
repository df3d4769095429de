// Package page has what lockctl ui and make play show of keys: the files of rows and timelines, and the data that they read.
package page

import (
	"cmp"
	"embed"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// Files are page.css and page.js. They need nothing else, and nothing from another host.
//
//go:embed page.css page.js
var Files embed.FS

// Snapshot is what is known of some keys at one moment. Times in milliseconds are since 1970 if their name ends with At, and lengths
// otherwise.
type Snapshot struct {
	At         int64 `json:"at"`
	Held       int   `json:"held"`       // keys that somebody has a lease of
	Waiting    int   `json:"waiting"`    // places in the queues of all keys
	OldestWait int64 `json:"oldestWait"` // of the first place that has waited for the longest time; 0 if nobody waits
	InDoubt    int   `json:"inDoubt"`    // keys
	Keys       []Key `json:"keys"`       // in the order in which they are shown
	More       int   `json:"more"`       // keys that are not among Keys, because there are too many
}

// Key is the state of a key. Texts for people are as they are to be shown: nothing in them is hidden.
type Key struct {
	Key     string          `json:"key"`   // as the store has it
	Shown   string          `json:"shown"` // as people see it
	State   lockstore.State `json:"state"`
	Who     string          `json:"who"`     // has it, or "2 of 3"; who did or started its work; "" if nobody is known
	SinceAt int64           `json:"sinceAt"` // by the clock of the holder that has had it for the longest time; 0 is not known
	Left    int64           `json:"left"`    // the longest time until State is over; 0 if no time ends it
	Fence   string          `json:"fence"`   // of the last grant; a number that JavaScript would round
	Started bool            `json:"started"` // the work has started: the key is in doubt if its lease ends without an answer
	Holders []Holder        `json:"holders"`
	Queue   []Place         `json:"queue"` // in the order of arrival
}

// Holder has a lease.
type Holder struct {
	State      lockstore.State `json:"state"`
	Who        string          `json:"who"`
	SinceAt    int64           `json:"sinceAt"`
	Left       int64           `json:"left"`
	Fence      string          `json:"fence"`
	Seat       int             `json:"seat"`
	MaxHolders int             `json:"maxHolders"`
}

// Place is a place in the queue.
type Place struct {
	Waited int64 `json:"waited"` // since it joined
	Parked bool  `json:"parked"`
}

// Of makes a snapshot of keys at the time now. visible writes texts so that nothing in them is hidden. Of more than most keys the
// last ones in the order are left out.
func Of(all []lockstore.Status, now time.Time, most int, visible func(string) string) Snapshot {
	s := Snapshot{At: now.UnixMilli(), Keys: []Key{}}
	for _, status := range all {
		k := keyOf(status, visible)
		if len(k.Holders) > 0 {
			s.Held++
		}
		if k.State == lockstore.InDoubt {
			s.InDoubt++
		}
		s.Waiting += len(k.Queue)
		s.OldestWait = max(s.OldestWait, k.oldestWait())
		s.Keys = append(s.Keys, k)
	}
	slices.SortFunc(s.Keys, order)
	s.More = max(0, len(s.Keys)-most)
	s.Keys = s.Keys[:len(s.Keys)-s.More]
	return s
}

func keyOf(s lockstore.Status, visible func(string) string) Key {
	k := Key{
		Key: s.Key, Shown: visible(s.Key), State: s.State, SinceAt: milli(Since(s)), Left: s.Remaining.Milliseconds(), Fence: FenceText(s.Fence), Started: s.Started,
		Holders: []Holder{}, Queue: []Place{},
	}
	who := func(h lockstore.HolderInfo, state lockstore.State) string {
		if !state.Taken() {
			return ""
		}
		h.Since = time.Time{} // it is shown beside it
		return visible(h.String())
	}
	for _, h := range s.Holders {
		k.Holders = append(k.Holders, Holder{
			State: h.State, Who: who(h.HolderInfo, h.State), SinceAt: milli(h.HolderInfo.Since), Left: h.Remaining.Milliseconds(), Fence: FenceText(h.Fence), Seat: h.Seat, MaxHolders: h.MaxHolders,
		})
	}
	for _, p := range s.Queue {
		k.Queue = append(k.Queue, Place{Waited: p.Waited.Milliseconds(), Parked: p.Parked})
	}
	k.Who = who(s.Holder, s.State)
	if s.MaxHolders() > 1 {
		k.Who = fmt.Sprintf("%d of %d", len(s.Holders), s.MaxHolders())
	}
	return k
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
	return cmp.Or(cmp.Compare(b.oldestWait(), a.oldestWait()), rank(a)-rank(b), cmp.Compare(a.SinceAt, b.SinceAt), cmp.Compare(a.Key, b.Key))
}

func (k Key) oldestWait() int64 {
	if len(k.Queue) == 0 {
		return 0
	}
	return k.Queue[0].Waited
}

// milli is 0 for a time that is not known.
func milli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// FenceText is "" if there is none. A fence is above 2^50, and many readers of JSON round numbers, so it is a text there.
func FenceText(f lockstore.Fence) string {
	if f == 0 {
		return ""
	}
	return strconv.FormatInt(int64(f), 10)
}
