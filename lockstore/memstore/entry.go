package memstore

import (
	"slices"
	"time"

	"github.com/lambdalock/lambdalock/lockstore"
)

// entry is what the store knows of one key. The zero entry is a new key.
type entry struct {
	owner   lockstore.Owner // of the last lease, also after its end; "" after a release
	fence   lockstore.Fence // of the last grant
	expires time.Time       // the end of the lease, or without an owner of what is kept
	begun   bool            // the owner has begun its work
	data    []byte          // what is kept, if anything is
	freed   time.Time       // since when the key is free, if later than expires
	holder  string          // of the last grant, encoded
	queue   []lockstore.Owner
	endings []ending // oldest first
}

// ending is an acquisition that is over.
type ending struct {
	owner lockstore.Owner
	how   how
}

type how int

const (
	released how = iota // or abandoned
	expired             // and the key was granted to another
	kept
)

const (
	maxEndings = 16
	maxPlaces  = 128
)

// taken reports whether a lease is live or something is kept. No other owner gets the
// key now.
func (e entry) taken(now time.Time) bool { return now.Before(e.expires) }

// inDoubt reports whether a lease has ended under work that had begun.
func (e entry) inDoubt(now time.Time) bool { return e.begun && !e.taken(now) }

func (e entry) status(key string, now time.Time) lockstore.Status {
	st := lockstore.Status{Key: key, Fence: e.fence, Waiting: len(e.queue)}
	if e.taken(now) {
		st.Held, st.Kept, st.Broken = true, e.owner == "", e.owner == broken
		st.Remaining = e.expires.Sub(now)
	} else if e.inDoubt(now) {
		st.Held, st.InDoubt = true, true
	}
	if st.Held {
		st.Holder = lockstore.DecodeHolder(e.holder)
	}
	return st
}

// holds reports whether this lease is live. It is false for Fence 0.
func (e entry) holds(l lockstore.Lease, now time.Time) bool {
	return e.has(l) && e.taken(now)
}

// has reports whether this is the last lease, also after its end.
func (e entry) has(l lockstore.Lease) bool { return e.owner == l.Owner && e.fence == l.Fence }

func (e entry) ending(o lockstore.Owner) (how, bool) {
	for _, p := range e.endings {
		if p.owner == o {
			return p.how, true
		}
	}
	return 0, false
}

// end adds an ending. It makes a new slice, because copies of the entry share the
// old one.
func (e *entry) end(o lockstore.Owner, h how) {
	first := max(0, len(e.endings)-maxEndings+1)
	e.endings = append(slices.Clone(e.endings[first:]), ending{o, h})
}

// release ends the last lease. The fence stays: the next grant must be above it.
func (e *entry) release(now time.Time) {
	freed := now
	if !e.taken(now) {
		freed = now.Add(-e.free(now)) // by the end of the lease
	}
	e.owner, e.begun, e.expires, e.freed = "", false, time.Time{}, freed
}

// keep ends the last lease and the queue, and keeps data until opens. how is kept if the
// owner itself keeps the data.
func (e *entry) keep(data []byte, opens time.Time, h how) {
	e.end(e.owner, h)
	e.owner, e.begun, e.expires, e.freed = "", false, opens, time.Time{}
	e.data, e.queue = slices.Clone(data), nil
}

// place is the owner's index in the queue, -1 without one.
func (e entry) place(o lockstore.Owner) int { return slices.Index(e.queue, o) }

// before is how many places are before the owner's, or all without one.
func (e entry) before(o lockstore.Owner) int {
	if i := e.place(o); i >= 0 {
		return i
	}
	return len(e.queue)
}

// free is for how long nobody has had a key that an owner may be granted. It is
// negative when the clock was set back.
func (e entry) free(now time.Time) time.Duration {
	if e.freed.After(e.expires) {
		return now.Sub(e.freed)
	}
	return now.Sub(e.expires)
}

// pass takes the places out that a grant to the owner ends: its own and those
// before it, or all when it has none. When the clock was set back nobody's turn is
// over, and only its own place goes.
func (e *entry) pass(o lockstore.Owner, now time.Time) {
	switch i := e.place(o); {
	case e.free(now) < 0:
		e.leave(o, now)
	case i >= 0:
		e.queue = e.queue[i+1:]
	default:
		e.queue = nil
	}
}

// leave takes the owner's place out.
func (e *entry) leave(o lockstore.Owner, now time.Time) {
	i := e.place(o)
	if i < 0 {
		return
	}
	if free := e.free(now); !e.taken(now) && free >= 0 {
		e.freed = now.Add(-lockstore.FreeAfterLeave(i, free))
	}
	e.queue = slices.Concat(e.queue[:i], e.queue[i+1:])
}
