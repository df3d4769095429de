package operate

import (
	"encoding/json"
	"io"

	"github.com/lambdalock/lambdalock/internal/lib/page"
	"github.com/lambdalock/lambdalock/lockstore"
)

// answer is a key's state as JSON. The fence is a text: it is above 2^50, and many readers
// of JSON round numbers.
type answer struct {
	Key        string                `json:"key"`
	State      lockstore.State       `json:"state"`
	Holder     *lockstore.HolderInfo `json:"holder,omitempty"` // if the key may have one
	Fence      string                `json:"fence,omitempty"`  // of the last grant
	LeftMs     int64                 `json:"leftMs,omitempty"`
	Waiting    int                   `json:"waiting"`
	Parked     int                   `json:"parked,omitempty"` // of those who wait
	MaxHolders int                   `json:"maxHolders,omitempty"`
	Holders    []holder              `json:"holders,omitempty"`

	OldestWaitMs int64   `json:"oldestWaitMs,omitempty"` // of the first who waits
	Queue        []place `json:"queue,omitempty"`        // in the order of arrival
}

// place is a place in the queue, as JSON.
type place struct {
	WaitedMs int64 `json:"waitedMs"`
	Parked   bool  `json:"parked,omitempty"`
}

// holder is one of those who have a lease, as JSON.
type holder struct {
	State      lockstore.State       `json:"state"`
	Holder     *lockstore.HolderInfo `json:"holder,omitempty"`
	Fence      string                `json:"fence"`
	Seat       int                   `json:"seat"`
	MaxHolders int                   `json:"maxHolders"`
	LeftMs     int64                 `json:"leftMs"`
}

func answerOf(s lockstore.Status) answer {
	a := answer{Key: s.Key, State: s.State, Fence: page.FenceText(s.Fence), LeftMs: s.Remaining.Milliseconds(), Waiting: s.Waiting, Parked: s.Parked, MaxHolders: s.MaxHolders(), OldestWaitMs: s.OldestWait.Milliseconds()}
	if s.State.Taken() && a.MaxHolders <= 1 {
		a.Holder = &s.Holder
	}
	for _, h := range s.Holders {
		one := holder{State: h.State, Fence: page.FenceText(h.Fence), Seat: h.Seat, MaxHolders: h.MaxHolders, LeftMs: h.Remaining.Milliseconds()}
		if h.State.Taken() {
			one.Holder = &h.HolderInfo
		}
		a.Holders = append(a.Holders, one)
	}
	for _, p := range s.Queue {
		a.Queue = append(a.Queue, place{p.Waited.Milliseconds(), p.Parked})
	}
	return a
}

// printJSON prints one line.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
